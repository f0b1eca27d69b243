"""Columns: check one field of a minibatch against its declaration, and convert it to the declared dtype and shape."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import (
    FeedSpec,
    NestedSequenceBatch,
    NotNumbers,
    SequenceBatch,
    first_bad,
    numbers_of,
)
from fluid.reader.buckets import padded_time
from fluid.reader.feed_checks import (
    NO_ROW,
    array_or_none,
    class_of,
    complaint,
    described,
    empty,
    fit,
    typed,
    typed_on_device,
)
from fluid.reader.ragged import padded, read_sequences, sizes_of, unpadded

_UNSIGNED = {np.dtype(f"i{size}"): np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def check_feed(spec: FeedSpec, value: Any, where: str = "") -> Any:
    """Check one column against its declaration, and convert it to the declared dtype and shape.

    Args:
      value: for dense data `[batch, ...]`: a NumPy array, nested lists, or a `jax.Array`, which stays on its device;
        for sequences: a list of rows of any length, a SequenceBatch or NestedSequenceBatch, or a LoDTensor.

    Raises:
      FeedError: shape, range or structure do not fit.
      FeedTypeError: the dtype does not fit.

    Example:
      >>> from fluid.core import FeedSpec
      >>> check_feed(FeedSpec("label", (None, 1), "int64"), [3, 1, 2])
      array([[3],
             [1],
             [2]], dtype=int32)
    """
    checked = read_feed(spec, value, where)
    if not spec.lod_level or isinstance(checked, SequenceBatch | NestedSequenceBatch):
        return checked
    return padded(checked, tuple(map(padded_time, sizes_of(checked) or ())))


def read_feed(spec: FeedSpec, value: Any, where: str = "") -> Any:
    """Check one column as `check_feed` does, but leave rows of variable length unpadded."""
    if type(value) is np.ndarray and (ready := _as_declared(spec, value)) is not None:
        return ready
    try:
        return read_sequences(spec, value, where) if spec.lod_level else _read_dense(spec, value, where)
    except NotNumbers as error:
        raise _not_numbers(spec, value, where, error) from None


def _read_dense(spec: FeedSpec, value: Any, where: str) -> Any:
    if type(value) is not list and isinstance(value, jax.Array):
        if spec.bounds is None:
            return _reshaped(spec, typed_on_device(spec, value, where), where)
        value = np.asarray(value)
    # A feed without lod_level may receive a sequence batch whose rows have one step each: the steps become the rows of
    # the array.
    if isinstance(value, SequenceBatch):
        value = np.concatenate(value.rows())
    array = value if type(value) is np.ndarray and value.dtype.kind in "biuf" else _stacked(spec, value, where)
    if not array.size and array.shape[:1] == (0,) and spec.shape[:1] == (None,):
        raise empty(spec, where)
    return _reshaped(spec, typed(spec, array, where, value), where)


def _not_numbers(spec: FeedSpec, value: Any, where: str, error: NotNumbers) -> errors.FluidError:
    """Return the error for a column that is not of numbers, with the index of the first bad value."""
    is_sequence = isinstance(value, SequenceBatch | NestedSequenceBatch)
    rows = unpadded(value) if is_sequence else value
    # `list` is for iterables that NumPy reads in another way, such as a column of pandas with missing integers
    if (bad := first_bad(rows) or first_bad(list(rows))) is None:
        return error
    index, found, fix = bad
    sample = index[0] if index and spec.shape[:1] == (None,) else None
    if found == "None (NoneType)":
        fix = f"{fix}. {NO_ROW}"
    return complaint(spec, where, sample, found + (f" at {index}" if index[1:] else ""), fix, dtype=True)


def batch_size(values: Mapping[str, Any]) -> int:
    """Return the number of rows, which must be equal in all values of a batch.

    Raises:
      FeedError: the numbers of rows differ, or are zero.

    Example:
      >>> batch_size({"x": np.zeros((3, 2)), "y": np.zeros((3, 1))})
      3
    """
    sizes = [value.shape[0] for value in values.values()]
    if sizes.count(sizes[0]) != len(sizes):
        shown = {name: value.shape[0] for name, value in values.items()}
        raise errors.FeedError(f"the feeds have different batch sizes: {shown}; give as many rows of each")
    if sizes[0] == 0:
        raise errors.FeedError("the batch is empty; give at least one row")
    return int(sizes[0])


def repeat_last(value: Any, count: int) -> np.ndarray:
    """Pad an array with `count` copies of its last row, so that layers see only values that occur in the data."""
    return np.concatenate([value, np.repeat(np.asarray(value[-1:]), count, axis=0)])


def is_sample(spec: FeedSpec, value: Any) -> bool | None:
    """Return whether a value is one sample of a feed (True) or a batch (False); None if its shape fits both."""
    try:
        array = None if spec.shape[:1] != (None,) else array_or_none(value)
    except NotNumbers:
        return False
    if array is None or class_of(array.dtype) == "other":
        return False
    if spec.lod_level:
        return array.ndim == spec.lod_level
    if fit((1, *array.shape), spec.shape) is None:
        return False
    return True if fit(array.shape, spec.shape) is None else None


def _as_declared(spec: FeedSpec, array: np.ndarray) -> np.ndarray | None:
    """Return the array in the declared shape if a quick check shows that it fits; None if a full check is needed."""
    row = spec.shape[1:]
    if array.dtype != spec.held or spec.lod_level or spec.shape[:1] != (None,) or not array.size or spec.bounds:
        return None
    if (limits := spec.limits_for(len(array))) is not None:
        unsigned = _UNSIGNED.get(array.dtype)
        # Read as unsigned integers, negative numbers become large numbers. So one comparison checks the lower limit 0
        # and the upper limit.
        if limits[0] != 0 or unsigned is None or array.view(unsigned).max() >= limits[1]:
            return None
    if array.shape[1:] == row:
        return array
    return array[:, None] if row == (1,) and array.ndim == 1 else None


def _reshaped(spec: FeedSpec, array: Any, where: str) -> Any:
    target = fit(array.shape, spec.shape)
    if target is None or (spec.shape[:1] == (None,) and target[0] == 0):
        raise _wrong_shape(spec, tuple(array.shape), where)
    return array if array.shape == target else array.reshape(target)


def _wrong_shape(spec: FeedSpec, shape: tuple[int, ...], where: str, sample: int = 0) -> errors.FeedError:
    declared = spec.shape
    if declared[:1] != (None,):
        return complaint(spec, where, None, f"shape {list(shape)}", f"Give an array of shape {list(declared)}")
    if shape[:1] == (0,):
        return empty(spec, where)
    want = [f"{d}" for d in declared[1:]]
    sizes = f"[{', '.join(want)}]"
    if fit((1, *shape), declared) is not None and None not in declared[1:]:
        fix = "This is one sample without a batch dimension: value[None]"
        return complaint(spec, where, None, f"shape {list(shape)}", fix)
    if not shape:
        return complaint(spec, where, None, "a single number", "Give one row for each sample, as a list")
    if sorted(shape[1:]) == sorted(d for d in declared[1:] if d is not None):
        fix = f"The sizes are there in another order: np.transpose the data to {sizes}"
    elif len(shape) == 2 and len(want) == 1:
        fix = f"Declare layers.data({spec.name!r}, shape=[{shape[1]}]), or give rows of {want[0]} values"
        if want == ["1"] and class_of(spec.dtype) == "int":
            fix = f"If these are one-hot rows, give the classes: value.argmax(axis=1). {fix}"
    else:
        fix = f"Declare layers.data({spec.name!r}, shape={list(shape[1:])}), or reshape each row to {sizes}"
    return complaint(spec, where, sample, f"a row of shape {list(shape[1:])}", fix, f"rows of shape {sizes}")


def _stacked(spec: FeedSpec, rows: Any, where: str) -> np.ndarray:
    """Stack rows to one array `[batch, ...]`; reshape rows of different shapes to the declared shape if possible."""
    try:
        return numbers_of(rows)
    except ValueError:
        pass
    arrays = [array_or_none(row) for row in rows]
    for index, (row, array) in enumerate(zip(rows, arrays, strict=True)):
        if array is None:
            raise complaint(spec, where, index, described(row, None), _declare_sequence(spec))
        if fit((1, *array.shape), spec.shape) is None:
            error = _wrong_shape(spec, (1, *array.shape), where, index)
            raise type(error)(f"{error}. The rows differ in shape: {_declare_sequence(spec)}")
    return np.concatenate([a.reshape(t) for a in arrays if a is not None and (t := fit((1, *a.shape), spec.shape))])


def _declare_sequence(spec: FeedSpec) -> str:
    dtype = "" if spec.dtype == "float32" else f", dtype={spec.dtype!r}"
    return f"for rows of any length declare lod_level=1: layers.data({spec.name!r}, shape=[1]{dtype}, lod_level=1)"
