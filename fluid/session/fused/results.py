"""What several steps gave back in one call: the results of each, taken out of the stack when somebody reads them."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fluid.session.results import Results


class Later:
    """A value of one of several steps, which NumPy can read; the device does nothing for it.

    Args:
      stack: the values of all these steps, `[room, ...]`.
      number: that of the step among them.

    Example:
      >>> float(np.asarray(Later(jax.numpy.arange(3.0), 2)))
      2.0
    """

    __slots__ = ("number", "stack")

    def __init__(self, stack: Any, number: int):
        self.stack = stack
        self.number = number

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = np.asarray(self.stack)[self.number]
        return np.asarray(value, dtype)

    @property
    def is_ready(self) -> bool:
        """Whether the steps are computed, so that nobody who reads the value has to wait."""
        return bool(getattr(self.stack, "is_ready", lambda: True)())


class _Values(Sequence[Any]):
    """The values of one step; each is taken out of its stack when it is asked for first."""

    __slots__ = ("_known", "_number", "_stacks")

    def __init__(self, stacks: Sequence[Any], number: int):
        self._stacks = stacks
        self._number = number
        self._known: dict[int, Any] = {}

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self._stacks))[index]
        if place not in self._known:
            self._known[place] = _taken(self._stacks[place], self._number)
        return self._known[place]

    def __len__(self) -> int:
        return len(self._stacks)

    def later(self, place: int) -> Later:
        """A value as `np.asarray` reads it."""
        return Later(self._stacks[place], self._number)


class SeveralResults(Sequence[tuple[Results, Results]]):
    """The results of several steps that ran in one call.

    Args:
      values: of the fetched values, each stacked, `[room, ...]`; then, where there are such names, of what is asked for
        beside them.
      count: how many steps there were.
      names: of the fetched values, or None.
      also: names of what is asked for beside them.

    Example:
      >>> several = SeveralResults((jax.numpy.arange(3.0),), 2, ["loss"], ())
      >>> metrics, fetched = several[1]
      >>> metrics, len(several)
      ({loss: 1}, 2)
    """

    def __init__(self, values: Any, count: int, names: Sequence[str] | None, also: Sequence[str]):
        self._values: Sequence[Any] = values[0] if also else values
        self._also: Sequence[Any] = values[1] if also else ()
        self._count = count
        self._names = names
        self._also_names = also

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self._count))]
        number = range(self._count)[number]  # ends an iteration
        found = Results(_Values(self._values, number), self._names)
        return found, Results(_Values(self._also, number), self._also_names)

    def stacked(self, place: int) -> Any:
        """One of the fetched values of all steps, `[room, ...]`."""
        return self._values[place]


def _taken(stack: Any, number: int) -> Any:
    """One value of a stack, as an array on the device."""
    where = jax.device_put(np.int32(number), next(iter(jax.tree.leaves(stack)[0].devices())))
    return _take(stack, where)


@jax.jit
def _take(stack: Any, number: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), stack)
