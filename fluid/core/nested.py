"""NestedSequenceBatch: rows that are sequences of sequences, in one padded array. Also stand-ins for feeds."""

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
    """A batch of sequences of sequences: padded data, the number of sequences of each row, and the sequence lengths.

    A layer for the inner sequences computes on `flat()`, and moves the result back to the rows with `nest`.

    Attributes:
      data: `[batch, outer, inner, ...]`; elements after the lengths are padding, with arbitrary values.
      lengths: `[batch]`, int32: sequences in each row.
      inner_lengths: `[batch, outer]`, int32: steps in each sequence; entries after a row's length are arbitrary.

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
          rows: for each row its sequences, as arrays or lists that may differ only in their first dimension.
          dtype: dtype of the data; by default the dtype of the sequences.
          outer: sequences in each padded row; by default the number of sequences in the longest row.
          inner: steps in each padded sequence; by default the length of the longest sequence.
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
        """The mask of sequences: bool `[batch, outer]`, False for padding."""
        return jnp.arange(self.data.shape[1])[None, :] < self.lengths[:, None]

    @property
    def mask(self) -> jax.Array:
        """The mask of steps: bool `[batch, outer, inner]`, False for padding."""
        steps = jnp.arange(self.data.shape[2]) < self.inner_lengths[..., None]
        return self.outer_mask[..., None] & steps

    def with_data(self, data: Any) -> "NestedSequenceBatch":
        """Return a batch with these lengths and other data `[batch, outer, inner, ...]`."""
        return NestedSequenceBatch(data, self.lengths, self.inner_lengths)

    def flat(self) -> SequenceBatch:
        """Return the inner sequences of all rows as one batch of `batch * outer`; padding sequences have length 0."""
        lengths = jnp.where(self.outer_mask, self.inner_lengths, 0)
        return SequenceBatch(self.data.reshape(lengths.size, *self.shape[2:]), lengths.reshape(-1))

    def nest(self, value: Any) -> "SequenceBatch | NestedSequenceBatch":
        """Move values that were computed from `flat()` back to the rows.

        Args:
          value: an array `[batch * outer, ...]` or a SequenceBatch of `batch * outer` rows, for all inner sequences.

        Returns:
          A SequenceBatch over the outer level, `[batch, outer, ...]`; a NestedSequenceBatch if `value` is a
          SequenceBatch.

        Raises:
          ShapeError: the first dimension of `value` is not `batch * outer`.
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
        """Return the rows without padding, each as a list of NumPy arrays `[length_ij, ...]`."""
        data, lengths, inner = (np.asarray(v) for v in (self.data, self.lengths, self.inner_lengths))
        return [
            [steps[:n] for steps, n in zip(row[:count], sizes[:count], strict=True)]
            for row, count, sizes in zip(data, lengths, inner, strict=True)
        ]


# The input of a layer: an array, or rows of any length. The result usually has the type of the input. No annotation can
# express this, so results that may be arrays or sequences are annotated as Any.
Value = jax.Array | np.ndarray | SequenceBatch | NestedSequenceBatch


def data_of(value: Any) -> Any:
    """Return the padded data of a sequence batch; return other values unchanged."""
    return value.data if isinstance(value, SequenceBatch | NestedSequenceBatch) else value


def stand_in(spec: FeedSpec, batch: int, steps: Sequence[int]) -> Any:
    """Return zeros with the type, shape and dtype of a feed, for tracing. Sequences have length 1.

    Args:
      spec: the declaration of the feed.
      batch: the batch size.
      steps: sizes of the padded outer and inner level; a plain sequence uses the inner size.
    """
    sizes = [batch if d is None else d for d in spec.shape]
    if spec.lod_level:
        sizes[:1] = [batch, *steps[2 - spec.lod_level :]]
    data = jnp.zeros(sizes, spec.held)
    lengths = [jnp.ones(sizes[: 1 + level], jnp.int32) for level in range(spec.lod_level)]
    return (lambda data: data, SequenceBatch, NestedSequenceBatch)[spec.lod_level](data, *lengths)
