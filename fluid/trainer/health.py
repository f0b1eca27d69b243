"""Whether the arrays of a training are finite: what is never saved, and what ends a training that watches for it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# How many names a message lists.
_SHOWN = 5


class Health:
    """Finds infinities and NaNs, except in arrays that had some before training began.

    What a program itself makes infinite, such as a mask of minus infinities, or an optimizer, such as the best loss so
    far, says nothing about the health of training.

    Args:
      exempt: names of arrays that are not looked at.
      members: of how many trainings the arrays hold one each, `[members, ...]`; None for one training. While one of
        them is finite in all arrays, there is nothing to complain of: a population goes on without those that are lost.

    Example:
      >>> health = Health.at_start({"w": np.ones(2), "mask": np.array([0, -np.inf])})
      >>> health.complaint({"w": np.ones(2), "mask": np.array([0, -np.inf])}) is None
      True
      >>> health.complaint({"w": np.array([1, np.nan]), "mask": np.array([0, -np.inf])})
      'w is not finite'
    """

    def __init__(self, exempt: Iterable[str] = (), members: int | None = None):
        self.exempt = frozenset(exempt)
        self._members = members

    @classmethod
    def at_start(cls, arrays: Mapping[str, Any], members: int | None = None) -> "Health":
        """The health of a training, or of a population of `members`, that begins with these arrays."""
        return cls(_non_finite(arrays), members)

    def complaint(self, arrays: Mapping[str, Any]) -> str | None:
        """What is wrong with the arrays, such as "w and b are not finite", or None.

        Args:
          arrays: by name, on the host or on a device; those on a device are waited for.
        """
        seen = {name: array for name, array in arrays.items() if name not in self.exempt}
        if self._members is not None and _finite_members(seen.values(), self._members).any():
            return None
        names = _non_finite(seen)
        return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} not finite" if names else None


def _non_finite(arrays: Mapping[str, Any]) -> list[str]:
    """The names of arrays that hold an infinity or a NaN, sorted. Each array is looked at where it lies."""
    on_device = {name: array for name, array in arrays.items() if isinstance(array, jax.Array)}
    finite = {name: _finite_on_host(array) for name, array in arrays.items() if name not in on_device}
    if on_device:
        finite.update(zip(on_device, np.asarray(_finite_on_device(list(on_device.values()))), strict=True))
    return sorted(name for name, good in finite.items() if not good)


def _finite_members(arrays: Iterable[Any], members: int) -> np.ndarray:
    """Which members of a population are finite in all of its arrays, bool `[members]`."""
    stacked = [array for array in map(np.asarray, arrays) if array.shape[:1] == (members,)]
    inexact = [array.reshape(members, -1) for array in stacked if jnp.issubdtype(array.dtype, jnp.inexact)]
    return np.all([np.isfinite(array).all(axis=1) for array in inexact], axis=0)


def _finite_on_host(array: np.ndarray) -> bool:
    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(np.isfinite(array).all())


@jax.jit
def _finite_on_device(arrays: list[jax.Array]) -> jax.Array:
    """Whether each array is finite, as one array `[arrays]`: each array that is read costs a transfer."""
    return jnp.stack(
        [jnp.isfinite(a).all() if jnp.issubdtype(a.dtype, jnp.inexact) else jnp.array(True) for a in arrays]
    )


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b, c, d, e and 2 more"."""
    more = len(names) - _SHOWN
    parts = [*names[:_SHOWN], f"{more} more"] if more > 0 else list(names)
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]
