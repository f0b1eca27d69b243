"""Loop layers: `while_loop` and `scan` repeat a Python function that may call layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, is_sequence, layer
from fluid.layers.control.branch import check_same_specs, describe_tree, record_outputs, scalar_bool, strongly_typed
from fluid.layers.no_effect import no_effect


class _Loop(NamedTuple):
    """The carry of a while loop.

    Attributes:
      iteration: int32 `[]`: the number of finished iterations.
      proceed: bool `[]`: the result of the condition for `values`; if true, the body runs again.
      values: the loop variables.
      states: a dict from name to value of the program states, such as moving averages, that the condition or the body
        changes.
    """

    iteration: jax.Array
    proceed: jax.Array
    values: list[Any]
    states: dict[str, Any]


@layer
@no_effect(is_test="memory for a gradient is used only where one is computed")
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
    max_iterations: int | None = None,
) -> list[Any]:
    """Run the function `body` repeatedly, as long as the function `cond` returns true.

    Layers in both functions have one set of parameters for all iterations. Each iteration updates moving averages, and
    draws new dropout masks.

    Args:
      cond: called with the loop variables; returns a bool `[]` or `[1]`.
      body: called with the loop variables; returns their new values, with equal structure, shapes and dtypes.
      loop_vars: the initial values: a list of values, or of pytrees of values.
      is_test: accepted for programs written for Fluid, but has no effect: memory for a gradient is used only where one
        is computed.
      name: name of the layer; by default `while_loop_N`.
      max_iterations: the largest number of iterations; None for no limit. A gradient requires this number, and memory
        for this number of iterations.

    Returns:
      The list of the loop variables after the last iteration.

    Raises:
      ArgumentError: there are no loop variables, or `max_iterations` is not a positive integer.
      ShapeError: the body returns another structure, other shapes or other dtypes than its arguments have.
      ProgramError: a gradient is requested without `max_iterations`.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     halved = fluid.layers.while_loop(lambda v: fluid.layers.reduce_max(v) > 1.0, lambda v: [v / 2], [x])
      ...     return halved[0]
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("while_loop", name)
    _check_loop_vars(this, loop_vars)
    if max_iterations is not None:
        max_iterations = core.whole_number(this.name, "max_iterations", max_iterations)
    start = strongly_typed(list(loop_vars))
    condition = core.Body(cond, start, "layers.while_loop")
    step = core.Body(body, start, "layers.while_loop")

    def check_condition(iteration: Any, values: list[Any], states: dict[str, Any]) -> _Loop:
        proceed, changed = condition(states, iteration, *values)
        return _Loop(iteration, scalar_bool(this, proceed, "what cond returned"), values, {**states, **changed})

    def iterate(loop: _Loop) -> _Loop:
        result, changed = step(loop.states, loop.iteration, *loop.values)
        values = strongly_typed(list(result) if isinstance(result, list | tuple) else [result])
        check_same_specs(
            values,
            loop.values,
            f"{this.name}: the body was given {{expected}} and returned {{found}}; it returns its arguments in order, "
            f"with the same shapes and dtypes, as in body=lambda i, x: [i + 1, x * 2]",
        )
        return check_condition(loop.iteration + 1, values, {**loop.states, **changed})

    first = check_condition(jnp.int32(0), start, {**condition.states(), **step.states()})
    if max_iterations is None:
        last = jax.lax.while_loop(lambda loop: loop.proceed, iterate, first)
        last = last._replace(values=_without_gradient(this.name, last.values))
    else:
        last = jax.lax.fori_loop(
            0, max_iterations, lambda _, loop: jax.lax.cond(loop.proceed, iterate, lambda same: same, loop), first
        )
    step.keep(last.states)
    return [record_outputs(this, value) for value in last.values]


