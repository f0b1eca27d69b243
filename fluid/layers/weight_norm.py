"""Weight normalization: parameters that are trained as a length and a direction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.param_attr import WeightNormParamAttr


def create(
    name: str,
    settings: WeightNormParamAttr,
    shape: Sequence[int],
    dtype: str,
    default: Callable[..., Any],
    kind: str,
    layer: str,
) -> jax.Array:
    """Create the length `NAME_g` and the direction `NAME_v` of a parameter, and return `g * v / norm(v)`.

    Args:
      name: of the parameter.
      settings: the user's settings.
      shape: of the parameter.
      dtype: of both parts.
      default: the initializer of the direction if the settings have none.
      kind: see `core.create_parameter`.
      layer: see `core.create_parameter`.

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
    """The initializer of the lengths: the norm of the initial direction over `axes`.

    The name of the direction gives the random key of both, so that the length belongs to the direction.
    """

    initializer: Callable[..., Any]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    key_name: str

    def __call__(self, key: Any, shape: Sequence[int], dtype: Any) -> Any:
        return _norm(jnp.asarray(self.initializer(key, self.shape, dtype)), self.axes)


def _norm(x: Any, axes: tuple[int, ...]) -> Any:
    """Return the Euclidean norm along axes, which keep the size 1; 1 where the norm is 0."""
    squares = jnp.sum(jnp.square(x), axis=axes, keepdims=True)
    return jnp.sqrt(jnp.where(squares > 0, squares, 1))
