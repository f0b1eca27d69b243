"""Sequences: the padded batches SequenceBatch and NestedSequenceBatch, and Fluid's LoDTensor without padding."""

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.fed_numbers import numbers_of
from fluid.core.frame import FeedSpec

# `_SINGULAR`: operators without a value or gradient at 0. Padding is often 0, so it is replaced by ones before the
# operator is applied.
_SINGULAR = (operator.truediv, operator.floordiv, operator.mod, operator.pow)


def _binary(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two methods of SequenceBatch for a binary operator, such as `__sub__` and `__rsub__`."""

    def forward(self: "SequenceBatch", other: Any) -> Any:
        operand = _operand(self, other, function)
        return NotImplemented if operand is None else self.with_data(function(_steps(self, function), operand))

    def backward(self: "SequenceBatch", other: Any) -> Any:
        operand = _operand(self, other, function)
        return NotImplemented if operand is None else self.with_data(function(operand, _steps(self, function)))

    return forward, backward


def _steps(batch: "SequenceBatch", function: Callable[[Any, Any], Any]) -> Any:
    if function not in _SINGULAR and isinstance(batch.data, np.ndarray):
        return batch.data  # NumPy arrays are never differentiated, so NaN in the padding cannot make gradients NaN
    return filled(batch, function in _SINGULAR)


def _operand(batch: "SequenceBatch", other: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Return the second operand of an operator, reshaped to broadcast with `batch.data`; None for an invalid type."""
    if isinstance(other, SequenceBatch):
        _check_lengths(batch, other, function)
        # If the steps of `other` have fewer dimensions than the steps of `batch`, insert dimensions of size 1 after
        # the dimensions batch and time.
        spread = [1] * (batch.data.ndim - other.data.ndim)
        return _steps(other, function).reshape(*other.shape[:2], *spread, *other.shape[2:])
    if isinstance(other, int | float | np.generic):
        return other
    if not hasattr(other, "ndim") or not hasattr(other, "dtype"):
        return None
    step = batch.shape[2:]
    shape = tuple(other.shape)
    # An array `[1, *step]`, where `step` is the shape of one step, fits each step of a sequence batch: remove its first
    # dimension.
    if len(shape) == len(step) + 1 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > len(step) or any(a not in (1, b) for a, b in zip(shape[::-1], step[::-1], strict=False)):
        raise errors.ShapeError(
            f"{function.__name__} of a sequence batch {batch.dtype}{list(batch.shape)} and an array "
            f"{list(other.shape)}: the array must fit each step, {list(step)}; for one value per sequence use "
            f"layers.sequence_expand(x, y), for arrays [batch, time, ...] batch.with_data(...)"
        )
    return other.reshape(shape)


_ROW = "a row of a sequence batch"  # in messages


def _check_lengths(first: "SequenceBatch", second: "SequenceBatch", function: Callable[[Any, Any], Any]) -> None:
    traced = any(isinstance(v.lengths, jax.core.Tracer) for v in (first, second))
    same = first.shape[:2] == second.shape[:2]
    if same and not traced:
        same = np.array_equal(np.asarray(first.lengths), np.asarray(second.lengths))
    if not same or second.data.ndim > first.data.ndim:
        raise errors.ShapeError(
            f"{function.__name__} of two sequence batches {first.dtype}{list(first.shape)} and "
            f"{second.dtype}{list(second.shape)}: their lengths must be the same, and the second must not have steps "
            f"of more dimensions"
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)  # `eq=False`, because the method `__eq__` of the class compares step by step
class SequenceBatch:
    """A batch of sequences: padded data and the length of each sequence.

    Operators such as `+` work step by step, and the result has the same lengths. The second operand is a number, a
    sequence batch with equal lengths, or an array that broadcasts with one step. For example, an array `[d]` or
    `[1, d]` fits data `[batch, time, d]`. `batch @ weight` multiplies each step by a matrix.

    Attributes:
      data: `[batch, time, ...]`; elements after a row's length are padding, with arbitrary values.
      lengths: `[batch]`, int32.

    Example:
      >>> batch = SequenceBatch.from_rows([[1, 2, 3], [4]])
      >>> batch.data.shape, [int(n) for n in batch.lengths]
      ((2, 3), [3, 1])
      >>> [row.tolist() for row in (1 - batch * 2).rows()]
      [[-1, -3, -5], [-7]]
    """

    # With `__array_ufunc__ = None`, NumPy calls the reflected operator of this class: in `array + batch`, `__radd__`.
    __array_ufunc__ = None

    data: Any
    lengths: Any

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None, time: int | None = None) -> "SequenceBatch":
        """Pad rows `[length_i, ...]` with zeros to `time` steps, or to the longest row.

        Args:
          rows: arrays or lists, one for each sequence; only their first dimensions may differ.
          dtype: dtype of the data; by default the dtype to which NumPy promotes the dtypes of all rows with elements.
          time: the number of steps after padding; by default the length of the longest row, which is the minimum.
        """
        arrays = [numbers_of(row, dtype, _ROW) for row in rows]
        lengths = np.array([len(a) for a in arrays], np.int32)
        time = int(lengths.max(initial=0)) if time is None else time
        tail = next((a.shape[1:] for a in arrays if a.size), arrays[0].shape[1:] if arrays else ())
        # NumPy reads an empty list as float64, so that empty rows have no say.
        dtypes = [a.dtype for a in arrays if a.size] or [a.dtype for a in arrays] or [np.dtype(dtype)]
        data = np.zeros((len(arrays), time, *tail), np.result_type(*dtypes))
        for padded, array in zip(data, arrays, strict=True):
            padded[: len(array)] = array
        return cls(data, lengths)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the padded data, `[batch, time, ...]`."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the data."""
        return self.data.dtype

    @property
    def mask(self) -> jax.Array:
        """The mask of real steps: bool `[batch, time]`, False for padding."""
        return jnp.arange(self.data.shape[1])[None, :] < self.lengths[:, None]

    def with_data(self, data: Any) -> "SequenceBatch":
        """Return a batch with the lengths of this batch and with the given data `[batch, time, ...]`."""
        return SequenceBatch(data, self.lengths)

    def rows(self) -> list[np.ndarray]:
        """Return the sequences without padding, as a list of NumPy arrays `[length_i, ...]`."""
        data, lengths = np.asanyarray(self.data), np.asarray(self.lengths)
        return [numbers_of(row[:n], what=_ROW) for row, n in zip(data, lengths, strict=True)]

    __add__, __radd__ = _binary(operator.add)
    __sub__, __rsub__ = _binary(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod)
    __pow__, __rpow__ = _binary(operator.pow)
    __and__, __rand__ = _binary(operator.and_)
    __or__, __ror__ = _binary(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor)
    __lt__, __gt__ = _binary(operator.lt)[0], _binary(operator.gt)[0]
    __le__, __ge__ = _binary(operator.le)[0], _binary(operator.ge)[0]
    __eq__, __ne__ = _binary(operator.eq)[0], _binary(operator.ne)[0]
    __hash__ = object.__hash__  # hash by identity: Python removes the hash of a class that defines `__eq__`

    def __bool__(self) -> bool:
        raise errors.ArgumentTypeError(
            "a sequence batch is neither true nor false: a condition such as `x > 0` holds one truth for each step; "
            "choose with layers.where(condition, x, y), or reduce it: layers.reduce_any(condition)"
        )

    def __abs__(self) -> "SequenceBatch":
        return self.with_data(abs(self.data))

    def __neg__(self) -> "SequenceBatch":
        return self.with_data(-self.data)

    def __pos__(self) -> "SequenceBatch":
        return self

    def __invert__(self) -> "SequenceBatch":
        return self.with_data(~self.data)

    def __matmul__(self, weight: Any) -> "SequenceBatch":
        if isinstance(weight, SequenceBatch) or not hasattr(weight, "ndim"):
            return NotImplemented
        if self.data.ndim != 3 or weight.ndim not in (1, 2) or weight.shape[0] != self.shape[2]:
            raise errors.ShapeError(
                f"a sequence batch {self.dtype}{list(self.shape)} @ {weight.dtype}{list(weight.shape)}: each step is "
                f"multiplied by a matrix [size of a step, columns]"
            )
        return self.with_data(_steps(self, operator.matmul) @ weight)


