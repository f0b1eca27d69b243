"""Norms of gradients and updates: they show whether a learning rate is too small or too large."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


def norm(arrays: Any) -> Any:
    """Return the L2 norm of all numbers in a tree of arrays, float32 `[]`; 0 for no arrays.

    Example:
      >>> float(norm({"w": jnp.array([[3.0]]), "b": jnp.array([4.0])}))
      5.0
    """
    squares = [jnp.sum(jnp.square(array.astype(jnp.float32))) for array in jax.tree.leaves(arrays)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares))) if squares else jnp.float32(0)


def ratio(before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    """Return the norm of an update divided by the norm of the parameters before the update, float32 `[]`.

    About 1e-3 is usual. The ratio is infinite if all parameters were 0, and 0 if all are frozen.

    Example:
      >>> round(float(ratio({"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([3.0, 4.1])})), 3)
      0.02
    """
    if not before:
        return jnp.float32(0)
    return norm({name: after[name] - before[name] for name in before}) / norm(before)
