"""Equation values: results of operators, and named values inside loops and branches, found in traced JAX equations."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core.equations import frames, inner_jaxprs, is_literal, labelled, scan_counts
from fluid.core.frame import is_library

# `_OPERATORS`: for each JAX primitive or function that computes an operator such as `+`, Fluid's layer name for it.
_OPERATORS = {
    "add": "elementwise_add",
    "sub": "elementwise_sub",
    "mul": "elementwise_mul",
    "div": "elementwise_div",
    "pow": "elementwise_pow",
    "integer_pow": "elementwise_pow",
    "square": "elementwise_pow",
    "remainder": "elementwise_mod",
    "floor_divide": "elementwise_floordiv",
    "neg": "scale",
    "lt": "less_than",
    "le": "less_equal",
    "gt": "greater_than",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
# `_OPERATOR`: in a call stack, the name of the JAX function that runs an operator such as `+` begins with this text.
_OPERATOR = "_forward_operator_to_aval"
# `_EVALUATED`: primitives, such as `scan`, that call an inner function: a loop body or a branch. To read or replace
# values in the inner function, `_Evaluation` evaluates the equations of this function one by one.
_EVALUATED = ("scan", "cond", "checkpoint", "remat2")


def with_equation_values(
    apply: Callable[[Any], Any],
    variables: Any,
    taken: Collection[str],
    wanted: Collection[str] | None = None,
    replaced: Mapping[str, Any] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Apply a function; return its result, and its intermediate values by name.

    Intermediate values are results of operators such as `+`, and named values inside loops and branches.

    Args:
      apply: a pure function, which labels named values in loops and branches with `core.equations.label`.
      variables: the argument of `apply`.
      taken: names already in use, which are not given to results of operators.
      wanted: the names of the intermediate values to return; None for all.
      replaced: values that replace results of operators, by name.

    Returns:
      The result of the function, and the intermediate values by name. A value inside a loop has a leading dimension of
      iterations. A value in a branch that does not run is NaN, or 0 if it is an integer.

    Raises:
      FeedError: a replacement has another shape than the result of the operator, or is floating-point although the
        result holds integers.

    Example:
      >>> result, values = with_equation_values(lambda x: x * 3.0 + 1.0, jnp.float32(2), ())
      >>> float(result), {name: float(value) for name, value in values.items()}
      (7.0, {'elementwise_mul_0.tmp_0': 6.0, 'elementwise_add_0.tmp_0': 7.0})
    """
    closed, shapes = jax.make_jaxpr(apply, return_shape=True)(variables)
    evaluation = _Evaluation(_names(closed.jaxpr, taken), wanted, replaced or {})
    # The evaluation is not jitted, because enclosing JAX transformations, such as vjp, must see each equation.
    results, values = evaluation.run(closed.jaxpr, closed.consts, jax.tree.leaves(variables))
    return jax.tree.unflatten(jax.tree.structure(shapes), results), values


def _names(jaxpr: Any, taken: Collection[str]) -> dict[int, str]:
    """Return a dict from the `id` of an equation to the name of its result.

    The name is the label of the equation, or a new name if the equation comes from an operator in the user's code.
    """
    every = list(_evaluated(jaxpr))
    found = {id(equation): name for equation in every if (name := labelled(equation)) is not None}
    used = {*taken, *found.values()}
    for equation in every:
        if kind := _operator(equation):
            name = next(name for n in itertools.count() if (name := f"{kind}_{n}.tmp_0") not in used)
            used.add(name)
            found[id(equation)] = name
    return found