def spread_mask(batch: Any, ndim: int) -> Any:
    """Return the mask of a sequence batch, reshaped to `ndim` dimensions: dimensions of size 1 are appended."""
    mask = batch.mask
    return mask.reshape(*mask.shape, *[1] * (ndim - mask.ndim))


def filled(batch: Any, fill: Any) -> Any:
    """Return the data of a sequence batch, with `fill` in place of the padding."""
    data = jnp.asarray(batch.data)
    return jnp.where(spread_mask(batch, data.ndim), data, jnp.asarray(fill, data.dtype))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NestedSequenceBatch:
    """A batch of sequences of sequences: padded data, the number of sequences of each row, and the sequence lengths.

    A layer that works on inner sequences computes on `flat()`, a SequenceBatch of all inner sequences. `nest` converts
    the result back to rows.

    Attributes:
      data: `[batch, outer, inner, ...]`; elements after the lengths are padding, with arbitrary values.
      lengths: `[batch]`, int32: the number of sequences in each row.
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

    # With `__array_ufunc__ = None`, NumPy leaves operators with an array on the left to this class.
    __array_ufunc__ = None

    data: Any
    lengths: Any
    inner_lengths: Any

    @classmethod
    def from_rows(
        cls, rows: Sequence[Sequence[Any]], dtype: Any = None, outer: int | None = None, inner: int | None = None
    ) -> "NestedSequenceBatch":
        """Create a batch from rows, each a list of sequences `[length_ij, ...]`; pad with zeros.

        Args:
          rows: for each row a list of sequences, which are arrays or lists; only their first dimensions may differ.
          dtype: dtype of the data; by default the dtype of the sequences.
          outer: the number of sequences in each padded row; by default the largest number in `rows`.
          inner: the number of steps in each padded sequence; by default the length of the longest sequence.
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
        """The shape of the padded data, `[batch, outer, inner, ...]`."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> Any:
        """Dtype of the data."""
        return self.data.dtype

    @property
    def outer_mask(self) -> jax.Array:
        """The mask of real inner sequences: bool `[batch, outer]`, False for padding."""
        return jnp.arange(self.data.shape[1])[None, :] < self.lengths[:, None]

    @property
    def mask(self) -> jax.Array:
        """The mask of real steps: bool `[batch, outer, inner]`, False for padding."""
        steps = jnp.arange(self.data.shape[2]) < self.inner_lengths[..., None]
        return self.outer_mask[..., None] & steps

    def with_data(self, data: Any) -> "NestedSequenceBatch":
        """Return a batch with the lengths of this batch and with the given data `[batch, outer, inner, ...]`."""
        return NestedSequenceBatch(data, self.lengths, self.inner_lengths)

    def flat(self) -> SequenceBatch:
        """Return all inner sequences as one SequenceBatch of `batch * outer` rows; padding sequences have length 0."""
        lengths = jnp.where(self.outer_mask, self.inner_lengths, 0)
        return SequenceBatch(self.data.reshape(lengths.size, *self.shape[2:]), lengths.reshape(-1))

    def nest(self, value: Any) -> "SequenceBatch | NestedSequenceBatch":
        """Convert values that were computed from `flat()`, one for each inner sequence, back to rows.

        Args:
          value: an array `[batch * outer, ...]`, or a SequenceBatch of `batch * outer` sequences.

        Returns:
          A SequenceBatch `[batch, outer, ...]` if `value` is an array; a NestedSequenceBatch if `value` is a
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
        data, lengths, inner = (np.asanyarray(v) for v in (self.data, self.lengths, self.inner_lengths))
        return [
            [numbers_of(steps[:n], what=_ROW) for steps, n in zip(row[:count], sizes[:count], strict=True)]
            for row, count, sizes in zip(data, lengths, inner, strict=True)
        ]


