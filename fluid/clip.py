"""Gradient clips, applied before regularizers."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from fluid.lazy import optax


@dataclass(frozen=True)
class GradientClipByValue:
    """Clips every element to `[min, max]`.

    Args:
      max: upper bound.
      min: lower bound, `-max` by default.

    Example:
      >>> import jax.numpy as jnp
      >>> clip = GradientClipByValue(1.0).transformation()
      >>> clip.update({"w": jnp.array([-3.0, 0.5])}, clip.init({}))[0]["w"].tolist()
      [-1.0, 0.5]
    """

    max: float
    min: float | None = None

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation that clips a tree of gradients."""
        low = -self.max if self.min is None else self.min
        return optax.stateless(lambda updates, _: jax.tree.map(lambda g: g.clip(low, self.max), updates))


@dataclass(frozen=True)
class GradientClipByNorm:
    """Scales each gradient on its own so that its L2 norm is at most `clip_norm`.

    Example:
      >>> import jax.numpy as jnp
      >>> clip = GradientClipByNorm(1.0).transformation()
      >>> [round(float(v), 3) for v in clip.update({"w": jnp.array([3.0, 4.0])}, clip.init({}))[0]["w"]]
      [0.6, 0.8]
    """

    clip_norm: float

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation that clips a tree of gradients."""
        one = optax.clip_by_global_norm(self.clip_norm)
        return optax.stateless(lambda updates, _: {n: one.update(g, optax.EmptyState())[0] for n, g in updates.items()})


@dataclass(frozen=True)
class GradientClipByGlobalNorm:
    """Scales all gradients together so that their common L2 norm is at most `clip_norm`.

    Example:
      >>> import jax.numpy as jnp
      >>> clip = GradientClipByGlobalNorm(1.0).transformation()
      >>> [round(float(v), 3) for v in clip.update({"w": jnp.array([3.0, 4.0])}, clip.init({}))[0]["w"]]
      [0.6, 0.8]
    """

    clip_norm: float
    group_name: str = "default_group"

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation that clips a tree of gradients."""
        return optax.clip_by_global_norm(self.clip_norm)