def _evaluated(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr in order, and the equations in its loops, branches and `jax.checkpoint` calls."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name in _EVALUATED:
            for inner in inner_jaxprs(equation):
                yield from _evaluated(inner)


def _operator(equation: Any) -> str | None:
    """Return the Fluid layer name of an operator in the user's code, such as "elementwise_add" for `+`.

    For an equation that does not come from an operator in the user's code, return None.
    """
    primitive = equation.primitive.name
    kind = _OPERATORS.get(equation.params.get("name") if primitive in ("jit", "pjit") else primitive)
    if kind is None:
        return None
    stack = frames(equation)
    user = next((i for i, frame in enumerate(stack) if not is_library(frame.file_name)), 0)
    return kind if user and stack[user - 1].function_name.startswith(_OPERATOR) else None


class _Evaluation:
    """An evaluator of the equations of a jaxpr that returns and replaces intermediate values by name.

    Args:
      names: the names of equations, by the `id` of the equation.
      wanted: the names of the values to return; None for all.
      replaced: values that replace results of operators, by name.
    """

    def __init__(self, names: Mapping[int, str], wanted: Collection[str] | None, replaced: Mapping[str, Any]):
        chosen = set(names.values()) if wanted is None else {*wanted, *replaced}
        self._names = {equation: name for equation, name in names.items() if name in chosen}
        self._wanted = chosen if wanted is None else set(wanted)
        self._replaced = replaced

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the results of a jaxpr, and the requested intermediate values by name."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))
        values: dict[str, Any] = {}

        def read(variable: Any) -> Any:
            return variable.val if is_literal(variable) else known[variable]

        for equation in jaxpr.eqns:
            inputs = [read(v) for v in equation.invars]
            name = self._names.get(id(equation))
            results, inside = self._results(jaxpr, equation, inputs, name)
            known |= zip(equation.outvars, results, strict=True)
            values |= inside
            if name in self._wanted:
                values[name] = results[0]
        return [read(v) for v in jaxpr.outvars], values

    def _results(
        self, jaxpr: Any, equation: Any, inputs: list[Any], name: str | None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the results of one equation of a jaxpr, and the requested values of its loop or branches, by name."""
        if name is not None and name in self._replaced:
            return [_replacement(name, self._replaced[name], equation.outvars[0].aval)], {}
        kind, params = equation.primitive.name, equation.params
        if not any(id(inner) in self._names for function in inner_jaxprs(equation) for inner in _evaluated(function)):
            return _bind(jaxpr, equation, inputs), {}
        if kind == "scan":
            return self._scan(equation, inputs)
        if kind == "cond":
            return self._cond(params["branches"], inputs)
        policy = {"policy": params["policy"], "prevent_cse": params["prevent_cse"]}
        again = jax.checkpoint(lambda *operands: self.run(params["jaxpr"], (), operands), **policy)
        found: tuple[list[Any], dict[str, Any]] = again(*inputs)
        return found

    def _scan(self, equation: Any, inputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        params = equation.params
        body = params["jaxpr"]
        constants, carried = scan_counts(equation)
        fixed, start, slices = inputs[:constants], inputs[constants:][:carried], inputs[constants + carried :]

        def step(carry: list[Any], given: list[Any]) -> tuple[list[Any], Any]:
            results, values = self.run(body.jaxpr, body.consts, [*fixed, *carry, *given])
            return results[:carried], (results[carried:], values)

        settings = {key: params[key] for key in ("length", "reverse", "unroll")}
        last, (stacked, values) = jax.lax.scan(step, start, slices, **settings)
        return [*last, *stacked], values

    def _cond(self, branches: Sequence[Any], inputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        index, *operands = inputs

        def run(branch: Any) -> Callable[..., Any]:
            return lambda *operands: self.run(branch.jaxpr, branch.consts, operands)

        shapes: dict[str, Any] = {}
        for branch in branches:
            shapes |= jax.eval_shape(run(branch), *operands)[1]
        absent = {name: _not_computed(shape) for name, shape in shapes.items()}

        def padded(branch: Any) -> Callable[..., Any]:
            def call(*operands: Any) -> Any:
                results, values = run(branch)(*operands)
                return results, {**absent, **values}

            return call

        found: tuple[list[Any], dict[str, Any]] = jax.lax.switch(index, list(map(padded, branches)), *operands)
        return found


def _bind(jaxpr: Any, equation: Any, inputs: list[Any]) -> list[Any]:
    """Evaluate one equation of a jaxpr on the arrays `inputs`, and return its results."""
    known = {v: value for v, value in zip(equation.invars, inputs, strict=True) if not is_literal(v)}
    one = jaxpr.replace(constvars=[], invars=list(known), eqns=[equation], outvars=equation.outvars)
    results: list[Any] = jax.core.eval_jaxpr(one, (), *known.values())
    return results


def _replacement(name: str, given: Any, array: Any) -> Any:
    """Return the user's replacement `given` in the shape and dtype of `array`; a scalar replaces every element."""
    if jnp.issubdtype(jnp.result_type(given), jnp.inexact) and not jnp.issubdtype(array.dtype, jnp.inexact):
        raise errors.FeedTypeError(
            f"the override of {name!r} holds floating-point numbers, expected {array.dtype}: fractions would be cut "
            f"off; feed={{{name!r}: value.astype('{array.dtype}')}}"
        )
    if jnp.ndim(given) and jnp.shape(given) != array.shape:
        raise errors.FeedError(
            f"the override of {name!r} has shape {list(jnp.shape(given))}, expected {list(array.shape)}, or a scalar; "
            f'feed={{"{name}": array}}'
        )
    return jnp.broadcast_to(jnp.asarray(given, array.dtype), array.shape)


def _not_computed(shape: Any) -> Any:
    """Return an array of NaN, or of 0 for integers; it replaces a value of a branch that does not run."""
    return jnp.full(shape.shape, jnp.nan if jnp.issubdtype(shape.dtype, jnp.inexact) else 0, shape.dtype)
