"""Batch normalisation folded into the convolution or matrix product before it: nothing of it is left to compute.

In test mode a normalisation scales and shifts each channel by numbers that depend on parameters alone. A product with
parameters can do so itself: `(x * W + b - mean) * scale + shift` is `x * W' + b'`.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.artifact.signature import Computation
from fluid.artifact.source import Source
from fluid.core.equations import unneeded

# What a product computes with instead: takes a name, the folded weight and the shift, and returns those to use.
Take = Callable[[str, np.ndarray, np.ndarray], tuple[Any, Any]]

# What a parameter goes through to the product, after which it still has its name.
_KEEP_A_NAME = ("convert_element_type", "reshape", "transpose")
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


def fold(source: Source, arrays: Mapping[str, np.ndarray]) -> tuple[Computation, dict[str, np.ndarray]]:
    """The same computation, with folded products.

    Args:
      source: what is computed.
      arrays: its parameters and states, by name.

    Returns:
      A computation whose results differ by rounding, and its arrays: those of the source that it still needs, and for
      each folded weight `NAME@folded` and `NAME@shift`.
    """
    folded: dict[str, np.ndarray] = {}

    def collect(name: str, weight: np.ndarray, shift: np.ndarray) -> tuple[Any, Any]:
        folded[f"{name}@folded"] = weight
        folded[f"{name}@shift"] = shift
        return weight, shift

    dropped = unneeded(functools.partial(_computed, source, arrays, collect), *source.example())

    def computation(given: Mapping[str, Any], feeds: Mapping[str, Any], key: Any) -> list[Any]:
        # What became part of a weight is no argument.
        whole = {n: given[n] if n in given else jnp.zeros(array.shape, array.dtype) for n, array in arrays.items()}
        take: Take = lambda name, *_: (given[f"{name}@folded"], given[f"{name}@shift"])  # noqa: E731
        return _computed(source, arrays, take, whole, feeds, key)

    return computation, {n: array for n, array in arrays.items() if n not in dropped} | folded


@dataclass(frozen=True)
class _Affine:
    """A product, scaled and shifted for each channel, and perhaps transposed.

    Attributes:
      product: the equation of the product.
      axis: where its channels lie in the end.
      weight_axis: where they lie in its second operand.
      last: the equation of the last step.
      scale: `[channels]`, or one number for all.
      shift: `[channels]`, or one number for all.
      scaled: whether there is a scale; a bias alone is left as it is.
      order: which dimension of the product is which in the end; None for the order that it has.
    """

    product: Any
    axis: int
    weight_axis: int
    last: Any
    scale: Any = 1.0
    shift: Any = 0.0
    scaled: bool = False
    order: tuple[int, ...] | None = None

    def transposed(self, permutation: tuple[int, ...]) -> "_Affine":
        """The same with its dimensions in another order."""
        order = permutation if self.order is None else tuple(self.order[i] for i in permutation)
        return replace(self, axis=permutation.index(self.axis), order=order)


def _computed(
    source: Source,
    arrays: Mapping[str, np.ndarray],
    take: Take,
    given: Mapping[str, Any],
    feeds: Mapping[str, Any],
    key: Any,
) -> list[Any]:
    """The results of a source with folded products.

    Args:
      source: what is computed.
      arrays: its parameters and states, as numbers.
      take: what products compute with instead.
      given: the parameters and states to compute with.
      feeds: as for the source.
      key: as for the source.
    """
    arguments = (dict(given), dict(feeds), key)
    closed, shapes = jax.make_jaxpr(source, return_shape=True)(*arguments)
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    names = {}
    leaves = jax.tree_util.tree_leaves_with_path(arguments)
    for variable, (path, value) in zip(closed.jaxpr.invars, leaves, strict=True):
        values[variable] = value
        if path[0].idx == 0:
            names[variable] = path[1].key
    results = _Folder(closed.jaxpr, values, names, arrays, take).run()
    return list(jax.tree.unflatten(jax.tree.structure(shapes), results))


class _Folder:
    """Computes equation by equation; a product waits until something else than scaling happens to it.

    Args:
      jaxpr: the equations.
      values: of constants and arguments, by variable.
      names: of those that are parameters or states.
      arrays: these, as numbers.
      take: what products compute with instead.
    """

    def __init__(
        self,
        jaxpr: Any,
        values: Mapping[Any, Any],
        names: Mapping[Any, str],
        arrays: Mapping[str, np.ndarray],
        take: Take,
    ):
        self._jaxpr = jaxpr
        self._values = dict(values)
        self._names = dict(names)  # of parameters in other dtypes and orders as well
        self._numbers = {v: arrays[name].astype(v.aval.dtype) for v, name in names.items()}
        self._affine: dict[Any, _Affine] = {}
        self._take = take
        self._taken: set[str] = set()

    def run(self) -> list[Any]:
        """The results."""
        for equation in self._jaxpr.eqns:
            if not self._held_back(equation):
                self._compute(equation)
        return [self._read(variable) for variable in self._jaxpr.outvars]

    def _read(self, variable: Any) -> Any:
        if _is_literal(variable):
            return variable.val
        if variable not in self._values:
            affine = self._affine[variable]
            if affine.scaled:
                self._values[variable] = self._folded(affine)
            else:
                self._compute(affine.last)
        return self._values[variable]

    def _number(self, variable: Any) -> np.ndarray | None:
        return np.asarray(variable.val) if _is_literal(variable) else self._numbers.get(variable)

    def _compute(self, equation: Any) -> None:
        variables = _variables(equation)
        results = _evaluated(self._jaxpr, equation, {v: self._read(v) for v in variables})
        self._values |= dict(zip(equation.outvars, results, strict=True))
        of_fixed_size = all(isinstance(size, int) for v in equation.outvars for size in v.aval.shape)
        if not variables or not of_fixed_size or any(v not in self._numbers for v in variables):
            return
        with jax.ensure_compile_time_eval():
            results = _evaluated(self._jaxpr, equation, self._numbers)
        self._numbers |= {v: np.asarray(r) for v, r in zip(equation.outvars, results, strict=True)}
        if equation.primitive.name in _KEEP_A_NAME and variables[0] in self._names:
            self._names[equation.outvars[0]] = self._names[variables[0]]

    def _held_back(self, equation: Any) -> bool:
        """Whether an equation is a product, or scales or shifts one, and is computed when it is needed."""
        kind = equation.primitive.name
        affine: _Affine | None = None
        axes = _axes(equation)
        if axes is not None and equation.invars[1] in self._numbers:
            affine = _Affine(equation, *axes, equation)
        elif kind == "convert_element_type" and jnp.issubdtype(equation.params["new_dtype"], jnp.floating):
            affine = self._affine.get(equation.invars[0])
        elif kind == "transpose" and equation.invars[0] in self._affine:
            affine = self._affine[equation.invars[0]].transposed(equation.params["permutation"])
        elif kind in _ARITHMETIC:
            affine = self._changed(equation)
        if affine is not None:
            self._affine[equation.outvars[0]] = replace(affine, last=equation)
        return affine is not None

    def _changed(self, equation: Any) -> _Affine | None:
        """A product behind one more step of arithmetic, or None when it is not one with a number for each channel."""
        first, second = equation.invars
        swapped = not _is_literal(second) and second in self._affine
        affine = self._affine.get(second if swapped else first) if swapped or not _is_literal(first) else None
        number = self._number(first if swapped else second)
        if affine is None or number is None:
            return None
        channels = _per_channel(number, equation.outvars[0].aval, affine.axis)
        kind, operator = equation.primitive.name, _ARITHMETIC[equation.primitive.name]
        if channels is None or (swapped and kind == "div"):
            return None
        if kind in ("mul", "div"):
            return replace(
                affine, scale=operator(affine.scale, channels), shift=operator(affine.shift, channels), scaled=True
            )
        if not swapped:
            return replace(affine, shift=operator(affine.shift, channels))
        sign = -1.0 if kind == "sub" else 1.0
        return replace(affine, scale=sign * affine.scale, shift=channels + sign * affine.shift)

    def _folded(self, affine: _Affine) -> Any:
        """The value of a product that is scaled, by one whose weight is."""
        first, second = affine.product.invars
        result = affine.last.outvars[0].aval
        wide = jnp.promote_types(result.dtype, jnp.float32)
        weight, axis = self._numbers[second], affine.weight_axis
        scale = np.reshape(affine.scale, [-1 if i == axis else 1 for i in range(weight.ndim)])
        weight = (weight.astype("float64") * scale).astype(weight.dtype)
        shift = np.broadcast_to(affine.shift, weight.shape[axis]).astype(wide)
        weight, shift = self._take(self._unused(self._names.get(second, "weight")), weight, shift)
        (value,) = _evaluated(self._jaxpr, affine.product, {first: self._read(first), second: weight})
        value = value if affine.order is None else jnp.transpose(value, affine.order)
        shape = [-1 if i == affine.axis else 1 for i in range(len(result.shape))]
        return (value.astype(wide) + jnp.reshape(shift, shape)).astype(result.dtype)

    def _unused(self, name: str) -> str:
        while name in self._taken:
            name += "+"
        self._taken.add(name)
        return name


def _evaluated(jaxpr: Any, equation: Any, values: Mapping[Any, Any]) -> list[Any]:
    """The results of one equation of a jaxpr, for values of its variables."""
    variables = list(dict.fromkeys(_variables(equation)))
    alone = jaxpr.replace(constvars=[], invars=variables, outvars=equation.outvars, eqns=[equation])
    return jax.core.eval_jaxpr(alone, [], *(values[v] for v in variables))


def _axes(equation: Any) -> tuple[int, int] | None:
    """Where the channels lie that the second operand of a product makes: in its result, and in that operand.

    Returns:
      None for what is no product, or one of another kind.
    """
    kind, parameters = equation.primitive.name, equation.params
    if kind == "conv_general_dilated" and parameters["batch_group_count"] == 1:
        numbers = parameters["dimension_numbers"]
        return int(numbers.out_spec[1]), int(numbers.rhs_spec[0])
    if kind != "dot_general":
        return None
    (_, contracted), (_, batched) = parameters["dimension_numbers"]
    free = [i for i in range(len(equation.invars[1].aval.shape)) if i not in (*contracted, *batched)]
    return (len(equation.outvars[0].aval.shape) - 1, free[0]) if len(free) == 1 and not batched else None


def _per_channel(number: np.ndarray, result: Any, axis: int) -> np.ndarray | None:
    """Numbers as `[channels]`, or as one for all; None when they differ in anything else than the channel."""
    if number.size == 1:
        return number.reshape(()).astype("float64")
    whole = number.ndim == len(result.shape) and number.shape[axis] == number.size
    return number.reshape(-1).astype("float64") if whole else None


def _variables(equation: Any) -> list[Any]:
    return [v for v in equation.invars if not _is_literal(v)]


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")
