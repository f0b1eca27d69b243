"""One field of one minibatch: checked against its declaration, and given the declared dtype and shape.

Checks look at a whole column at once; the sample to blame is searched for only when a check has failed.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import Array, FeedSpec, SequenceBatch

# What may be fed to what: class of the declared dtype, to the classes of data that lose nothing on the way.
_ACCEPTS = {
    "float": {"float", "int", "bool"},
    "int": {"int", "bool"},
    "bool": {"int", "bool"},
    "complex": {"complex", "float", "int", "bool"},
}
_SHORTEST = 4


def check_feed(spec: FeedSpec, value: Any, where: str = "") -> Any:
    """Check one column against its declaration, and give it the declared dtype and shape.

    Args:
      spec: the declaration.
      value: for dense data `[batch, ...]`: a NumPy array, nested lists, or a `jax.Array`, which stays on its device;
        for sequences: a list of rows of any length, or a SequenceBatch.
      where: what else a message shall say about the place, such as "batch 7".

    Returns:
      The array, the very same one when there is nothing to change; or a SequenceBatch.

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
    if type(value) is np.ndarray and (ready := _as_declared(spec, value)) is not None:
        return ready
    want = spec.held
    if spec.lod_level:
        return _sequences(spec, value, want, where)
    if isinstance(value, SequenceBatch):  # dense data of one step per row, fed with its lengths
        value = np.concatenate(value.rows())
    if isinstance(value, jax.Array):
        return _reshaped(spec, _typed_on_device(spec, value, want, where), spec.shape, where)
    array = value if isinstance(value, np.ndarray) else _stacked(spec, value, want, where)
    if array.shape[:1] == (0,) and spec.shape[:1] == (None,):
        raise _wrong_shape(spec, array.shape, spec.shape, where)
    return _reshaped(spec, _typed(spec, array, want, where, value), spec.shape, where)


def _as_declared(spec: FeedSpec, array: np.ndarray) -> np.ndarray | None:
    """The array when it is plain to see that it fits, as nearly every array does; else None."""
    row = spec.shape[1:]
    if array.dtype != spec.held or spec.lod_level or spec.shape[:1] != (None,) or not array.size:
        return None
    if array.shape[1:] != row:
        if row != (1,) or array.ndim != 1:
            return None
        array = array[:, None]
    if spec.limits is not None:
        # Read as unsigned, negative numbers are large: one pass tells both bounds.
        if spec.limits[0] != 0 or array.dtype.kind != "i":
            return None
        if array.view(f"u{array.dtype.itemsize}").max() >= spec.limits[1]:
            return None
    return array


def padded_time(longest: int) -> int:
    """To how many steps sequences are padded: powers of two, so that few shapes are ever compiled.

    Args:
      longest: length of the longest row.

    Example:
      >>> [padded_time(n) for n in (0, 3, 5, 8, 100)]
      [4, 4, 8, 8, 128]
    """
    return max(_SHORTEST, 1 << max(longest - 1, 0).bit_length())


def complaint(
    spec: FeedSpec, where: str, sample: int | None, found: str, fix: str, expected: str = "", dtype: bool = False
) -> errors.FeedError:
    """The error about a feed: its name, the sample, the batch; what was found and expected; and what to do.

    Args:
      spec: the declaration.
      where: "batch 7", or empty.
      sample: index in the batch, or None when it is none in particular.
      found: what was found.
      fix: a sentence, or the corrected call.
      expected: what was expected; the declaration by default.
      dtype: whether the dtype is to blame.
    """
    place = ", ".join(filter(None, (f"feed {spec.name!r}", "" if sample is None else f"sample {sample}", where)))
    declared = str(Array(spec.shape, spec.dtype)) + (", rows of any length (lod_level=1)" if spec.lod_level else "")
    site = f" (declared at {spec.site})" if spec.site else ""
    kind = errors.FeedTypeError if dtype else errors.FeedError
    return kind(f"{place}: found {found}, expected {expected or declared}{site}. {fix}")


# Dtypes and values


@functools.lru_cache(maxsize=256)
def _class_of(dtype: Any) -> str:
    for parent, name in (
        (np.floating, "float"),
        (np.integer, "int"),
        (np.bool_, "bool"),
        (np.complexfloating, "complex"),
    ):
        if jnp.issubdtype(dtype, parent):
            return name
    return "other"


