"""Zeros: a check for two weights of zeros in a row, whose units stay equal in training."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fluid.core.equations import called, is_literal
from fluid.core.frame import ParameterSpec

_LAYOUT = frozenset({"reshape", "transpose", "squeeze", "convert_element_type", "copy"})
_WEIGHT, _DEAD, _ALIVE = "weight", "dead", ("alive", "")


def stacked_zeros(
    jaxpr: Any, parameters: Mapping[str, Any], specs: Mapping[str, ParameterSpec], moving: Collection[Any]
) -> tuple[str, str] | None:
    """Return the names of two weights of zeros, if the second weight sees the data only through the first; else None.

    The first weight has no gradient while the second weight is 0, and later its units stay equal to each other. A zero
    weight beside another path for the data, as at the end of a residual block, does not count.

    Args:
      jaxpr: the equations of a program.
      parameters: the variables of the parameters, by name.
      specs: the ParameterSpecs, by name.
      moving: the variables that differ from step to step, such as feeds and parameters.
    """
    constant = {n: v for n, v in parameters.items() if _is_constant(specs[n])}
    matrices = [n for n in constant if specs[n].trainable and len(specs[n].shape) > 1 and _is_zero(specs[n])]
    if len(matrices) < 2:
        return None
    kinds = {v: _ALIVE for v in set(moving) - set(constant.values())}
    return _found(jaxpr, kinds | {constant[n]: (_WEIGHT, n) for n in matrices}, specs)


def _found(jaxpr: Any, kinds: dict[Any, tuple[str, str]], specs: Mapping[str, ParameterSpec]) -> tuple[str, str] | None:
    """Return the first pair of zero weights in the order of the equations, or None.

    Args:
      jaxpr: the equations.
      kinds: for each variable its kind and the name of a weight. The kind is "weight" for a zero weight, also in
        another layout, "dead" for a variable that depends on the data only through the named zero weight, and "alive"
        for other variables. The function adds the kinds of results.
      specs: the ParameterSpecs, by name.
    """
    for equation in jaxpr.eqns:
        inputs = [None if is_literal(v) else kinds.get(v) for v in equation.invars]
        known = [kind for kind in inputs if kind is not None]
        weight, before = (next((name for kind, name in known if kind == each), None) for each in (_WEIGHT, _DEAD))
        primitive = equation.primitive.name
        inner = called(equation)
        result: tuple[str, str] | None = None
        if inner is not None:  # a separate dict, because other calls of the function share its variables
            inside = {v: kind for v, kind in zip(inner.invars, inputs, strict=True) if kind is not None}
            if pair := _found(inner, inside, specs):
                return pair
            results = [None if is_literal(v) else inside.get(v) for v in inner.outvars]
            kinds |= {v: kind for v, kind in zip(equation.outvars, results, strict=True) if kind is not None}
        elif weight is not None and primitive in ("dot_general", "conv_general_dilated"):
            if before is not None and _units(specs[before]) > 1:
                return before, weight
            result = (_DEAD, weight)
        elif _ALIVE in known:
            result = _ALIVE
        elif before is not None:
            result = (_DEAD, before)
        elif weight is not None and primitive in _LAYOUT:
            result = (_WEIGHT, weight)
        if result is not None:
            kinds |= dict.fromkeys(equation.outvars, result)
    return None


def _units(spec: ParameterSpec) -> int:
    """Return the number of outputs of a weight `[in, out]` or a filter `[out, in, ...]`."""
    return spec.shape[1] if len(spec.shape) == 2 else spec.shape[0]


def _is_constant(spec: ParameterSpec) -> bool:
    return np.ndim(getattr(spec.initializer, "value", np.zeros(2))) == 0 or _is_zero(spec)


def _is_zero(spec: ParameterSpec) -> bool:
    """Return whether a parameter starts as zeros, by `Constant`, `NumpyArray` or `jax.nn.initializers.zeros`."""
    value = getattr(spec.initializer, "value", None)
    return spec.initializer is jax.nn.initializers.zeros or (value is not None and not np.any(value))
