"""Finite checks: find infinities and NaNs in arrays, in files and during training."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import ParameterSpec, warn

# Maximum number of names of arrays that a message lists.
_SHOWN = 5


def became_non_finite(
    specs: Mapping[str, ParameterSpec], arrays: Mapping[str, Any], members: int | None = None
) -> list[str]:
    """Return the names of parameters and states that are not finite now, but had finite initial values.

    Args:
      members: number of models in a population, whose arrays are stacked, `[members, ...]`; None for one model. The
        result is empty while all arrays of at least one member are finite.
    """
    checked = {n: a for n, a in arrays.items() if n in specs and specs[n].trainable is not False}
    found = [n for n in non_finite(checked) if not _begins_non_finite(specs[n])]
    if found and members is not None and finite_members((checked[n] for n in found), members).any():
        return []
    return found


def _begins_non_finite(spec: ParameterSpec) -> bool:
    value = spec.initializer(jax.random.key(0), spec.shape, jnp.dtype(spec.dtype))
    return not _finite_on_host(np.asarray(value))


def non_finite(arrays: Mapping[str, Any]) -> list[str]:
    """Return the names of arrays that hold an infinity or a NaN, sorted. Each array is checked on its own device."""
    on_device = {name: array for name, array in arrays.items() if _is_on_device(array)}
    finite = {name: _finite_on_host(np.asarray(array)) for name, array in arrays.items() if name not in on_device}
    if on_device:
        finite.update(zip(on_device, np.asarray(_finite_on_device(list(on_device.values()))), strict=True))
    return sorted(name for name, good in finite.items() if not good)


def _is_on_device(array: Any) -> bool:
    if not isinstance(array, jax.Array):
        return False
    return not array.is_fully_addressable or any(device.platform != "cpu" for device in array.devices())


def finite_members(arrays: Iterable[Any], members: int) -> np.ndarray:
    """Return, for each model of a population, True if all its arrays are finite, as one array bool `[members]`."""
    stacked = [array for array in map(np.asarray, arrays) if array.shape[:1] == (members,)]
    inexact = [array.reshape(members, -1) for array in stacked if jnp.issubdtype(array.dtype, jnp.inexact)]
    return np.all([np.isfinite(array).all(axis=1) for array in inexact], axis=0)


def _finite_on_host(array: np.ndarray) -> bool:
    return not jnp.issubdtype(array.dtype, jnp.inexact) or bool(np.isfinite(array).all())


@jax.jit
def _finite_on_device(arrays: list[jax.Array]) -> jax.Array:
    """Return, for each array, True if it is finite, as one array bool `[arrays]`, which one transfer can read."""
    return jnp.stack(
        [jnp.isfinite(a).all() if jnp.issubdtype(a.dtype, jnp.inexact) else jnp.array(True) for a in arrays]
    )


def listed(names: Sequence[str]) -> str:
    """Join names for a sentence: "a", "a and b", "a, b, c, d, e and 2 more"."""
    more = len(names) - _SHOWN
    parts = [*names[:_SHOWN], f"{more} more"] if more > 0 else list(names)
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]


def holding(names: Sequence[str]) -> str:
    """Return the start of a warning from the names of arrays, such as "w and b hold NaN or infinity"."""
    return f"{listed(names)} {'holds' if len(names) == 1 else 'hold'} NaN or infinity"


def warn_of_non_finite(caller: str, names: Sequence[str]) -> None:
    """Warn that the function `caller` writes a file with non-finite arrays, whose names are `names`."""
    warn(
        f"{caller}: {holding(names)}, so that what the file "
        f"computes is NaN too. Save the last parameters that were finite: "
        f'handlers=[fluid.handlers.SaveBest("best.params", "test_loss")], or a checkpoint, which is never written of '
        f"such arrays; handlers=[fluid.handlers.TerminateOnNaN(report=True)] says where the first NaN came from"
    )


class Health:
    """A check of arrays for infinities and NaNs, except arrays that had some before training began.

    Some arrays are infinite on purpose: a mask of a program, or the best loss so far of an optimizer. Infinities in
    these arrays do not show that training has failed.

    Args:
      members: number of models in a population, whose arrays are stacked, `[members, ...]`; None for one model. While
        all arrays of at least one member are finite, `complaint` returns None: training goes on for this member.

    Example:
      >>> import numpy as np
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
        """Return a Health that checks all arrays except those that are not finite now, before training."""
        return cls(non_finite(arrays), members)

    def complaint(self, arrays: Mapping[str, Any]) -> str | None:
        """Return a sentence such as "w and b are not finite"; None if all checked arrays are finite."""
        seen = {name: array for name, array in arrays.items() if name not in self.exempt}
        if self._members is not None and finite_members(seen.values(), self._members).any():
            return None
        names = non_finite(seen)
        return f"{listed(names)} {'is' if len(names) == 1 else 'are'} not finite" if names else None
