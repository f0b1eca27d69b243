"""The public functions of inspection. They load the rest of the room on use, so that `import fluid` stays fast."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluid.inspection.drawing import Drawing
    from fluid.inspection.table import Summary


def summary(target: Any, batch_size: int = 1, time: int = 16, layers: str | Sequence[str] | None = None) -> "Summary":
    """Return a table of the layers of a program, with their shapes, parameters and cost.

    XLA counts the FLOPs: a multiplication and an addition are two, functions such as `exp` are none. Bytes are read
    and written by all operations before XLA fuses them, an upper bound of what the device moves. A loop counts as often
    as its body runs, or once if the data decides how often, which `>=` marks. Operators between layers have rows of
    their own, called by their line of the program.

    Args:
      target: a program function, Program, Trainer, Inferencer, or a Session, of which all programs are shown.
      batch_size: number of examples that FLOPs and bytes are counted for.
      time: number of steps of each sequence that they are counted for.
      layers: names or globs such as "generator/*" of the rows to show; the totals stay those of everything.

    Returns:
      Summary: `print` shows it as text, a notebook as a table; `rows`, `totals` and `to_dict()` have the numbers.

    Raises:
      ArgumentTypeError: the target is nothing of that kind. ArgumentError: a size is not positive.
      UnknownNameError: no layer matches. FluidError: whatever mistake a program's shapes show.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fc(fluid.layers.fc(x, size=8, act="relu"), size=2)
      >>> found = fluid.summary(program, batch_size=10)
      >>> [(row.name, row.output, row.trainable, row.flops) for row in found.rows[1:]]
      [('fc_0', 'float32[batch, 8]', 40, 800.0), ('fc_1', 'float32[batch, 2]', 18, 340.0)]
      >>> found.totals.trainable, found.totals.forward.flops
      (58, 1140.0)
    """
    from fluid.inspection.table import summarize

    return summarize(target, batch_size, time, layers)


def draw(target: Any, batch_size: int = 16) -> "Drawing":
    """Return a drawing of the layers of a program, from its feeds at the top to its outputs at the bottom.

    Frames around layers are name scopes, loops, and blocks that are repeated, which are drawn once.

    Args:
      target: a program function, Program, Trainer, Inferencer, or a Session, of which all programs are drawn.
      batch_size: number of examples that the program is traced with, for one that does not work for any number.

    Returns:
      Drawing: a notebook shows it; `svg` is its text, `dot` the same graph for Graphviz, `save(path)` writes either.

    Raises:
      ArgumentTypeError: the target is nothing of that kind. FluidError: whatever mistake a program's shapes show.

    Example:
      >>> import fluid
      >>> drawing = fluid.draw(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=2))
      >>> drawing.svg[:4], "fc_0" in drawing.svg
      ('<svg', True)
      >>> print(drawing.dot)
      digraph {
      node [shape=box]
      0 [label="x\\nfloat32[batch, 4]", style=solid]
      1 [label="fc_0\\nfloat32[batch, 2]\\n10 parameters", style=solid]
      2 [label="output", style=solid]
      0 -> 1
      1 -> 2
      }
    """
    from fluid.inspection.drawing import drawn

    return drawn(target, batch_size)
