"""Rows of variable length: check rows, join their steps to one array, and pad them once the padded sizes are chosen."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid._util.text import short
from fluid.core import FeedSpec, LoDTensor, NestedSequenceBatch, SequenceBatch, numbers_of, unmasked, warn_once
from fluid.reader.feed_checks import array_or_none, complaint, described, empty, fit, typed, typed_on_device

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Ragged:
    """A column of rows of variable length that fit their declaration and are not padded yet.

    Attributes:
      steps: the steps of all sequences, one sequence after the other: `[steps, ...]`.
      lengths: `[batch]`: the number of steps of each row; for nested rows, the number of sequences of each row.
      inner_lengths: for nested rows, the number of steps of each sequence, one row after the other; else None.
    """

    steps: np.ndarray
    lengths: np.ndarray
    inner_lengths: np.ndarray | None = None

    @property
    def shape(self) -> Sizes:
        """The sizes of the column that are known before padding: only the number of rows, `(batch,)`."""
        return self.lengths.shape


def sizes_of(value: Any) -> Sizes | None:
    """Return the smallest sizes to which the rows of a batch of sequences can be padded."""
    found = _lengths_of(value)
    return None if found is None else tuple(int(lengths.max(initial=0)) for lengths in found)


def longest_rows(value: Any) -> Sizes:
    """Return, for each padded size of a sequence batch, the index of the row that needs this size; see `sizes_of`."""
    lengths, *inner = _lengths_of(value) or ()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return (int(lengths.argmax()), *(int(owners[n.argmax()]) for n in inner))


def _lengths_of(value: Any) -> tuple[np.ndarray, ...] | None:
    """Return the lengths of the rows; for nested rows also the lengths of all sequences, one row after the other.

    Return None for a value that is not a sequence, or that is on a device.
    """
    if isinstance(value, Ragged):
        return (value.lengths,) if value.inner_lengths is None else (value.lengths, value.inner_lengths)
    if not isinstance(value, SequenceBatch | NestedSequenceBatch) or not isinstance(value.data, np.ndarray):
        return None
    lengths = np.asarray(value.lengths)
    if isinstance(value, SequenceBatch):
        return (lengths,)
    return lengths, np.asarray(value.inner_lengths)[_real(value.shape[1], lengths)]


def steps_of(value: Any) -> tuple[int, int]:
    """Return the number of real steps of a batch on the host, and the number of steps including padding."""
    mask = _mask(value)
    return int(mask.sum()), mask.size


def padded(value: Any, sizes: Sizes) -> Any:
    """Pad rows with zeros to given sizes; cut or extend a batch that is already padded to other sizes."""
    if isinstance(value, Ragged):
        return _laid_out(value, sizes)
    lengths = 1 if isinstance(value, SequenceBatch) else 2
    if value.shape[1 : 1 + lengths] == sizes:
        return value
    data = _resized(value.data, sizes)
    if isinstance(value, SequenceBatch):
        return SequenceBatch(data, value.lengths)
    return NestedSequenceBatch(data, value.lengths, _resized(np.asarray(value.inner_lengths), sizes[:1]))


def unpadded(value: SequenceBatch | NestedSequenceBatch) -> list[np.ndarray]:
    """Return the steps of each row of a batch on the host; a mask of `numpy.ma` stays."""
    return [row[real] for row, real in zip(value.data, _mask(value), strict=True)]


def _mask(value: SequenceBatch | NestedSequenceBatch) -> np.ndarray:
    """Return a mask of a padded batch on the host: True for steps of sequences, False for padding.

    The mask is bool `[batch, time]`, or `[batch, sequences, time]` for nested sequences.
    """
    real = _real(value.shape[1], np.asarray(value.lengths))
    if isinstance(value, SequenceBatch):
        return real
    return real[..., None] & _real(value.shape[2], np.asarray(value.inner_lengths))


def _real(capacity: int, lengths: np.ndarray) -> np.ndarray:
    """Return a bool mask `[..., capacity]` for lengths `[...]`: True at the first `length` of `capacity` positions."""
    return np.arange(capacity) < lengths[..., None]


def _laid_out(rows: Ragged, sizes: Sizes) -> SequenceBatch | NestedSequenceBatch:
    real = _real(sizes[0], rows.lengths)
    if rows.inner_lengths is not None:
        inner_lengths = np.zeros(real.shape, np.int32)
        inner_lengths[real] = rows.inner_lengths
        real = _real(sizes[1], inner_lengths)
    data = np.zeros((*real.shape, *rows.steps.shape[1:]), rows.steps.dtype)
    data[real] = rows.steps
    if rows.inner_lengths is None:
        return SequenceBatch(data, rows.lengths)
    return NestedSequenceBatch(data, rows.lengths, inner_lengths)


def _resized(array: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Cut, or extend with zeros, the dimensions after the first of an array `[batch, ...]` to `sizes`.

    Dimensions after the `len(sizes)` resized ones stay unchanged.
    """
    new = np.zeros((len(array), *sizes, *array.shape[1 + len(sizes) :]), array.dtype)
    part = (slice(None), *(slice(min(a, b)) for a, b in zip(array.shape[1:], sizes, strict=False)))
    new[part] = array[part]
    return new


