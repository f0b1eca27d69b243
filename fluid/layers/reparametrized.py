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
# The type of a function that creates one of the parameters from which a weight is computed. Its arguments are the
# suffix of the parameter's name, the shape, the initializer, the settings, and True if the parameter is trained.
_Part = Callable[[str, Sequence[int], Any, ParamAttr, bool], jax.Array]


def create(
    name: str,
    settings: WeightNormParamAttr | LowRankParamAttr,
    shape: Sequence[int],
    dtype: str,
    default: Callable[..., Any],
    kind: str,
    layer: str,
) -> jax.Array:
    """Create the parameters from which a reparametrized weight is computed, and return the weight.

    Raises:
      ArgumentError: the weight has no dimension `settings.dim` of a WeightNormParamAttr, or is not a matrix, as a
        LowRankParamAttr needs.
    """

    def part(suffix: str, size: Sequence[int], start: Any, attr: ParamAttr, trainable: bool) -> jax.Array:
        return core.create_parameter(name + suffix, size, dtype, start, trainable, attr, kind=kind, layer=layer)

    initializer = settings.initializer or default
    if isinstance(settings, LowRankParamAttr):
        return _with_adapter(settings, shape, initializer, part, layer)
    return _normalized(settings, shape, initializer, part, layer, f"{name}_v")


def _normalized(
    settings: WeightNormParamAttr, shape: Sequence[int], initializer: Any, part: _Part, layer: str, direction_name: str
) -> jax.Array:
    """Return a weight-normalized weight `g * v / norm(v)`, and create its parameters: a length `g`, a direction `v`.

    For a weight with the name `fc_0.w_0`, the names of the parameters are `fc_0.w_0_g` and `fc_0.w_0_v`.
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
    start = _NormOf(initializer, tuple(shape), axes, direction_name)
    length = part("_g", sizes, start, settings, settings.trainable)
    direction = part("_v", shape, initializer, settings, settings.trainable)
    wide = direction.astype(jnp.promote_types(direction.dtype, jnp.float32))
    return (direction * (length / _norm(wide, axes))).astype(direction.dtype)


@dataclass(frozen=True)
class _NormOf:
    """The initializer of the length in weight normalization: the norm of the initial direction over `axes`.

    The initial length and the initial direction are computed from one random key, which depends on `key_name`, the name
    of the direction. So the initial length equals the norm of the initial direction.
    """

    initializer: Callable[..., Any]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    key_name: str

    def __call__(self, key: Any, shape: Sequence[int], dtype: Any) -> Any:
        return _norm(jnp.asarray(self.initializer(key, self.shape, dtype)), self.axes)


def _norm(x: Any, axes: tuple[int, ...]) -> Any:
    squares = jnp.sum(jnp.square(x), axis=axes, keepdims=True)
    return jnp.sqrt(jnp.where(squares > 0, squares, 1))


def _with_adapter(
    settings: LowRankParamAttr, shape: Sequence[int], initializer: Any, part: _Part, layer: str
) -> jax.Array:
    """Return a frozen matrix `w` plus a trained low-rank adapter: `w + scale * a @ b`."""
    if len(shape) != 2:
        raise errors.ArgumentError(
            f"{layer}: LowRankParamAttr of a parameter of shape {list(shape)}; expected a matrix, as of fc, dense and "
            f"multi_head_attention"
        )
    rank = settings.rank
    rows, columns = (*(settings.sharding or ()), None, None)[:2]

    def of_adapter(sharding: Any) -> ParamAttr:
        return ParamAttr(
            learning_rate=settings.learning_rate,
            regularizer=settings.regularizer,
            gradient_clip=settings.gradient_clip,
            sharding=sharding if settings.sharding else None,
        )

    weight = part("", shape, initializer, settings, False)
    scale = part(_SCALE, [1], Constant((settings.alpha or rank) / rank), ParamAttr(), False)
    a = part(_A, [shape[0], rank], Normal(0.0, shape[0] ** -0.5), of_adapter((rows, None)), True)
    b = part(_B, [rank, shape[1]], Constant(0.0), of_adapter((None, columns)), True)
    return weight + scale * (a @ b)


def merged(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Add each low-rank adapter in a dict of arrays to its matrix, and return the dict without the adapters.

    This function implements `fluid.io.merge_low_rank`.
    """
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
