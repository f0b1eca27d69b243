"""Inspection of programs: tables and drawings of their layers.

The functions import the other modules when they are called, so `import fluid` stays fast.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluid.inspection.drawing import Drawing
    from fluid.inspection.summary_table import Summary

__all__ = ["draw", "summary"]


def summary(target: Any, batch_size: int = 1, time: int = 16, layers: str | Sequence[str] | None = None) -> "Summary":
    """Return a table of the layers of a program, with their shapes, parameters and cost.

    XLA counts the FLOPs: a multiplication and an addition are two, functions such as `exp` are not counted. The bytes
    are the sum over all operations of the bytes read and written, before XLA fuses operations. They are an upper bound
    of the bytes that the device moves. The cost of a loop is the cost of all its steps. If the data decides the number
    of steps, one step counts, and `>=` marks the row. Operators between layers have rows of their own, named after
    their line of the program.

    Args:
      target: a program function, Program, Trainer, Inferencer, or a Session, of which all programs are shown.
      batch_size: the number of examples for which FLOPs and bytes are counted.
      time: the number of steps of each sequence for which FLOPs and bytes are counted.
      layers: names or globs such as "generator/*" of the rows to show. The totals always include all rows.

    Returns:
      Summary: `print` shows it as text, a notebook as a table; `rows`, `totals` and `to_dict()` have the numbers.

    Raises:
      ArgumentTypeError: `target` has another type. ArgumentError: a size is not positive.
      UnknownNameError: no layer matches `layers`. FluidError: the trace of the program finds a mistake, such as shapes
        that do not fit.

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
    from fluid.inspection.summary_table import summarize

    return summarize(target, batch_size, time, layers)


def draw(target: Any, batch_size: int = 16) -> "Drawing":
    """Return a drawing of the layers of a program, from its feeds at the top to its outputs at the bottom.

    Frames around layers are name scopes, loops and repeated blocks. Repeated blocks are drawn once.

    Args:
      target: a program function, Program, Trainer, Inferencer, or a Session, of which all programs are drawn.
      batch_size: the number of examples in the trace; it matters only for a program that does not work for every
        number.

    Returns:
      Drawing: a notebook shows it; `svg` is its text, `dot` the same graph for Graphviz, `save(path)` writes either.

    Raises:
      ArgumentTypeError: `target` has another type. FluidError: the trace of the program finds a mistake, such as
        shapes that do not fit.

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