def _typed(
    spec: FeedSpec,
    array: np.ndarray,
    want: np.dtype,
    where: str,
    rows: Any,
    owner: Callable[[int], int] = int,
) -> np.ndarray:
    """The array in the wanted dtype; `owner` tells which sample an index of the first dimension belongs to."""
    if array.dtype != want and _class_of(array.dtype) not in _ACCEPTS.get(_class_of(want), ()):
        raise _wrong_dtype(spec, rows, want, where, array.dtype)
    if array.size and (spec.limits is not None or not _always_fits(array.dtype, want)):
        _check_range(spec, array, want, where, owner)
    if array.dtype == want:
        return array
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return array.astype(want)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            at = tuple(np.argwhere(np.isinf(array.astype(want)) & ~np.isinf(array))[0])
        found = f"the value {array[at]}, too large for {want}"
        raise complaint(spec, where, owner(at[0]) if at else None, found, "Scale the data") from None


@functools.lru_cache(maxsize=256)
def _always_fits(found: np.dtype, want: np.dtype) -> bool:
    return _class_of(want) not in ("int", "bool") or bool(np.can_cast(found, want))


def _check_range(spec: FeedSpec, array: np.ndarray, want: np.dtype, where: str, owner: Callable[[int], int]) -> None:
    fits, low, high, also = _bounds(spec.limits, want)
    if low <= array.min() and array.max() < high:
        return
    bad = (array < low) | (array >= high)
    if also is not None:
        bad &= array != also
    if not bad.any():
        return
    at = tuple(np.argwhere(bad)[0])
    value = array[at]
    if not fits[0] <= value < fits[1]:
        expected = f"what fits into {want}: {fits[0]} to {fits[1] - 1}"
        fix = "Number ids from 0 on, or enable 64 bits: jax.config.update('jax_enable_x64', True)"
    else:
        expected = f"{low} <= value < {high}" + ("" if also is None else f" (or {also})")
        fix = f"Ids and labels count from 0; correct the data, or give the layer that takes {spec.name!r} a larger size"
    raise complaint(spec, where, owner(at[0]) if at else None, f"the value {value}", fix, expected)


@functools.lru_cache(maxsize=256)
def _bounds(limits: Any, want: np.dtype) -> tuple[tuple[float, float], float, float, int | None]:
    """What fits into the wanted dtype, and within that what a layer allows."""
    fits: tuple[float, float] = (0, 2) if want == np.bool_ else (-math.inf, math.inf)
    if _class_of(want) == "int":
        fits = int(jnp.iinfo(want).min), int(jnp.iinfo(want).max) + 1
    low, high, also = limits or (*fits, None)
    return fits, max(low, fits[0]), min(high, fits[1]), also


def _wrong_dtype(spec: FeedSpec, rows: Any, want: np.dtype, where: str, found: Any) -> errors.FeedError:
    accepted = _ACCEPTS.get(_class_of(want), set())
    sample, shown = None, f"{found} data"
    for index, row in enumerate(rows if isinstance(rows, Sequence) or np.ndim(rows) else ()):
        array = _array_or_none(row)
        if array is None or (array.size and _class_of(array.dtype) not in accepted):
            sample, shown = index, _described(row, array)
            break
    else:
        if _class_of(want) == "int" and isinstance(rows, Sequence):  # NumPy turns lists with huge numbers into floats
            return complaint(spec, where, None, f"whole numbers too large for {want}", "Number ids from 0 on")
    if isinstance(sample, int) and _huge(rows[sample]):
        return complaint(spec, where, sample, f"the value {rows[sample]}, too large for {want}", "Number ids from 0 on")
    if _class_of(found) == "float" or "float" in shown:
        fix = "Class labels and ids are whole numbers: value.astype('int64'); or declare the feed with dtype='float32'"
    else:
        fix = "Give numbers; turn words into ids first, for example {word: id}[word]"
    return complaint(spec, where, sample, shown, fix, dtype=True)


def _huge(row: Any) -> bool:
    while isinstance(row, list | tuple) and row:
        row = max(row, key=lambda v: abs(v) if isinstance(v, int) else -1)
    return isinstance(row, int) and not -(2**63) <= row < 2**64