def read_sequences(spec: FeedSpec, value: Any, where: str) -> Any:
    """Check a column of sequences against its declaration.

    Args:
      value: a list of rows of any length; a SequenceBatch, NestedSequenceBatch or LoDTensor; an array of rows of equal
        length.

    Raises:
      FeedError, FeedTypeError: as for `check_feed`.
    """
    if isinstance(value, LoDTensor):
        value = _batch_of(spec, value, where)
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        return _checked_batch(spec, value, where)
    if isinstance(value, jax.Array | np.ndarray) and value.ndim > spec.lod_level and value.dtype != object:
        if isinstance(value, np.ndarray) and spec.lod_level == 1:
            _warn_of_padding(spec, value)
        return _checked_batch(spec, _equal_rows(spec, value), where)
    rows = [_row(row) for row in value] if np.iterable(value) else [value]
    if not rows:
        raise empty(spec, where)
    counts: np.ndarray | None = None
    owners: Sequence[int] = range(len(rows))
    if spec.lod_level == 2:
        counts, rows, owners = _unnested(spec, rows, where)
    flat = _joined(spec, rows, owners, where)
    lengths = np.array([len(row) for row in rows], np.int32)
    ends = np.cumsum(lengths)
    for index in np.flatnonzero(lengths == 0).tolist():
        if isinstance(rows[index], str | bytes | Mapping):
            fix = "A row is a list of steps, and an empty row is []"
            raise complaint(spec, where, owners[index], f"{rows[index]!r} as a row", fix)

    def owner(step: int) -> int:
        return owners[int(np.searchsorted(ends, step, "right"))]

    flat = typed(spec, flat, where, rows, owner, owners)
    if not flat.size and lengths.any() and 0 not in spec.shape[1:]:
        found = f"{short(rows[int(lengths.argmax())])}, steps without numbers"
        raise complaint(
            spec, where, owner(0), found, f"Each step has the shape {list(spec.shape[1:])}; a row may be []"
        )
    target = fit(flat.shape, (None, *spec.shape[1:])) if flat.size else (0, *(d or 0 for d in spec.shape[1:]))
    if target is None:
        raise _wrong_steps(spec, rows, owners, where)
    flat = flat.reshape(target)
    if counts is None and len(rows) > 1 and lengths.min() == lengths.max() > 1:
        _warn_of_padding(spec, flat.reshape(len(rows), int(lengths[0]), -1))
    return Ragged(flat, lengths) if counts is None else Ragged(flat, counts, lengths)


def _warn_of_padding(spec: FeedSpec, rows: np.ndarray) -> None:
    """Warn, once for each feed, of ids `[batch, time]` that are padded with zeros: each zero would count as a step.

    Rows look padded if they end in different numbers of zeros and have no other zeros.
    """
    steps = rows.reshape(len(rows), -1)
    if rows.dtype.kind not in "iu" or steps.shape[1] != rows.shape[1] or np.count_nonzero(steps[:, -1] == 0) < 2:
        return
    lengths = np.array([row.nonzero()[0][-1] + 1 if row.any() else 0 for row in steps])
    zeros = steps.shape[1] - lengths
    if zeros.max() < 2 or zeros.min() == zeros.max() or np.count_nonzero(steps == 0) != zeros.sum():
        return
    warn_once(
        spec,
        "padding",
        lambda: (
            f"feed {spec.name!r}: found {np.count_nonzero(zeros)} of {len(steps)} rows that end in zeros, as ids that "
            f"are padded already; with lod_level={spec.lod_level} each of these zeros counts as a step. Give rows "
            f"without padding, which fluid pads by itself: [row[row != 0] for row in ids]; or say how long they are: "
            f"fluid.SequenceBatch(ids, lengths)"
        ),
    )


def _row(row: Any) -> Any:
    """Return an array as an array of numbers or a list of Python objects; other rows are returned unchanged."""
    if type(row) is list or not hasattr(row, "__array__"):
        return row
    array = unmasked(row)
    return array.tolist() if array.dtype.kind == "O" else array


def _unnested(spec: FeedSpec, rows: list[Any], where: str) -> tuple[np.ndarray, list[Any], Sequence[int]]:
    """Split nested rows; return the number of sequences in each row, all sequences, and the row of each sequence."""
    for index, row in enumerate(rows):
        if not np.iterable(row) or isinstance(row, str) or not all(np.iterable(_row(s)) for s in row):
            found = f"{short(row)} as a row"
            fix = "A row is a list of sequences, also when there is only one: [[value, ...]]"
            raise complaint(spec, where, index, found, fix)
    counts = np.array([len(row) for row in rows], np.int32)
    return counts, [_row(s) for row in rows for s in row], np.repeat(np.arange(len(rows)), counts).tolist()


