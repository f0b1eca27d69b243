"""Dynamic loss scaling: multiply the loss by a scale, so that small half-precision gradients do not become 0.

The scale is part of the optimizer state. If gradients overflow, the update is skipped, and the scale is halved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid._util.lazy import optax

START = 2.0**15
LEAST = 1.0
MOST = 2.0**24
PATIENCE = 2000


class Scaled(NamedTuple):
    """The state of `skip_overflows`.

    Attributes:
      scale: the number by which the loss is multiplied, float32 `[]`.
      finite: the number of steps with finite gradients since the scale changed, int32 `[]`; at most 1999.
      inner: the optimizer state of the rule.
    """

    scale: Any
    finite: Any
    inner: Any


def skip_overflows(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a rule that skips updates with overflowed gradients, and adapts the scale of the loss.

    As in Micikevicius et al. (2018), section 3.2: non-finite gradients halve the scale, and the update is skipped.
    After 2000 successive steps with finite gradients, the scale doubles, up to `2**24`. At a scale of 1 no update is
    skipped: the scale cannot be the cause of non-finite gradients there, and the user must see them.

    Args:
      rule: the rule of the optimizer. Both rules receive gradients that are already divided by the scale.
    """

    def init(params: Any) -> Scaled:
        return Scaled(jnp.float32(START), jnp.zeros([], jnp.int32), rule.init(params))

    def update(grads: Any, state: Scaled, params: Any = None) -> tuple[Any, Scaled]:
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        made = finite | (state.scale <= LEAST)
        updates, inner = rule.update(grads, state.inner, params)
        # Use `where` rather than a branch: a branch would make the host wait for the device.
        updates = jax.tree.map(lambda u: jnp.where(made, u, jnp.zeros_like(u)), updates)
        inner = jax.tree.map(lambda new, old: jnp.where(made, new, old), inner, state.inner)
        grown = state.finite + 1 >= PATIENCE
        larger = jnp.where(grown, jnp.minimum(state.scale * 2, MOST), state.scale)
        smaller = jnp.maximum(state.scale / 2, LEAST)
        count = jnp.where(finite & ~grown, state.finite + 1, 0)
        return updates, Scaled(jnp.where(finite, larger, smaller), count, inner)

    return optax.GradientTransformation(init, update)


def scale_of(slots: Any) -> Any:
    """Return the scale of the loss in the next step, a scalar; 1 without loss scaling."""
    return slots.scale if isinstance(slots, Scaled) else 1.0


def was_skipped(before: Any, after: Any) -> Any:
    """Return whether the update between two successive states of `skip_overflows` was skipped."""
    return after.scale < before.scale
