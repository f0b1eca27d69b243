"""Loops: `while_loop` and `scan`, of which each iteration is one run of a function that calls layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, is_sequence, layer
from fluid.layers.control.branch import truth
from fluid.layers.control.carry import check_alike, recorded, settled, shown
from fluid.layers.no_effect import no_effect


class _Loop(NamedTuple):
    """What goes from one iteration of a while loop to the next."""

    turn: Any
    go: Any
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
    """Run a function as long as a condition holds.

    Layers inside share their parameters over all iterations, moving averages move in each, and dropout draws anew.

    Args:
      cond: called with the loop variables; returns a bool `[]` or `[1]`.
      body: called with the loop variables; returns their new values, of the same structure, shapes and dtypes.
      loop_vars: the values that the loop starts with: a list of values, or of pytrees of values.
      is_test: accepted for programs written for Fluid, but has no effect: memory for a gradient is used only where one
        is computed.
      name: instead of `while_loop_N`.
      max_iterations: the loop ends after so many in any case. Only then has it a gradient, for which all of them take
        memory.

    Returns:
      The list of the loop variables behind the loop.

    Raises:
      ArgumentError: there are no loop variables, or `max_iterations` is no positive integer.
      ShapeError: the body returns something else than it was given.
      ProgramError: a gradient is asked for without `max_iterations`.

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
    _check_loop(this, loop_vars, max_iterations)
    start = settled(list(loop_vars))
    condition, step = (core.Body(function, start, "layers.while_loop") for function in (cond, body))

    def check(turn: Any, values: list[Any], states: dict[str, Any]) -> _Loop:
        go, changed = condition(states, turn, *values)
        return _Loop(turn, truth(this, go, "what cond returned"), values, {**states, **changed})

    def advance(loop: _Loop) -> _Loop:
        result, changed = step(loop.states, loop.turn, *loop.values)
        values = settled(list(result) if isinstance(result, list | tuple) else [result])
        check_alike(
            values,
            loop.values,
            f"{this.name}: the body was given {{expected}} and returned {{found}}; it returns its arguments in order, "
            f"with the same shapes and dtypes, as in body=lambda i, x: [i + 1, x * 2]",
        )
        return check(loop.turn + 1, values, {**loop.states, **changed})

    first = check(jnp.int32(0), start, {**condition.states(), **step.states()})
    if max_iterations is None:
        last = jax.lax.while_loop(lambda loop: loop.go, advance, first)
        last = last._replace(values=_one_way(this.name, last.values))
    else:
        last = jax.lax.fori_loop(
            0, max_iterations, lambda _, loop: jax.lax.cond(loop.go, advance, lambda same: same, loop), first
        )
    step.keep(last.states)
    return [recorded(this, value) for value in last.values]


