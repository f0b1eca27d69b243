"""SequenceBatch: rows of different lengths in one padded array."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SequenceBatch:
    """A batch of sequences: padded data and the length of each row.

    Attributes:
      data: `[batch, time, ...]`; what lies behind a row's length is padding and means nothing.
      lengths: `[batch]`, int32.

    Example:
      >>> batch = SequenceBatch.from_rows([[1, 2, 3], [4]])
      >>> batch.data.shape, [int(n) for n in batch.lengths]
      ((2, 3), [3, 1])
    """

    data: Any
    lengths: Any

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None, time: int | None = None) -> "SequenceBatch":
        """Pad rows `[length_i, ...]` with zeros to `time` steps, or to the longest row.

        Args:
          rows: arrays or lists; they may differ in their first dimension only.
          dtype: of the data; found from the rows by default.
          time: how many steps to pad to; at least the longest row.
        """
        arrays = [np.asarray(row, dtype) for row in rows]
        lengths = np.array([len(a) for a in arrays], np.int32)
        time = int(lengths.max(initial=0)) if time is None else time
        tail = next((a.shape[1:] for a in arrays if a.size), arrays[0].shape[1:] if arrays else ())
        data = np.zeros((len(arrays), time, *tail), arrays[0].dtype if arrays else dtype)
        for padded, array in zip(data, arrays, strict=True):
            padded[: len(array)] = array
        return cls(data, lengths)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the padded data, `[batch, time, ...]`."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the data."""
        return self.data.dtype

    @property
    def mask(self) -> jax.Array:
        """Which steps are real: bool `[batch, time]`."""
        return jnp.arange(self.data.shape[1])[None, :] < self.lengths[:, None]

    def with_data(self, data: Any) -> "SequenceBatch":
        """The same lengths around other data `[batch, time, ...]`."""
        return SequenceBatch(data, self.lengths)

    def rows(self) -> list[np.ndarray]:
        """The rows without padding, as NumPy arrays `[length_i, ...]`."""
        data, lengths = np.asarray(self.data), np.asarray(self.lengths)
        return [row[:n] for row, n in zip(data, lengths, strict=True)]