@layer
def scan(
    function: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Run a function on each slice of arrays along their first dimension, and pass a carry from step to step.

    Layers in the function have one set of parameters for all steps. Each step updates moving averages, and draws new
    dropout masks. For sequences of different lengths use recurrent layers, such as `layers.dynamic_gru`.

    Args:
      function: `function(carry, x) -> (carry, y)`; `carry`, `x` and `y` are each a value, None, or a pytree of values.
      init: the first carry; the function must return carries with the structure, shapes and dtypes of `init`.
      xs: a pytree of arrays `[steps, ...]`; the function is called with one slice `[...]` at a time. Without `xs` the
        function is called with None.
      length: the number of steps, required without `xs`.
      reverse: True runs from the last slice to the first; the `ys` stay in the order of the `xs`.
      name: name of the layer; by default `scan_N`.

    Returns:
      The last carry, and the `ys` of all steps, `[steps, ...]`.

    Raises:
      ShapeError: the arrays have different numbers of steps, or the carry changes its structure, shapes or dtypes.
      ArgumentError: neither `xs` nor `length` gives the number of steps, or there are no steps.
      ArgumentTypeError: the function does not return a pair.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[5, 3])
      ...     steps = fluid.layers.transpose(x, [1, 0, 2])
      ...     total, totals = fluid.layers.scan(lambda so_far, step: (so_far + step,) * 2, steps[0] * 0, steps)
      ...     return total, fluid.layers.transpose(totals, [1, 0, 2])
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 3] float32[batch, 5, 3]
    """
    this = Layer("scan", name)
    init = strongly_typed(init)
    xs = arrays_of_slices(this, xs)
    count = count_steps(this, xs, length)
    body = core.Body(function, [init, first_slice(xs)], "layers.scan")

    def step(carried: Any, given: Any) -> Any:
        carry, states = carried
        number, x = given
        result, states = body(states, number, carry, x)
        new_carry, y = check_pair(this, result, "scan", "lambda carry, x: (carry + x, None)")
        return (check_carry(this, "function", new_carry, carry), states), strongly_typed(y)

    numbers = jnp.arange(count, dtype=jnp.int32)
    (carry, states), ys = jax.lax.scan(step, (init, body.states()), (numbers, xs), reverse=reverse)
    body.keep(states)
    return record_outputs(this, carry), record_outputs(this, ys)


def arrays_of_slices(this: Layer, xs: Any) -> Any:
    """Check the argument `xs` of a loop, and return it as a pytree of arrays `[steps, ...]`.

    Raises:
      ShapeError: a leaf of the pytree is a sequence batch, or has no dimensions.
    """
    for value in jax.tree.leaves(xs, is_leaf=is_sequence):
        if is_sequence(value):
            raise errors.ShapeError(
                f"{this.name}: xs holds a sequence batch {describe(value)}; its rows have different lengths: use "
                f"layers.DynamicRNN or layers.dynamic_gru, or scan over layers.sequence_pad's array, time first"
            )
    xs = strongly_typed(xs)
    if any(x.ndim == 0 for x in jax.tree.leaves(xs)):
        raise errors.ShapeError(f"{this.name}: xs is {describe_tree(xs)}; expected arrays [steps, ...]")
    return xs


def count_steps(this: Layer, xs: Any, length: int | None, argument: str = "length") -> int:
    """Return the number of steps of a loop.

    Args:
      xs: a pytree of arrays `[steps, ...]`, or None.

    Raises:
      ShapeError: the first dimensions of the arrays differ from each other or from `length`.
      ArgumentError: there are neither arrays nor a `length`, or `length` is not a positive integer.
    """
    counts = {x.shape[0] for x in jax.tree.leaves(xs)}
    if length is not None:
        counts.add(core.whole_number(this.name, argument, length))
    if len(counts) > 1:
        raise errors.ShapeError(
            f"{this.name}: xs is {describe_tree(xs)} and {argument} is {length}; all must have the same number of "
            f"steps, as their first dimension"
        )
    if not counts or counts == {0}:
        raise errors.ArgumentError(
            f"{this.name}: {argument}={length!r} and xs={describe_tree(xs)} give no number of steps; expected at least "
            f"one, as in {argument}=10"
        )
    return counts.pop()


def first_slice(xs: Any) -> Any:
    """Return a pytree with the first slice `[...]` of each array `[steps, ...]` in the pytree `xs`."""
    return jax.tree.map(lambda x: jax.lax.index_in_dim(x, 0, keepdims=False), xs)


def check_pair(this: Layer, result: Any, kind: str, example: str) -> Any:
    """Check that the function of a loop returned a pair, such as `(carry, y)`, and return the pair.

    Raises:
      ArgumentTypeError: the result is not a pair.
    """
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise errors.ArgumentTypeError(
            f"{this.name}: the function returned {describe_tree(result)}, expected a pair: what goes to the next step, "
            f"and what is collected, as in layers.{kind}({example}, ...)"
        )
    return result


def check_carry(this: Layer, what: str, found: Any, given: Any) -> Any:
    """Check that a new carry of a loop matches the previous one, and return it as arrays whose dtypes are not weak.

    Raises:
      ShapeError: the new carry has another structure, other shapes or other dtypes than the previous carry.
    """
    found = strongly_typed(found)
    check_same_specs(
        found,
        given,
        f"{this.name}: the {what} was given {{expected}} and returned {{found}}; what goes from one run to the next "
        f'keeps its structure, shapes and dtypes: begin with such a value, or use layers.cast(x, "float32")',
    )
    return found


def _check_loop_vars(this: Layer, loop_vars: Any) -> None:
    if not isinstance(loop_vars, list | tuple) or not loop_vars:
        raise errors.ArgumentError(
            f"{this.name}: loop_vars={loop_vars!r}; expected a list of at least one value, as in "
            f"layers.while_loop(cond, body, [i, x])"
        )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _without_gradient(name: str, values: Any) -> Any:
    return values


def _forward(name: str, values: Any) -> Any:
    return values, None


def _backward(name: str, _: Any, cotangents: Any) -> Any:
    raise errors.ProgramError(
        f"{name} has no gradient, because how often it runs is not known; say how often at most: "
        f"layers.while_loop(cond, body, loop_vars, max_iterations=100), or use what it returns without a gradient: "
        f"jax.lax.stop_gradient(x)"
    )


_without_gradient.defvjp(_forward, _backward)