def _joined(spec: FeedSpec, rows: list[Any], owners: Sequence[int], where: str) -> np.ndarray:
    """Concatenate sequences of different lengths (`rows`) to one array of all their steps, without padding."""
    try:
        filled = [row for row in rows if len(row)]
        if filled and all(isinstance(row, np.ndarray) for row in filled):
            return numbers_of(np.concatenate(filled))
        steps = list(itertools.chain.from_iterable(filled))
        return numbers_of(steps) if steps else np.zeros(0, np.bool_)
    except (TypeError, ValueError):  # `_wrong_steps` raises NotNumbers for a row with a masked number
        raise _wrong_steps(spec, rows, owners, where) from None


def _wrong_steps(spec: FeedSpec, rows: list[Any], owners: Sequence[int], where: str) -> errors.FeedError:
    """Return the error for rows whose steps do not have the declared shape; the error names the first such row."""
    step = list(spec.shape[1:])
    for owner, row in zip(owners, rows, strict=True):
        array = array_or_none(row)
        if array is None:
            return complaint(spec, where, owner, described(row, None), f"Each step of a row has the shape {step}")
        if array.ndim == 0:
            fix = "A row is a list of steps, also when there is only one: [value]"
            return complaint(spec, where, owner, f"the single value {short(row)}", fix)
        if array.size and fit(array.shape, (None, *spec.shape[1:])) is None:
            found = list(array.shape[1:])
            fix = f"Declare layers.data({spec.name!r}, shape={found or [1]}, lod_level={spec.lod_level})"
            return complaint(
                spec, where, owner, f"steps of shape {found}", f"{fix}, or give such steps", f"steps of shape {step}"
            )
    return complaint(spec, where, None, "rows whose steps differ in shape", f"Each step has the shape {step}")


def _batch_of(spec: FeedSpec, tensor: LoDTensor, where: str) -> SequenceBatch | NestedSequenceBatch:
    levels = len(tensor.recursive_sequence_lengths())
    if levels != spec.lod_level or not tensor.has_valid_recursive_sequence_lengths():
        example = "[[2, 3]]" if spec.lod_level == 1 else "[[2, 1], [3, 1, 2]]"
        fix = f"Give lengths of {spec.lod_level} levels: create_lod_tensor(data, {example}, place)"
        raise complaint(spec, where, None, str(tensor), fix)
    return tensor.batch()


def _equal_rows(spec: FeedSpec, array: Any) -> SequenceBatch | NestedSequenceBatch:
    count, *sizes = array.shape[: 1 + spec.lod_level]
    lengths = np.full(count, sizes[0], np.int32)
    if spec.lod_level == 1:
        return SequenceBatch(array, lengths)
    return NestedSequenceBatch(array, lengths, np.full((count, sizes[0]), sizes[1], np.int32))


def _checked_batch(spec: FeedSpec, value: SequenceBatch | NestedSequenceBatch, where: str) -> Any:
    """Check a padded batch against its declaration, and convert it to the declared dtype and shape."""
    level = spec.lod_level
    data = value.data
    lengths = [value.lengths, getattr(value, "inner_lengths", None)][:level]
    # If each step is one number, the user may leave out the last dimension: [batch, time] instead of [batch, time, 1].
    shape = (*data.shape, 1) if data.ndim == 1 + level and spec.shape[1:] == (1,) else tuple(data.shape)
    expected = isinstance(value, NestedSequenceBatch if level == 2 else SequenceBatch)
    fitting = all(np.shape(n) == shape[: i + 1] for i, n in enumerate(lengths))
    if not expected or not fitting or fit(shape, (*(None,) * (1 + level), *spec.shape[1:])) is None or not shape[0]:
        kind = type(value).__name__ if not expected else "sequences"
        sizes = " and ".join(str(list(np.shape(n))) for n in lengths)
        found = f"{kind} of shape {list(data.shape)} with lengths of shape {sizes}"
        name = "NestedSequenceBatch" if level == 2 else "SequenceBatch"
        raise complaint(spec, where, None, found, f"Make one of rows of any length: {name}.from_rows(rows)")
    if isinstance(data, jax.Array) and spec.bounds is None:
        data = typed_on_device(spec, data, where)
    else:
        _check_lengths(spec, shape, lengths, where)
        real = _mask(value)
        owners = np.nonzero(real)[0]
        steps = typed(spec, numbers_of(data[real]), where, unpadded(value), lambda i: int(owners[i]))
        if data.dtype == object:  # the padding may be anything
            data = np.zeros(data.shape, spec.held)
            data[real] = steps
        data = np.asarray(data).astype(spec.held, copy=False)
    if data is value.data and shape == data.shape:
        return value
    return value.with_data(data.reshape(shape))


def _check_lengths(spec: FeedSpec, shape: Sizes, lengths: Sequence[Any], where: str) -> None:
    for level, given in enumerate(lengths):
        capacity = shape[1 + level]
        wrong = (np.asarray(given) < 0) | (np.asarray(given) > capacity)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            found = f"the length {int(np.asarray(given)[at])} in data of shape {list(shape)}"
            fix = "Lengths count the real steps of the padded data; rows of any length need none: feed a list of rows"
            raise complaint(spec, where, int(at[0]), found, fix, f"lengths from 0 to {capacity}")
