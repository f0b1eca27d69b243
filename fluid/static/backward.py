"""Gradients of programs that are written down."""

from collections.abc import Sequence
from typing import Any

from fluid import errors, layers
from fluid.session.names import GRAD
from fluid.static.tape.program import Program
from fluid.static.tape.variable import Persistent, Variable

__all__ = ["append_backward", "calc_gradient", "gradients"]


class Gradient(Variable):
    """The gradient of a loss with respect to a variable, to be fetched.

    Args:
      of: the variable.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     [gradient.name for parameter, gradient in fluid.backward.append_backward(loss)]
      ['fc_0.w_0@GRAD', 'fc_0.b_0@GRAD']
    """

    def __init__(self, of: Variable):
        super().__init__(of.program, of.name + GRAD, of.structs)

    def held(self) -> Any:
        """Raise ProgramError: layers cannot read it."""
        raise errors.ProgramError(
            f"{self.name!r} can be fetched, and no layer can read it; clip gradients with "
            f"fluid.clip.set_gradient_clip(...), and let optimizer.minimize(loss) apply them"
        )


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Sequence[Variable | str] | None = None,
    callbacks: Any = None,
) -> list[tuple[Variable, Gradient]]:
    """Let the gradients of a loss be fetched.

    Args:
      loss: a variable of one float.
      parameter_list: variables or names of parameters; by default all that are trainable.
      no_grad_set: variables or names of those to leave out.
      callbacks: accepted for programs written for Fluid, but has no effect: there is nothing to call back for.

    Returns:
      Pairs of each parameter and its gradient.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.backward.append_backward(loss, parameter_list=["fc_0.w_0"])
      [(Variable(fc_0.w_0: float32[2, 1]), Variable(fc_0.w_0@GRAD: float32[2, 1]))]
    """
    del callbacks
    loss.program.first = loss
    return pairs_of(loss.program, parameter_list, [_name(item) for item in no_grad_set or ()])


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Any = None,
    no_grad_set: Sequence[Variable | str] | None = None,
) -> list[Gradient]:
    """The gradients of a sum of variables with respect to others, to be fetched.

    Args:
      targets: a variable of one float, or several of any shape, whose elements are summed.
      inputs: variables or parameters.
      target_gradients: not supported; multiply the targets before.
      no_grad_set: accepted for programs written for Fluid, but has no effect: set `stop_gradient` of the variables.

    Returns:
      One for each of the inputs.

    Raises:
      ArgumentError: `target_gradients` is given.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     fluid.gradients(fluid.layers.reduce_sum(x * x), x)
      [Variable(x@GRAD: float32[-1, 2])]
    """
    del no_grad_set
    if target_gradients is not None:
        raise errors.ArgumentError("gradients(target_gradients=) is not here; multiply: fluid.gradients(y * weight, x)")
    several = _listed(targets)
    program = several[0].program
    sums = [program.apply(layers.reduce_sum, (target,)) for target in several]
    program.first = sums[0] if len(sums) == 1 else program.apply(layers.sums, (sums,))
    return [Gradient(v) for v in _listed(inputs)]


calc_gradient = gradients


def pairs_of(
    program: Program, parameters: Sequence[Variable | str] | None, excluded: Sequence[str]
) -> list[tuple[Variable, Gradient]]:
    """Pairs of each parameter and its gradient.

    Args:
      program: the program.
      parameters: those that are meant, by default all that are trainable.
      excluded: names of those to leave out.
    """
    every: Sequence[Persistent] = [v for v in program.all_parameters() if v.trainable]
    wanted: list[Any] = list(every) if parameters is None else [program.var(_name(item)) for item in parameters]
    return [(v, Gradient(v)) for v in wanted if v.name not in excluded]


def _listed(given: Variable | Sequence[Variable]) -> list[Variable]:
    return [given] if isinstance(given, Variable) else list(given)


def _name(item: Variable | str) -> str:
    return item if isinstance(item, str) else item.name
