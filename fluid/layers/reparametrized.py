"""Reparametrized weights: weights that are computed from other parameters.

Weight normalization trains a length and a direction. A low-rank adapter trains two small matrices, whose product is
added to a frozen matrix.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant, Normal
from fluid.param_attr import LowRankParamAttr, ParamAttr, WeightNormParamAttr

_A, _B, _SCALE = ".low_rank_a", ".low_rank_b", ".low_rank_scale"


def normalized_weight(
    name: str,
    settings: WeightNormParamAttr,
    shape: Sequence[int],
    dtype: str,
    default: Callable[..., Any],
    kind: str,
    layer: str,
) -> jax.Array:
    """Create a weight-normalized parameter: a length `NAME_g` and a direction `NAME_v`; return `g * v / norm(v)`.

    Args:
      name: the name of the parameter.
      settings: the user's WeightNormParamAttr.
      shape: the shape of the parameter.
      dtype: the dtype of length and direction.
      default: the initializer of the direction if the settings have none.
      kind: the kind of the layer, such as "fc", if the name of the parameter is automatic; else empty.
      layer: the name of the layer, such as "fc_0".

    Raises:
      ArgumentError: the parameter has no dimension `settings.dim`.
    """
    dim = settings.dim
    if dim is not None and (isinstance(dim, bool) or dim not in range(-len(shape), len(shape))):
        raise errors.ArgumentError(
            f"{layer}: WeightNormParamAttr(dim={dim!r}) of a parameter of shape {list(shape)}; expected None or a "
            f"dimension from 0 to {len(shape) - 1}"
        )
    kept = None if dim is None else dim % len(shape)
    axes = tuple(axis for axis in range(len(shape)) if axis != kept)
    sizes = [size if axis == kept else 1 for axis, size in enumerate(shape)]
    draw = settings.initializer or default

    def part(suffix: str, size: Sequence[int], start: Callable[..., Any]) -> jax.Array:
        return core.create_parameter(
            f"{name}_{suffix}", size, dtype, start, settings.trainable, settings, kind=kind, layer=layer
        )

    length = part("g", sizes, _NormOf(draw, tuple(shape), axes, f"{name}_v"))
    direction = part("v", shape, draw)
    wide = direction.astype(jnp.promote_types(direction.dtype, jnp.float32))
    return (direction * (length / _norm(wide, axes))).astype(direction.dtype)


@dataclass(frozen=True)
class _NormOf:
    """The initializer of the length `NAME_g`: the norm of the initial direction `NAME_v` over `axes`.

    Both arrays are computed from one random key, which depends on the name of the direction. So the initial length
    equals the norm of the initial direction.
    """

    initializer: Callable[..., Any]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    key_name: str

    def __call__(self, key: Any, shape: Sequence[int], dtype: Any) -> Any:
        return _norm(jnp.asarray(self.initializer(key, self.shape, dtype)), self.axes)


def _norm(x: Any, axes: tuple[int, ...]) -> Any:
    """Return the Euclidean norm along `axes`, which stay with size 1; where the norm is 0, return 1."""
    squares = jnp.sum(jnp.square(x), axis=axes, keepdims=True)
    return jnp.sqrt(jnp.where(squares > 0, squares, 1))


def adapted_weight(
    name: str,
    settings: LowRankParamAttr,
    shape: Sequence[int],
    dtype: str,
    default: Callable[..., Any],
    kind: str,
    layer: str,
) -> jax.Array:
    """Create a matrix `w` with a low-rank adapter `a @ b`, and return `w + scale * a @ b`.

    Args:
      name: the name of the matrix.
      settings: the user's LowRankParamAttr.
      shape: the shape of the matrix.
      dtype: the dtype of the matrix and of the adapter.
      default: the initializer of the matrix if the settings have none.
      kind: the kind of the layer, such as "fc", if the name of the parameter is automatic; else empty.
      layer: the name of the layer, such as "fc_0".

    Raises:
      ArgumentError: the parameter is not a matrix.
    """
    if len(shape) != 2:
        raise errors.ArgumentError(
            f"{layer}: LowRankParamAttr of a parameter of shape {list(shape)}; expected a matrix, as of fc, dense and "
            f"multi_head_attention"
        )
    rank = settings.rank
    rows, columns = (*(settings.sharding or ()), None, None)[:2]

    def part(suffix: str, size: Sequence[int], start: Any, attr: ParamAttr, trainable: bool = True) -> jax.Array:
        return core.create_parameter(name + suffix, size, dtype, start, trainable, attr, kind=kind, layer=layer)

    def of_adapter(sharding: Any) -> ParamAttr:
        return ParamAttr(
            learning_rate=settings.learning_rate,
            regularizer=settings.regularizer,
            gradient_clip=settings.gradient_clip,
            sharding=sharding if settings.sharding else None,
        )

    weight = part("", shape, settings.initializer or default, settings, trainable=False)
    scale = part(_SCALE, [1], Constant((settings.alpha or rank) / rank), ParamAttr(), trainable=False)
    a = part(_A, [shape[0], rank], Normal(0.0, shape[0] ** -0.5), of_adapter((rows, None)))
    b = part(_B, [rank, shape[1]], Constant(0.0), of_adapter((None, columns)))
    return weight + scale * (a @ b)


def merged(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Implement `fluid.io.merge_low_rank`: add each low-rank adapter to its matrix."""
    names = [name.removesuffix(_A) for name in arrays if name.endswith(_A)]
    if not names:
        raise errors.ParameterError(
            f"merge_low_rank: found no adapter, expected arrays such as 'fc_0.w_0{_A}', as in trainer.params. "
            f"{errors.nearest(_A, arrays)}"
        )
    found = dict(arrays)
    for name in names:
        absent = [name + suffix for suffix in ("", _A, _B, _SCALE) if name + suffix not in arrays]
        if absent:
            raise errors.ParameterError(
                f"merge_low_rank: the adapter of {name!r} lacks {', '.join(absent)}; expected all parameters of a "
                f"program, as in trainer.params"
            )
        a, b, scale = (np.asarray(found.pop(name + suffix)) for suffix in (_A, _B, _SCALE))
        # Add an axis to `scale`, because parameters of stacked blocks, as from `layers.repeat`, are stacked along a
        # leading dimension.
        found[name] = np.asarray(arrays[name]) + scale[..., None] * (a @ b)
    return found
