"""LoDTensor: rows of any length in Fluid's format, concatenated in one array."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core.sequence import NestedSequenceBatch, SequenceBatch

Lengths = list[list[int]]


class LoDTensor:
    """Sequences without padding: the steps of all rows, concatenated, and the lengths of the rows.

    A LoDTensor may be fed to sequences and to dense data. `infer(..., return_numpy=False)` returns LoDTensors for
    sequences. `np.array(tensor)` is the data.

    Args:
      data: `[steps, ...]`; may be set later.
      recursive_seq_lens: one list of lengths for each level, outermost first. `[[2, 3]]` are rows of 2 and 3 steps.
        `[[2, 1], [3, 1, 2]]` are a row of two sequences, of 3 and 1 steps, and a row of one sequence, of 2 steps.

    Example:
      >>> words = LoDTensor([[1], [2], [3], [4], [5]], [[2, 3]])
      >>> words.recursive_sequence_lengths(), words.lod(), words.shape()
      ([[2, 3]], [[0, 2, 5]], [5, 1])
      >>> [row.ravel().tolist() for row in words.batch().rows()]
      [[1, 2], [3, 4, 5]]
    """

    def __init__(self, data: Any = (), recursive_seq_lens: Sequence[Sequence[int]] = ()):
        self._data = np.asarray(data)
        self._lengths: Lengths = []
        self.set_recursive_sequence_lengths(recursive_seq_lens)

    @classmethod
    def of(cls, batch: "SequenceBatch | NestedSequenceBatch") -> "LoDTensor":
        """Convert a sequence batch, without its padding."""
        rows: list[Any] = batch.rows()
        lengths = [[len(row) for row in rows]]
        if isinstance(batch, NestedSequenceBatch):
            rows = list(itertools.chain.from_iterable(rows))
            lengths.append([len(row) for row in rows])
        steps = np.zeros((0, *batch.shape[1 + len(lengths) :]), batch.dtype)
        return cls(np.concatenate([steps, *rows]), lengths)

    def batch(self) -> "SequenceBatch | NestedSequenceBatch":
        """Convert the rows to a padded batch: a SequenceBatch for one level, a NestedSequenceBatch for two levels."""
        self.check()
        *outer, inner = self._lengths
        rows: list[Any] = np.split(self._data, np.cumsum(inner)[:-1]) if inner else []
        if not outer:
            return SequenceBatch.from_rows(rows)
        steps = iter(rows)
        return NestedSequenceBatch.from_rows([list(itertools.islice(steps, n)) for n in outer[0]], self._data.dtype)

    def set(self, data: Any, place: Any = None) -> None:
        """Replace the data by other data `[steps, ...]`; `place` is accepted and ignored."""
        del place
        self._data = np.asarray(data)

    def recursive_sequence_lengths(self) -> Lengths:
        """Return the lengths, one list for each level."""
        return [list(level) for level in self._lengths]

    def set_recursive_sequence_lengths(self, recursive_seq_lens: Sequence[Sequence[int]]) -> None:
        """Replace the lengths, one list for each level.

        Raises:
          ArgumentError: there are more than two levels, or a length is not an integer of 0 or more.
        """
        try:
            lengths = [[int(n) for n in level] for level in recursive_seq_lens]
        except (TypeError, ValueError):
            lengths = [[], [], []]
        if len(lengths) > 2 or any(n < 0 for level in lengths for n in level):
            raise errors.ArgumentError(
                f"recursive_seq_lens={recursive_seq_lens!r}: expected a list of lengths for each of one or two levels: "
                f"[[2, 3]] for rows of 2 and 3 steps"
            )
        self._lengths = lengths

    def lod(self) -> Lengths:
        """Return the lengths as offsets, one list for each level: the start of each row, then the end of the last."""
        return [[0, *itertools.accumulate(level)] for level in self._lengths]

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Replace the lengths, given as offsets, one list for each level."""
        self.set_recursive_sequence_lengths([np.diff(level).tolist() for level in lod])

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the lengths add up.

        The sum of a level must equal the number of lengths of the next level; for the last level, the number of steps.
        Without lengths, the result is False.
        """
        counts = [*map(len, self._lengths[1:]), len(self._data) if self._data.ndim else 0]
        return bool(self._lengths) and [sum(level) for level in self._lengths] == counts

    def shape(self) -> list[int]:
        """Return the shape of the data, `[steps, ...]`."""
        return list(self._data.shape)

    def check(self) -> None:
        """Check that the lengths add up.

        Raises:
          ShapeError: the lengths do not add up.
        """
        if not self.has_valid_recursive_sequence_lengths():
            raise errors.ShapeError(
                f"found lengths {self._lengths} and data {self._data.dtype}{self.shape()}, expected that the lengths "
                f"of a level add up to the number of lengths of the next one, and the last to that of steps: [[2, 3]] "
                f"goes with 5 steps, [[2, 1], [3, 1, 2]] with 6"
            )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data, dtype) if copy else np.asarray(self._data, dtype)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"LoDTensor({self._data.dtype}{self.shape()}, {self._lengths})"