# `Value` is the type of a layer's input: an array or a sequence batch. The result of a layer usually has the type of
# its input. No annotation can express this, so layers that may return either type are annotated with Any.
Value = jax.Array | np.ndarray | SequenceBatch | NestedSequenceBatch


def data_of(value: Any) -> Any:
    """Return the padded data array of a sequence batch; return any other value unchanged."""
    return value.data if isinstance(value, SequenceBatch | NestedSequenceBatch) else value


def stand_in(spec: FeedSpec, batch: int, steps: Sequence[int], size: int | None = None) -> Any:
    """Return dummy data (zeros) for tracing, with the type, shape and dtype of a feed. Sequences have length 1."""
    open_ = [batch, *[batch if size is None else size] * len(spec.shape)]
    sizes = [o if d is None else d for o, d in zip(open_, spec.shape, strict=False)]
    if spec.lod_level:
        sizes[:1] = [batch, *steps[2 - spec.lod_level :]]
    data = jnp.zeros(sizes, spec.held)
    lengths = [jnp.ones(sizes[: 1 + level], jnp.int32) for level in range(spec.lod_level)]
    return (lambda data: data, SequenceBatch, NestedSequenceBatch)[spec.lod_level](data, *lengths)


Lengths = list[list[int]]


class LoDTensor:
    """Sequences without padding: the concatenated steps of all sequences, and the lengths of the sequences.

    A LoDTensor is a valid feed for sequences and for dense data. `infer(..., return_numpy=False)` returns LoDTensors
    for sequences. `np.array(tensor)` returns the data.

    Args:
      data: `[steps, ...]`; `set` can set the data later.
      recursive_seq_lens: one list of lengths for each level, outermost first. `[[2, 3]]` means two sequences, of 2 and
        3 steps. `[[2, 1], [3, 1, 2]]` means one row of two sequences, of 3 and 1 steps, and one row of one sequence,
        of 2 steps.

    Example:
      >>> words = LoDTensor([[1], [2], [3], [4], [5]], [[2, 3]])
      >>> words.recursive_sequence_lengths(), words.lod(), words.shape()
      ([[2, 3]], [[0, 2, 5]], [5, 1])
      >>> [row.ravel().tolist() for row in words.batch().rows()]
      [[1, 2], [3, 4, 5]]
    """

    def __init__(self, data: Any = (), recursive_seq_lens: Sequence[Sequence[int]] = ()):
        self._data = numbers_of(data, what="LoDTensor")
        self._lengths: Lengths = []
        self.set_recursive_sequence_lengths(recursive_seq_lens)

    @classmethod
    def of(cls, batch: "SequenceBatch | NestedSequenceBatch") -> "LoDTensor":
        """Convert a sequence batch to a LoDTensor, without the padding."""
        rows: list[Any] = batch.rows()
        lengths = [[len(row) for row in rows]]
        if isinstance(batch, NestedSequenceBatch):
            rows = list(itertools.chain.from_iterable(rows))
            lengths.append([len(row) for row in rows])
        steps = np.zeros((0, *batch.shape[1 + len(lengths) :]), batch.dtype)
        return cls(np.concatenate([steps, *rows]), lengths)

    def batch(self) -> "SequenceBatch | NestedSequenceBatch":
        """Convert the tensor to a padded batch: a SequenceBatch for one level, a NestedSequenceBatch for two levels."""
        self.check()
        *outer, inner = self._lengths
        rows: list[Any] = np.split(self._data, np.cumsum(inner)[:-1]) if inner else []
        if not outer:
            return SequenceBatch.from_rows(rows)
        steps = iter(rows)
        return NestedSequenceBatch.from_rows([list(itertools.islice(steps, n)) for n in outer[0]], self._data.dtype)

    def set(self, data: Any, place: Any = None) -> None:
        """Replace the data, `[steps, ...]`, which holds the steps of all sequences. `place` has no effect."""
        del place
        self._data = numbers_of(data, what="LoDTensor")

    def recursive_sequence_lengths(self) -> Lengths:
        """Return the sequence lengths, one list for each level, outermost first."""
        return [list(level) for level in self._lengths]

    def set_recursive_sequence_lengths(self, recursive_seq_lens: Sequence[Sequence[int]]) -> None:
        """Replace the sequence lengths by `recursive_seq_lens`, one list for each level, outermost first.

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
        """Return one list of offsets for each level: the start of each sequence, then the end of the last sequence."""
        return [[0, *itertools.accumulate(level)] for level in self._lengths]

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Replace the sequence lengths; `lod` has one list of offsets for each level, such as `[[0, 2, 5]]`."""
        self.set_recursive_sequence_lengths([np.diff(level).tolist() for level in lod])

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the sequence lengths fit the data.

        The sum of each level must equal the number of lengths of the next level. The sum of the last level must equal
        the number of steps. Without lengths, the result is False.
        """
        counts = [*map(len, self._lengths[1:]), len(self._data) if self._data.ndim else 0]
        return bool(self._lengths) and [sum(level) for level in self._lengths] == counts

    def shape(self) -> list[int]:
        """Return the shape of the data, `[steps, ...]`, as a list."""
        return list(self._data.shape)

    def check(self) -> None:
        """Check that the sequence lengths fit the data, see `has_valid_recursive_sequence_lengths`.

        Raises:
          ShapeError: the lengths do not fit the data.
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
