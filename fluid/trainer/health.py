"""Whether the arrays of a training are finite: what is never saved, and what ends a training that watches for it."""

from collections.abc import Iterable, Mapping
from typing import Any

from fluid.session.finite import finite_members, listed, non_finite


class Health:
    """Finds infinities and NaNs, except in arrays that had some before training began.

    What a program itself makes infinite, such as a mask of minus infinities, or an optimizer, such as the best loss so
    far, says nothing about the health of training.

    Args:
      exempt: names of arrays that are not looked at.
      members: of how many trainings the arrays hold one each, `[members, ...]`; None for one training. While one of
        them is finite in all arrays, there is nothing to complain of: a population goes on without those that are lost.

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
        """The health of a training, or of a population of `members`, that begins with these arrays."""
        return cls(non_finite(arrays), members)

    def complaint(self, arrays: Mapping[str, Any]) -> str | None:
        """What is wrong with the arrays, such as "w and b are not finite", or None.

        Args:
          arrays: by name, on the host or on a device; those on a device are waited for.
        """
        seen = {name: array for name, array in arrays.items() if name not in self.exempt}
        if self._members is not None and finite_members(seen.values(), self._members).any():
            return None
        names = non_finite(seen)
        return f"{listed(names)} {'is' if len(names) == 1 else 'are'} not finite" if names else None