@layer
def scan(
    function: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """Run a function over the slices of arrays, and carry a value from one to the next.

    Layers inside share their parameters over all steps, moving averages move in each, and dropout draws anew. For
    sequences of different lengths there are recurrent layers, such as `layers.dynamic_gru`.

    Args:
      function: `function(carry, x) -> (carry, y)`; each is a value, None, or any pytree of values.
      init: the first carry; the function must return carries of its structure, shapes and dtypes.
      xs: arrays `[steps, ...]`, of which the function is given one slice `[...]` at a time; None gives it None.
      length: the number of steps, needed when there are no `xs`.
      reverse: True runs from the last slice to the first; the `ys` stay in the order of the `xs`.
      name: instead of `scan_N`.

    Returns:
      The last carry, and the `ys` of all steps, `[steps, ...]`.

    Raises:
      ShapeError: the arrays have different numbers of steps, or the carry changes its structure, shapes or dtypes.
      ArgumentError: the number of steps is not known, or there are none.
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
    init, xs = settled(init), settled_slices(this, xs)
    count = count_steps(this, xs, length)
    body = core.Body(function, [init, first_slice(xs)], "layers.scan")

    def step(carried: Any, given: Any) -> Any:
        carry, states = carried
        turn, x = given
        result, states = body(states, turn, carry, x)
        result, y = pair_of(this, result, "scan", "lambda carry, x: (carry + x, None)")
        return (check_carry(this, "function", result, carry), states), settled(y)

    turns = jnp.arange(count, dtype=jnp.int32)
    (carry, states), ys = jax.lax.scan(step, (init, body.states()), (turns, xs), reverse=reverse)
    body.keep(states)
    return recorded(this, carry), recorded(this, ys)


def settled_slices(this: Layer, xs: Any) -> Any:
    """The arrays that a loop takes slices of.

    Raises:
      ShapeError: one is a sequence batch, or has no dimensions.
    """
    for value in jax.tree.leaves(xs, is_leaf=is_sequence):
        if is_sequence(value):
            raise errors.ShapeError(
                f"{this.name}: xs holds a sequence batch {describe(value)}; its rows have different lengths: use "
                f"layers.DynamicRNN or layers.dynamic_gru, or scan over layers.sequence_pad's array, time first"
            )
    xs = settled(xs)
    if any(x.ndim == 0 for x in jax.tree.leaves(xs)):
        raise errors.ShapeError(f"{this.name}: xs is {shown(xs)}; expected arrays [steps, ...]")
    return xs


def count_steps(this: Layer, xs: Any, length: int | None, argument: str = "length") -> int:
    """The number of steps that arrays and the argument agree on.

    Raises:
      ShapeError: they do not agree.
      ArgumentError: nothing says it, or it is 0.
    """
    counts = {x.shape[0] for x in jax.tree.leaves(xs)} | ({length} if length is not None else set())
    if len(counts) > 1:
        raise errors.ShapeError(
            f"{this.name}: xs is {shown(xs)} and {argument} is {length}; all must have the same number of steps, "
            f"as their first dimension"
        )
    if not counts or not isinstance(count := counts.pop(), int) or count < 1:
        raise errors.ArgumentError(
            f"{this.name}: {argument}={length!r} and xs={shown(xs)} give no number of steps; expected at least one, "
            f"as in {argument}=10"
        )
    return count


def first_slice(xs: Any) -> Any:
    """What a loop over slices is given first."""
    return jax.tree.map(lambda x: jax.lax.index_in_dim(x, 0, keepdims=False), xs)


def pair_of(this: Layer, result: Any, kind: str, example: str) -> Any:
    """Read what a function returned as `(carry, y)`.

    Raises:
      ArgumentTypeError: it is no pair.
    """
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise errors.ArgumentTypeError(
            f"{this.name}: the function returned {shown(result)}, expected a pair: what goes to the next step, and "
            f"what is collected, as in layers.{kind}({example}, ...)"
        )
    return result


def check_carry(this: Layer, what: str, found: Any, given: Any) -> Any:
    """The new carry, settled.

    Raises:
      ShapeError: it has not the structure, shapes and dtypes of the one before.
    """
    found = settled(found)
    check_alike(
        found,
        given,
        f"{this.name}: the {what} was given {{expected}} and returned {{found}}; what goes from one run to the next "
        f'keeps its structure, shapes and dtypes: begin with such a value, or use layers.cast(x, "float32")',
    )
    return found


def _check_loop(this: Layer, loop_vars: Any, max_iterations: Any) -> None:
    if not isinstance(loop_vars, list | tuple) or not loop_vars:
        raise errors.ArgumentError(
            f"{this.name}: loop_vars={loop_vars!r}; expected a list of at least one value, as in "
            f"layers.while_loop(cond, body, [i, x])"
        )
    known = isinstance(max_iterations, int) and not isinstance(max_iterations, bool) and max_iterations > 0
    if max_iterations is not None and not known:
        raise errors.ArgumentError(
            f"{this.name}: max_iterations={max_iterations!r}; expected a positive integer, as in max_iterations=100"
        )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _one_way(name: str, values: Any) -> Any:
    return values


def _forward(name: str, values: Any) -> Any:
    return values, None


def _backward(name: str, _: Any, cotangents: Any) -> Any:
    raise errors.ProgramError(
        f"{name} has no gradient, because how often it runs is not known; say how often at most: "
        f"layers.while_loop(cond, body, loop_vars, max_iterations=100), or use what it returns without a gradient: "
        f"jax.lax.stop_gradient(x)"
    )


_one_way.defvjp(_forward, _backward)
