"""Conditional layers: `cond`, `case` and `switch_case` compute only the function that the data selects.

The module also has helpers for pytrees of values, which loops use too. The helpers convert weak dtypes, describe
pytrees in messages, compare pytrees, and record pytrees as outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, describe, layer


def strongly_typed(tree: Any) -> Any:
    """Convert the leaves of a pytree to arrays whose dtypes are not weak.

    In JAX, a Python number has a weak dtype, which an operation with another dtype changes. A loop requires that the
    dtypes of its carry do not change.
    """

    def strong(leaf: Any) -> Any:
        array = dense(leaf)
        return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array

    return jax.tree.map(strong, tree)


def describe_tree(tree: Any) -> str:
    """Return a description of a pytree for error messages, with the dtype and shape of each leaf."""
    return str(jax.tree.map(describe, tree)).replace("'", "")


def check_same_specs(found: Any, expected: Any, message: str) -> None:
    """Check that two pytrees of arrays have equal structures, shapes and dtypes.

    Raises:
      ShapeError: the pytrees differ in structure, shapes or dtypes.
    """
    specs: list[Any] = [
        jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), tree) for tree in (found, expected)
    ]
    if jax.tree.flatten(specs[0]) != jax.tree.flatten(specs[1]):
        raise errors.ShapeError(message.format(found=describe_tree(found), expected=describe_tree(expected)))


def record_outputs(this: Layer, tree: Any) -> Any:
    """Record each array or sequence batch in a pytree as a named output of the layer; return the recorded pytree."""
    batches = core.SequenceBatch | core.NestedSequenceBatch
    return jax.tree.map(this.output, tree, is_leaf=lambda value: isinstance(value, batches))


@layer
def cond(
    pred: Value | bool,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Run one of two functions, selected by the bool `pred`, and return its result.

    Both functions are traced, so both create their parameters. At run time, only the selected function is computed, and
    only this function changes moving averages and other states. To select values for each example separately, use
    `layers.where`.

    Args:
      pred: bool, `[]` or `[1]`.
      true_fn: a function without arguments, computed if `pred` is true. It can use values from outside the
        function. None stands for a function that returns None.
      false_fn: a function without arguments, computed if `pred` is false. It must return the structure, shapes and
        dtypes of `true_fn`.
      name: name of the layer; by default `cond_N`.

    Returns:
      The result of the selected function: a value, or any pytree of values.

    Raises:
      ShapeError: `pred` is more than one bool, or the functions return different structures, shapes or dtypes.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     wide = fluid.layers.reduce_max(x) > 1.0
      ...     return fluid.layers.cond(wide, lambda: x / fluid.layers.reduce_max(x), lambda: x)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("cond", name)
    functions = {
        "true_fn": _return_none if true_fn is None else true_fn,
        "false_fn": _return_none if false_fn is None else false_fn,
    }
    for argument, function in functions.items():
        if not callable(function):
            raise errors.ArgumentTypeError(
                f"{this.name}: {argument} is {describe(function)}, expected a function without arguments: "
                f"layers.cond(pred, lambda: x, lambda: y); or choose between values: layers.where(pred, x, y)"
            )
    taken = jnp.where(scalar_bool(this, pred, "pred"), 0, 1)
    return _run_branch(this, "cond", taken, functions)


@layer
def case(
    pred_fn_pairs: Sequence[tuple[Value | bool, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Run the function that is paired with the first true condition, and return its result.

    All functions are traced, but at run time only the selected function is computed.

    Args:
      pred_fn_pairs: a list of pairs `(condition, function)`. A condition is a bool `[]` or `[1]`; a function has no
        arguments.
      default: the function to run if no condition is true; by default the function of the last pair.
      name: name of the layer; by default `case_N`.

    Returns:
      The result of the selected function: a value, or any pytree of values.

    Raises:
      ArgumentTypeError: `pred_fn_pairs` is not a list of pairs `(condition, function)`.
      ShapeError: the functions return different structures, shapes or dtypes.

    Example:
      >>> import fluid
      >>> def program():
      ...     step = fluid.layers.data("step", shape=[1], append_batch_size=False)
      ...     return fluid.layers.case([(step < 100, lambda: 0.1), (step < 200, lambda: 0.01)], lambda: 0.001)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("case", name)
    pairs = list(pred_fn_pairs) if isinstance(pred_fn_pairs, list | tuple) else []
    if not pairs or any(not isinstance(p, list | tuple) or len(p) != 2 or not callable(p[1]) for p in pairs):
        raise errors.ArgumentTypeError(
            f"{this.name}: pred_fn_pairs={pred_fn_pairs!r}; expected pairs of a condition and a function without "
            f"arguments, as in layers.case([(x < 1, lambda: a), (x < 2, lambda: b)], default=lambda: c)"
        )
    preds = [scalar_bool(this, pred, f"condition {i}") for i, (pred, _) in enumerate(pairs)]
    functions = {f"function {i}": function for i, (_, function) in enumerate(pairs)}
    functions["default"] = default or pairs[-1][1]
    return _run_branch(this, "case", jnp.argmax(jnp.stack([*preds, jnp.bool_(True)])), functions)


@layer
def switch_case(
    branch_index: Value | int,
    branch_fns: Mapping[int, Callable[[], Any]] | Sequence[Any],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Run the function whose number equals `branch_index`, and return its result.

    All functions are traced, but at run time only the selected function is computed.

    Args:
      branch_index: integer, `[]` or `[1]`.
      branch_fns: functions without arguments: a dict `{number: function}`, a list of pairs `(number, function)`, or a
        list of functions, which get the numbers 0, 1, 2, ...
      default: the function for every other value of `branch_index`; by default the function with the largest number.
      name: name of the layer; by default `switch_case_N`.

    Returns:
      The result of the selected function: a value, or any pytree of values.

    Raises:
      ArgumentTypeError: `branch_fns` does not describe functions with numbers, or `branch_index` is not an integer.
      ArgumentError: two functions have the same number.
      ShapeError: the functions return different structures, shapes or dtypes.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     kind = fluid.layers.data("kind", shape=[1], dtype="int64", append_batch_size=False)
      ...     return fluid.layers.switch_case(kind, {1: lambda: x, 5: lambda: x * 2}, default=lambda: x * 0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("switch_case", name)
    numbered = _by_number(this, branch_fns)
    index = _scalar(this, array_of(this, branch_index), "branch_index")
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise errors.ArgumentTypeError(
            f"{this.name}: branch_index is {describe(branch_index)}, expected an integer; as in "
            f'layers.switch_case(layers.cast(index, "int32"), branch_fns)'
        )
    functions = {f"function {number}": function for number, function in numbered.items()}
    functions["default"] = default or numbered[max(numbered)]
    hits = [index == number for number in numbered]
    return _run_branch(this, "switch_case", jnp.argmax(jnp.stack([*hits, jnp.bool_(True)])), functions)


def scalar_bool(this: Layer, value: Any, what: str) -> jax.Array:
    """Check that a value is a single bool, `[]` or `[1]`, and return it as an array `[]`.

    Raises:
      ShapeError: the value does not have exactly one element.
      ArgumentTypeError: the dtype of the value is not bool.
    """
    array = array_of(this, value)
    if array.dtype != bool:
        raise errors.ArgumentTypeError(
            f"{this.name}: {what} is {describe(value)}, expected a bool; compare it with something, as in {what} > 0"
        )
    return _scalar(this, array, what)


def _scalar(this: Layer, array: Any, what: str) -> jax.Array:
    """Check that an array has one element, and return it as an array `[]`."""
    if array.size != 1:
        raise errors.ShapeError(
            f"{this.name}: {what} is {describe(array)}, expected one value, [] or [1]: reduce it first, as in "
            f"layers.reduce_any(x); to choose for each example use layers.where(condition, x, y)"
        )
    return array.reshape(())


def _return_none() -> None:
    return None


def _by_number(this: Layer, given: Any) -> dict[int, Callable[[], Any]]:
    """Convert the argument `branch_fns` of `switch_case` to a dict from number to function."""
    pairs: list[Any] = []
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list | tuple):
        pairs = list(enumerate(given)) if all(callable(f) for f in given) else list(given)
    good = [
        isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[0], int | np.integer) and callable(p[1])
        for p in pairs
    ]
    if not good or not all(good):
        raise errors.ArgumentTypeError(
            f"{this.name}: branch_fns={given!r}; expected functions without arguments by number, as in "
            f"layers.switch_case(index, {{1: lambda: a, 2: lambda: b}}, default=lambda: c)"
        )
    numbered = {int(number): function for number, function in pairs}
    if len(numbered) < len(pairs):
        raise errors.ArgumentError(
            f"{this.name}: branch_fns has the numbers {[int(n) for n, _ in pairs]}; each may stand there once"
        )
    return numbered


def _run_branch(this: Layer, kind: str, taken: Any, functions: Mapping[str, Callable[[], Any]]) -> Any:
    """Run one of several functions, selected at run time by the index `taken`; the functions may call layers.

    Args:
      taken: int32 `[]`: the index of the function to run.
    """
    bodies = {label: core.Body(function, [], f"layers.{kind}") for label, function in functions.items()}
    states = {name: value for body in bodies.values() for name, value in body.states().items()}
    results: dict[str, Any] = {}

    def branch(label: str) -> Callable[[Any], Any]:
        def run(states: dict[str, Any]) -> Any:
            result, changed = bodies[label](states, None)
            results[label] = strongly_typed(result)
            first = next(iter(results))
            check_same_specs(
                results[label],
                results[first],
                f"{this.name}: {first} returned {{expected}}, {label} returned {{found}}; all must return the same "
                f'structure, shapes and dtypes; layers.reshape(x, shape) or layers.cast(x, "float32") makes them so',
            )
            return results[label], {**states, **changed}

        return run

    result, states = jax.lax.switch(taken, [branch(label) for label in bodies], states)
    next(iter(bodies.values())).keep(states)
    return record_outputs(this, result)
