"""Gradients of the variables of a recorded program: `append_backward` and `gradients`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import dense
from fluid.runtime.fetch import GRAD
from fluid.static import unique_name
from fluid.static.tape.calls import Environment, inside, minimized, outer_environment
from fluid.static.tape.program import Program
from fluid.static.tape.variable import SEQUENCES, Persistent, Variable, dense_of

__all__ = ["append_backward", "calc_gradient", "gradients"]


class Gradient(Variable):
    """The gradient of a loss with respect to a variable; `Executor.run` can fetch it, but no layer can read it.

    Attributes:
      of: the variable with respect to which the loss is differentiated.
      loss: the loss.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     [gradient.name for parameter, gradient in fluid.backward.append_backward(loss)]
      ['fc_0.w_0@GRAD', 'fc_0.b_0@GRAD']
    """

    def __init__(self, of: Variable, loss: Variable | None):
        super().__init__(of.program, of.name + GRAD, of.structs)
        self.of = of
        self.loss = loss

    def held(self) -> Any:
        """Raise a ProgramError, because layers cannot read a Gradient."""
        raise errors.ProgramError(
            f"{self.name!r} can be fetched, and no layer can read it; use fluid.gradients(loss, parameter), or clip "
            f"gradients with fluid.clip.set_gradient_clip(...), and let optimizer.minimize(loss) apply them"
        )


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Sequence[Variable | str] | None = None,
    callbacks: Any = None,
) -> list[tuple[Variable, Gradient]]:
    """Let `Executor.run` fetch the gradients of a loss with respect to parameters.

    Args:
      loss: a variable that holds one float.
      parameter_list: variables or names of parameters; by default all trainable parameters.
      no_grad_set: variables or names of parameters to leave out; feeds, such as labels, are ignored.
      callbacks: accepted for programs written for Fluid, but has no effect: no gradient ops are created.

    Returns:
      A list of pairs `(parameter, gradient)`.

    Raises:
      ArgumentError: `no_grad_set` holds a variable that is neither a parameter nor a feed.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.backward.append_backward(loss, parameter_list=["fc_0.w_0"])
      [(Variable(fc_0.w_0: float32[2, 1]), Variable(fc_0.w_0@GRAD: float32[2, 1]))]
    """
    del callbacks
    excluded = excluded_parameters("append_backward", loss.program, no_grad_set)
    loss.program.first = loss
    return pairs_of(loss, parameter_list, excluded)


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Any = None,
    no_grad_set: Sequence[Variable | str] | None = None,
) -> list[Variable]:
    """Return the gradients of the sum of all elements of `targets` with respect to `inputs`, for use in layers.

    Args:
      targets: one or several float variables.
      inputs: variables or parameters.
      target_gradients: not supported; instead, multiply each target by its factor.
      no_grad_set: variables, or their names, through which no gradient flows.

    Returns:
      One variable for each of the inputs.

    Raises:
      ArgumentError: `target_gradients` is given.
      UnknownNameError: a name in `no_grad_set` is the name of no variable.
      ProgramError: the call is inside the block of a loop or branch.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     fluid.gradients(fluid.layers.reduce_sum(x * x), x)
      [Variable(x@GRAD_0: float32[-1, 2])]
    """
    if target_gradients is not None:
        raise errors.ArgumentError("gradients(target_gradients=) is not here; multiply: fluid.gradients(y * weight, x)")
    several = _listed(targets)
    given = _listed(inputs)
    program = several[0].program
    ends = [program.var(_name(item)) for item in no_grad_set or ()]
    made = [program.new_variable(unique_name.generate(f"{v.name}{GRAD}")) for v in given]
    program.apply(_Differentiated(program, several, given, ends), into=made)
    return list(made)


class _Differentiated:
    """A function that computes gradients while a program runs.

    It runs the recorded layer calls again as a function of `inputs`, and JAX differentiates that function.
    """

    def __init__(
        self, program: Program, targets: Sequence[Variable], inputs: Sequence[Variable], ends: Sequence[Variable]
    ):
        if program.inside_block:
            raise errors.ProgramError("fluid.gradients stands in a block; call it behind the loop or branch")
        self._targets = targets
        self._inputs = inputs
        self._ends = frozenset(ends)
        # The gradient treats the inputs as independent variables, so calls that compute an input are not run again.
        self._calls = [
            call for call in program.ops if call.function is not minimized and not set(call.outputs) & set(inputs)
        ]
        self.captures = tuple(program.list_vars())

    def __call__(self) -> list[Any]:
        """Return a list with one gradient for each input variable."""
        outer = outer_environment("fluid.gradients")
        held = [outer[v] for v in self._inputs]
        found = jax.grad(self._total)([dense_of(value) for value in held], held, outer)
        return [_with_data(value, gradient) for value, gradient in zip(held, found, strict=True)]

    def _total(self, data: list[Any], held: list[Any], outer: Environment) -> Any:
        """Compute the targets from new values of the inputs, and return the sum of all elements, for `jax.grad`."""
        pairs = list(zip(self._inputs, map(_with_data, held, data), strict=True))
        frame = core.current_frame("fluid.gradients")
        child = core.inner_frame(frame)
        parameters = {v.name: value for v, value in pairs if isinstance(v, Persistent)}
        child.given.parameters = {**child.given.parameters, **parameters}
        with core.running(child), inside(Environment(outer)) as environment:
            for variable, value in pairs:
                environment[variable] = value
            for call in self._calls:
                call.run(environment)
                for variable in self._ends.intersection(call.outputs):
                    environment[variable] = jax.lax.stop_gradient(environment[variable])
            return sum(jnp.sum(dense(environment[target])) for target in self._targets)


def _with_data(value: Any, data: Any) -> Any:
    return value.with_data(data) if isinstance(value, SEQUENCES) else data


calc_gradient = gradients


def excluded_parameters(caller: str, program: Program, no_grad_set: Sequence[Variable | str] | None) -> list[str]:
    """Return the names of the parameters in `no_grad_set`; ignore names of feeds (inputs of the program).

    Raises:
      ArgumentError: a variable in `no_grad_set` is neither a parameter nor a feed.
    """
    names = [_name(item) for item in no_grad_set or ()]
    known = {v.name for v in program.all_parameters()}
    if others := [name for name in names if name not in known and name not in program.feeds]:
        raise errors.ArgumentError(
            f"{caller}(no_grad_set=): {', '.join(others)} is no parameter; where gradients shall end say "
            f"variable.stop_gradient = True"
        )
    return [name for name in names if name in known]


def pairs_of(
    loss: Variable, parameters: Sequence[Variable | str] | None, excluded: Sequence[str]
) -> list[tuple[Variable, Gradient]]:
    """Return a list of pairs `(parameter, gradient)`, without the excluded parameters."""
    program: Program = loss.program
    every: Sequence[Persistent] = [v for v in program.all_parameters() if v.trainable]
    wanted: list[Any] = list(every) if parameters is None else [program.var(_name(item)) for item in parameters]
    return [(v, Gradient(v, loss)) for v in wanted if v.name not in excluded]


def _listed(given: Variable | Sequence[Variable]) -> list[Variable]:
    return [given] if isinstance(given, Variable) else list(given)


def _name(item: Variable | str) -> str:
    return item if isinstance(item, str) else item.name
