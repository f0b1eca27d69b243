"""Equation values: named values inside loops and branches, found in traced JAX equations."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid.core.equations import inner_jaxprs, is_literal, labelled, scan_counts

# `_EVALUATED`: primitives, such as `scan`, that call an inner function: a loop body or a branch. To read or replace
# values in the inner function, `_Evaluation` evaluates the equations of this function one by one.
_EVALUATED = ("scan", "cond", "checkpoint", "remat2")


def with_equation_values(
    apply: Callable[[Any], Any], variables: Any, wanted: Collection[str] | None = None
) -> tuple[Any, dict[str, Any]]:
    """Apply a function; return its result, and its named values inside loops and branches, by name."""
    closed, shapes = jax.make_jaxpr(apply, return_shape=True)(variables)
    evaluation = _Evaluation(_names(closed.jaxpr), wanted)
    # The evaluation is not jitted, because enclosing JAX transformations, such as vjp, must see each equation.
    results, values = evaluation.run(closed.jaxpr, closed.consts, jax.tree.leaves(variables))
    return jax.tree.unflatten(jax.tree.structure(shapes), results), values


def _names(jaxpr: Any) -> dict[int, str]:
    return {id(equation): name for equation in _evaluated(jaxpr) if (name := labelled(equation)) is not None}


def _evaluated(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr in order, and the equations in its loops, branches and `jax.checkpoint` calls."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name in _EVALUATED:
            for inner in inner_jaxprs(equation):
                yield from _evaluated(inner)


class _Evaluation:
    """An evaluator of the equations of a jaxpr that returns labelled values by name."""

    def __init__(self, names: Mapping[int, str], wanted: Collection[str] | None):
        self._names = {equation: name for equation, name in names.items() if wanted is None or name in wanted}

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the results of a jaxpr, and the requested intermediate values by name."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))
        values: dict[str, Any] = {}

        def read(variable: Any) -> Any:
            return variable.val if is_literal(variable) else known[variable]

        for equation in jaxpr.eqns:
            inputs = [read(v) for v in equation.invars]
            results, inside = self._results(jaxpr, equation, inputs)
            known |= zip(equation.outvars, results, strict=True)
            values |= inside
            if (name := self._names.get(id(equation))) is not None:
                values[name] = results[0]
        return [read(v) for v in jaxpr.outvars], values

    def _results(self, jaxpr: Any, equation: Any, inputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the results of one equation of a jaxpr, and the requested values of its loop or branches, by name."""
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


def _not_computed(shape: Any) -> Any:
    return jnp.full(shape.shape, jnp.nan if jnp.issubdtype(shape.dtype, jnp.inexact) else 0, shape.dtype)
