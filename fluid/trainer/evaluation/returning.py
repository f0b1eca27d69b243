"""A program that returns named values of another one, so that they are evaluated as its outputs are."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import Program, current_frame, named_array
from fluid.runtime.fetch import GRAD, is_line


def returning(program: Program, names: Sequence[str]) -> Program:
    """The same program with other outputs, which minimises nothing.

    Args:
      program: the program.
      names: of its values, from `check_fetch`.

    Returns:
      A Program that returns them by name.

    Raises:
      UnknownNameError: one is no value that a data set has, such as a gradient.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> print(*returning(fluid.Program(program), ["fc_0", "fc_0.w_0"]).outputs)
      float32[batch, 1] float32[2, 1]
    """
    for name in names:
        if name.endswith(GRAD) or is_line(name):
            raise errors.UnknownNameError(
                f"test(fetch={name!r}): found a {'gradient' if name.endswith(GRAD) else 'line'}, expected values with "
                f"a name, of which it is known how those of several minibatches become one; for each minibatch by "
                f"itself: trainer.predict(reader, fetch=[{name!r}])"
            )

    def values() -> dict[str, Any]:
        result = program.function()
        frame = current_frame("layers.identity")
        frame.made.minimizations.clear()
        known = {**frame.given.feeds, **frame.made.values, **(result if isinstance(result, Mapping) else {})}
        canonical = {name: name if name in known else program.aliases.get(name, name) for name in names}
        return {name: known[n] if n in known else named_array(n) for name, n in canonical.items()}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FluidWarning)  # what there is to say of the program has been said
        samples = {name: np.zeros(shape) for name, shape in program.sample_shapes.items()}
        return Program(values, f"{program.name}[{', '.join(names)}]", samples, program.precision)
