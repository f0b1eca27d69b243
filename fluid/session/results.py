"""Results: what a run, a training step or a test gave back."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from fluid import errors


class Results(Sequence[Any]):
    """Values in the order of the program's outputs (or of `fetch`), by name as well.

    Values stay on the device until somebody reads one; scalars are 0-d, so `float(r[0])`, `"%f" % r[0]` and
    `r[0] < 0.1` work.

    Args:
      values: arrays.
      names: one for each value, or None.

    Example:
      >>> r = Results([0.5, 0.9], ["loss", "accuracy"])
      >>> r[0], r["accuracy"], len(r), r
      (0.5, 0.9, 2, {loss: 0.5, accuracy: 0.9})
    """

    __slots__ = ("names", "values")

    def __init__(self, values: Sequence[Any], names: Sequence[str] | None = None):
        self.values = values
        self.names = names

    @overload
    def __getitem__(self, index: int | str) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | str | slice) -> Any:
        if not isinstance(index, str):
            return self.values[index]
        names = self.names or ()
        if index not in names:
            hint = errors.nearest(index, names) if names else 'Return a dict to name outputs: return {"loss": loss}.'
            raise errors.UnknownNameError(f"no result is called {index!r}. {hint}")
        return self.values[list(names).index(index)]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        shown = [_shown(v) for v in self.values]
        if self.names is None:
            return f"[{', '.join(shown)}]"
        return "{" + ", ".join(f"{n}: {v}" for n, v in zip(self.names, shown, strict=True)) + "}"


def _shown(value: Any) -> str:
    if np.ndim(value) == 0 and hasattr(value, "__float__"):
        return f"{float(value):.6g}"
    return f"{value.dtype}{list(value.shape)}"
