"""Which parameters a program of mixed precision reads in half precision only, and can so be stored in it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fluid.artifact.signature import Computation
from fluid.core.equations import scan_counts

# These hand the numbers of their first operand on, so that it does not matter whether they are rounded before or after.
_MOVES = frozenset(
    {"broadcast_in_dim", "copy", "dynamic_slice", "gather", "reshape", "rev", "slice", "squeeze", "transpose"}
)


def stored_half(computation: Computation, example: tuple[Any, ...], dtype: str) -> set[str]:
    """Names of the float32 arrays of which a computation reads nothing but what is left of them in another dtype.

    Args:
      computation: what is computed.
      example: its arguments, or their shapes.
      dtype: "bfloat16", for example.
    """
    jaxpr = jax.make_jaxpr(computation)(*example).jaxpr
    leaves = jax.tree_util.tree_leaves_with_path(example)
    return {
        path[1].key
        for variable, (path, value) in zip(jaxpr.invars, leaves, strict=True)
        if path[0].idx == 0 and value.dtype == jnp.float32 and _converted(jaxpr, variable, dtype)
    }


def _converted(jaxpr: Any, variable: Any, dtype: str, returned: Callable[[int], bool] | None = None) -> bool:
    """Whether every use of a variable begins by converting it.

    Args:
      jaxpr: the equations.
      variable: of them.
      dtype: to which.
      returned: for a called function, whether a result of it is converted by its caller.
    """
    for index, result in enumerate(jaxpr.outvars):
        if result is variable and (returned is None or not returned(index)):
            return False
    return all(
        _use_converts(jaxpr, equation, position, dtype, returned)
        for equation in jaxpr.eqns
        for position, operand in enumerate(equation.invars)
        if operand is variable
    )


def _use_converts(jaxpr: Any, equation: Any, position: int, dtype: str, returned: Callable[[int], bool] | None) -> bool:
    kind, parameters = equation.primitive.name, equation.params
    outside = lambda index: _converted(jaxpr, equation.outvars[index], dtype, returned)  # noqa: E731
    if kind == "convert_element_type":
        return bool(parameters["new_dtype"] == jnp.dtype(dtype))
    if kind in _MOVES and position == 0:
        return outside(0)
    consts, carried = scan_counts(equation) if kind == "scan" else (0, 0)
    if kind == "scan" and not consts <= position < consts + carried:
        body = parameters["jaxpr"].jaxpr
        return _converted(body, body.invars[position], dtype)
    if kind == "while":
        return _constant_converts(parameters, position, dtype)
    if kind == "cond" and position > 0:
        return all(_converted(b.jaxpr, b.jaxpr.invars[position - 1], dtype, outside) for b in parameters["branches"])
    inner = parameters.get("call_jaxpr") or parameters.get("jaxpr")
    if kind == "scan" or inner is None:
        return False
    inner = getattr(inner, "jaxpr", inner)
    return _converted(inner, inner.invars[position], dtype, outside)


def _constant_converts(parameters: Mapping[str, Any], position: int, dtype: str) -> bool:
    """Whether a `while` loop, which carries its other operands from step to step, converts one that stays the same."""
    for part, count in (("cond", parameters["cond_nconsts"]), ("body", parameters["body_nconsts"])):
        if position < count:
            jaxpr = parameters[f"{part}_jaxpr"].jaxpr
            return _converted(jaxpr, jaxpr.invars[position], dtype)
        position -= count
    return False