def _described(row: Any, array: np.ndarray | None) -> str:
    if array is None:
        return f"lists of different lengths in {_short(row)}"
    if _class_of(array.dtype) == "other":
        return f"{_short(row)} ({type(row).__name__})"
    return f"{array.dtype} {_short(row)}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _array_or_none(row: Any) -> np.ndarray | None:
    try:
        return np.asarray(row)
    except ValueError:
        return None


def _typed_on_device(spec: FeedSpec, value: jax.Array, want: np.dtype, where: str) -> jax.Array:
    if value.dtype == want:
        return value
    if _class_of(value.dtype) not in _ACCEPTS.get(_class_of(want), ()):
        fix = f"Convert it first: value.astype('{want}')"
        raise complaint(spec, where, None, f"a jax.Array of dtype {value.dtype}", fix, dtype=True)
    return value.astype(want)


# Shapes


def _reshaped(spec: FeedSpec, array: Any, declared: tuple[int | None, ...], where: str) -> Any:
    target = _fit(array.shape, declared)
    if target is None or (declared[:1] == (None,) and target[0] == 0):
        raise _wrong_shape(spec, tuple(array.shape), declared, where)
    return array if array.shape == target else array.reshape(target)


def _fit(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> tuple[int, ...] | None:
    """What to reshape to: the shape itself, or the declared one when only flattening or sizes of 1 tell them apart."""
    if len(shape) == len(declared):
        for found, size in zip(shape, declared, strict=True):
            if found != size and size is not None:
                break
        else:
            return shape
    head = 1 if declared[:1] == (None,) else 0
    row, want = shape[head:], declared[head:]
    if len(shape) < head or None in want or math.prod(row) != math.prod(w for w in want if w is not None):
        return None
    if len(row) > 1 and len(want) > 1 and [d for d in row if d != 1] != [d for d in want if d != 1]:
        return None
    return (*shape[:head], *(w for w in want if w is not None))


def _wrong_shape(
    spec: FeedSpec, shape: tuple[int, ...], declared: tuple[int | None, ...], where: str, sample: int | None = 0
) -> errors.FeedError:
    if declared[:1] != (None,):
        return complaint(spec, where, None, f"shape {list(shape)}", f"Give an array of shape {list(declared)}")
    if shape[:1] == (0,):
        return complaint(spec, where, None, "an empty minibatch", "Give at least one sample", "at least one sample")
    want = [f"{d}" for d in declared[1:]]
    sizes = f"[{', '.join(want)}]"
    if _fit((1, *shape), declared) is not None and None not in declared[1:]:
        fix = "This is one sample without a batch dimension: value[None]"
        return complaint(spec, where, None, f"shape {list(shape)}", fix)
    if not shape:
        return complaint(spec, where, None, "a single number", "Give one row for each sample, as a list")
    if sorted(shape[1:]) == sorted(d for d in declared[1:] if d is not None):
        fix = f"The sizes are there in another order: np.transpose the data to {sizes}"
    elif len(shape) == 2 and len(want) == 1:
        fix = f"Declare layers.data({spec.name!r}, shape=[{shape[1]}]), or give rows of {want[0]} values"
    else:
        fix = f"Declare layers.data({spec.name!r}, shape={list(shape[1:])}), or reshape each row to {sizes}"
    return complaint(spec, where, sample, f"a row of shape {list(shape[1:])}", fix, f"rows of shape {sizes}")


def _stacked(spec: FeedSpec, rows: Any, want: np.dtype, where: str) -> np.ndarray:
    try:
        return np.asarray(rows)
    except ValueError:
        pass
    arrays = [_array_or_none(row) for row in rows]
    for index, (row, array) in enumerate(zip(rows, arrays, strict=True)):
        if array is None:
            raise complaint(spec, where, index, _described(row, None), _declare_sequence(spec))
        if _class_of(array.dtype) == "other":
            raise _wrong_dtype(spec, rows, want, where, array.dtype)
        if _fit((1, *array.shape), spec.shape) is None:
            error = _wrong_shape(spec, (1, *array.shape), spec.shape, where, index)
            raise type(error)(f"{error}. The rows differ in shape: {_declare_sequence(spec)}")
    return np.concatenate([a.reshape(t) for a in arrays if a is not None and (t := _fit((1, *a.shape), spec.shape))])


def _declare_sequence(spec: FeedSpec) -> str:
    dtype = "" if spec.dtype == "float32" else f", dtype={spec.dtype!r}"
    return f"for rows of any length declare lod_level=1: layers.data({spec.name!r}, shape=[1]{dtype}, lod_level=1)"


# Sequences


def _sequences(spec: FeedSpec, value: Any, want: np.dtype, where: str) -> SequenceBatch:
    if isinstance(value, SequenceBatch):
        return _checked_batch(spec, value, want, where)
    if isinstance(value, jax.Array | np.ndarray) and value.ndim >= 2 and value.dtype != object:
        return _checked_batch(spec, SequenceBatch(value, np.full(len(value), value.shape[1], np.int32)), want, where)
    rows = [np.asarray(row) if hasattr(row, "__array__") else row for row in value] if np.iterable(value) else [value]
    if not rows:
        raise _wrong_shape(spec, (0,), spec.shape, where)
    flat = _joined(spec, rows, where)
    lengths = np.array([len(row) for row in rows], np.int32)
    ends = np.cumsum(lengths)
    flat = _typed(spec, flat, want, where, rows, lambda step: int(np.searchsorted(ends, step, "right")))
    target = _fit(flat.shape, (None, *spec.shape[1:])) if flat.size else (0, *(d or 0 for d in spec.shape[1:]))
    if target is None:
        raise _wrong_steps(spec, rows, where)
    time = padded_time(int(lengths.max()))
    data = np.zeros((len(rows), time, *target[1:]), want)
    data[np.arange(time) < lengths[:, None]] = flat.reshape(target)
    return SequenceBatch(data, lengths)


def _joined(spec: FeedSpec, rows: list[Any], where: str) -> np.ndarray:
    """All steps of all rows, one after another."""
    try:
        filled = [row for row in rows if len(row)]
        if filled and all(isinstance(row, np.ndarray) for row in filled):
            return np.concatenate(filled)
        steps = list(itertools.chain.from_iterable(filled))
        return np.asarray(steps) if steps else np.zeros(0, np.bool_)
    except (TypeError, ValueError):
        raise _wrong_steps(spec, rows, where) from None


def _wrong_steps(spec: FeedSpec, rows: list[Any], where: str) -> errors.FeedError:
    step = list(spec.shape[1:])
    for index, row in enumerate(rows):
        array = _array_or_none(row)
        if array is None:
            return complaint(spec, where, index, _described(row, None), f"Each step of a row has the shape {step}")
        if array.ndim == 0:
            fix = "A row is a list of steps, also when there is only one: [value]"
            return complaint(spec, where, index, f"the single value {_short(row)}", fix)
        if array.size and _fit(array.shape, (None, *spec.shape[1:])) is None:
            found = list(array.shape[1:])
            fix = f"Declare layers.data({spec.name!r}, shape={found or [1]}, lod_level=1), or give such steps"
            return complaint(spec, where, index, f"steps of shape {found}", fix, f"steps of shape {step}")
    return complaint(spec, where, None, "rows whose steps differ in shape", f"Each step has the shape {step}")


def _checked_batch(spec: FeedSpec, value: SequenceBatch, want: np.dtype, where: str) -> SequenceBatch:
    data, lengths = value.data, value.lengths
    declared = (None, None, *spec.shape[1:])
    # A step of one value may do without its own dimension: [batch, time].
    shape = (*data.shape, 1) if data.ndim == 2 and spec.shape[1:] == (1,) else tuple(data.shape)
    if _fit(shape, declared) is None or not shape[0] or np.shape(lengths) != shape[:1]:
        found = f"sequences of shape {list(data.shape)} with lengths of shape {list(np.shape(lengths))}"
        raise complaint(spec, where, None, found, "Rows of any length become such: SequenceBatch.from_rows(rows)")
    if isinstance(data, jax.Array):
        data = _typed_on_device(spec, data, want, where)
    else:
        real = np.arange(shape[1]) < np.asarray(lengths)[:, None]
        owners = np.nonzero(real)[0]
        _typed(
            spec,
            data[real],
            want,
            where,
            [row[:n] for row, n in zip(data, lengths, strict=True)],
            lambda i: int(owners[i]),
        )
        data = data.astype(want, copy=False)
    if data is value.data and shape == data.shape:
        return value
    return SequenceBatch(data.reshape(shape), lengths)
