"""NestedSequenceBatch: rows that are sequences of sequences, in one padded array; and what stands in for any feed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.frame import FeedSpec
from fluid.core.sequence import SequenceBatch


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NestedSequenceBatch:
    """A batch of sequences of sequences: padded data, how many sequences each row has, and the length of each of them.

    A layer that works on the inner sequences computes on `flat()`, and puts the result back with `nest`.

    Attributes:
      data: `[batch, outer, inner, ...]`; what lies behind the lengths is padding and means nothing.
      lengths: `[batch]`, int32: sequences in each row.
      inner_lengths: `[batch, outer]`, int32: steps in each sequence; those behind a row's length mean nothing.

    Example:
      >>> texts = NestedSequenceBatch.from_rows([[[1, 2], [3]], [[4, 5, 6]]])
      >>> texts.shape, texts.lengths.tolist(), texts.inner_lengths.tolist()
      ((2, 2, 3), [2, 1], [[2, 1], [3, 0]])
      >>> [row.tolist() for row in texts.flat().rows()]
      [[1, 2], [3], [4, 5, 6], []]
      >>> [row.tolist() for row in texts.nest(texts.flat().data.sum(1)).rows()]
      [[3, 3], [15]]
    """

    # Arrays on the left of an operator leave it to this class.
    __array_ufunc__ = None

    data: Any
    lengths: Any
    inner_lengths: Any

    @classmethod
    def from_rows(
        cls, rows: Sequence[Sequence[Any]], dtype: Any = None, outer: int | None = None, inner: int | None = None
    ) -> "NestedSequenceBatch":
        """Pad rows of sequences `[length_ij, ...]` with zeros.

        Args:
          rows: for each row its sequences: arrays or lists; they may differ in their first dimension only.
          dtype: of the data; found from the sequences by default.
          outer: to how many sequences to pad each row; by default to as many as the longest row has.
          inner: to how many steps to pad each sequence; by default to the longest.
        """
        lengths = np.array([len(row) for row in rows], np.int32)
        outer = int(lengths.max(initial=0)) if outer is None else outer
        flat = SequenceBatch.from_rows([sequence for row in rows for sequence in row], dtype, inner)
        real = np.arange(outer) < lengths[:, None]
        data = np.zeros((len(rows), outer, *flat.shape[1:]), flat.dtype)
        inner_lengths = np.zeros((len(rows), outer), np.int32)
        data[real] = flat.data
        inner_lengths[real] = flat.lengths
        return cls(data, lengths, inner_lengths)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the padded data, `[batch, outer, inner, ...]`."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the data."""
        return self.data.dtype

    @property
    def outer_mask(self) -> jax.Array:
        """Which sequences are real: bool `[batch, outer]`."""
        return jnp.arange(self.data.shape[1])[None, :] < self.lengths[:, None]

    @property
    def mask(self) -> jax.Array:
        """Which steps are real: bool `[batch, outer, inner]`."""
        steps = jnp.arange(self.data.shape[2]) < self.inner_lengths[..., None]
        return self.outer_mask[..., None] & steps

    def with_data(self, data: Any) -> "NestedSequenceBatch":
        """The same lengths around other data `[batch, outer, inner, ...]`."""
        return NestedSequenceBatch(data, self.lengths, self.inner_lengths)

    def flat(self) -> SequenceBatch:
        """The inner sequences of all rows as one batch of `batch * outer`; those that are padding have length 0."""
        lengths = jnp.where(self.outer_mask, self.inner_lengths, 0)
        return SequenceBatch(self.data.reshape(lengths.size, *self.shape[2:]), lengths.reshape(-1))

    def nest(self, value: Any) -> "SequenceBatch | NestedSequenceBatch":
        """Give what was computed from `flat()` back to the rows.

        Args:
          value: an array `[batch * outer, ...]`, one item for each inner sequence; or a SequenceBatch of as many rows.

        Returns:
          A SequenceBatch over the outer level, `[batch, outer, ...]`; of a SequenceBatch a NestedSequenceBatch.

        Raises:
          ShapeError: there are not `batch * outer` of them.
        """
        if not value.shape or value.shape[0] != self.shape[0] * self.shape[1]:
            raise errors.ShapeError(
                f"nest was given {value.dtype}{list(value.shape)}, expected {self.shape[0] * self.shape[1]} items, one "
                f"for each of {self.shape[0]} x {self.shape[1]} sequences, as in batch.nest(f(batch.flat()))"
            )
        if isinstance(value, SequenceBatch):
            data = value.data.reshape(*self.shape[:2], *value.shape[1:])
            return NestedSequenceBatch(data, self.lengths, value.lengths.reshape(self.shape[:2]))
        return SequenceBatch(value.reshape(*self.shape[:2], *value.shape[1:]), self.lengths)

    def rows(self) -> list[list[np.ndarray]]:
        """The rows without padding: for each a list of NumPy arrays `[length_ij, ...]`."""
        data, lengths, inner = (np.asarray(v) for v in (self.data, self.lengths, self.inner_lengths))
        return [
            [steps[:n] for steps, n in zip(row[:count], sizes[:count], strict=True)]
            for row, count, sizes in zip(data, lengths, inner, strict=True)
        ]


# What a layer takes: an array, or rows of any length. What it returns is of the same kind as its input where that makes
# sense, which no annotation can say, so results that may be either are annotated as Any.
Value = jax.Array | np.ndarray | SequenceBatch | NestedSequenceBatch


def data_of(value: Any) -> Any:
    """The padded data of a sequence batch; other values as they are."""
    return value.data if isinstance(value, SequenceBatch | NestedSequenceBatch) else value


def stand_in(spec: FeedSpec, batch: int, steps: Sequence[int]) -> Any:
    """Zeros of the kind that a feed is, for when nobody looks at their values; sequences have length 1.

    Args:
      spec: the declaration.
      batch: number of samples.
      steps: sizes of the padded outer and inner level; of a plain sequence the inner one.
    """
    sizes = [batch if d is None else d for d in spec.shape]
    if spec.lod_level:
        sizes[:1] = [batch, *steps[2 - spec.lod_level :]]
    data = jnp.zeros(sizes, spec.held)
    lengths = [jnp.ones(sizes[: 1 + level], jnp.int32) for level in range(spec.lod_level)]
    return (lambda data: data, SequenceBatch, NestedSequenceBatch)[spec.lod_level](data, *lengths)
