"""Low-rank adapters: matrices that keep their values, plus a trained product of two small matrices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant, Normal
from fluid.param_attr import LowRankParamAttr, ParamAttr

_A, _B, _SCALE = ".low_rank_a", ".low_rank_b", ".low_rank_scale"


def create(
    name: str,
    settings: LowRankParamAttr,
    shape: Sequence[int],
    dtype: str,
    default: Callable[..., Any],
    kind: str,
    layer: str,
) -> jax.Array:
    """Create the parameters of a matrix with an adapter, and return `w + scale * a @ b`.

    Args:
      name: of the matrix.
      settings: the user's settings.
      shape: of the matrix.
      dtype: of all parameters.
      default: the initializer of the matrix if the settings have none.
      kind: see `core.create_parameter`.
      layer: see `core.create_parameter`.

    Raises:
      ArgumentError: the parameter is no matrix.
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
    """Add each adapter to its matrix; see `fluid.io.merge_low_rank`."""
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
        # A stack of blocks, as of layers.repeat, has one more dimension in all four.
        found[name] = np.asarray(arrays[name]) + scale[..., None] * (a @ b)
    return found
