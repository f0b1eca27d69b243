"""Values of feeds: check their dtype and range, and build the errors for values that do not fit.

Each check tests a whole column at once. Only if the check fails, the samples are searched for the one that the error
message names.
"""

import functools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.text import short
from fluid.core import Array, FeedSpec, numbers_of, warn, warn_once

# `_ACCEPTS` maps the class of a declared dtype, such as "float", to the classes of dtypes whose data may be converted
# to the declared dtype.
_ACCEPTS = {
    "float": {"float", "int", "bool"},
    "int": {"int", "bool"},
    "bool": {"int", "bool"},
    "complex": {"complex", "float", "int", "bool"},
}
# A float label may exceed its limits by `_ROUNDED` without an error, because of rounding errors.
_ROUNDED = 1e-3
NO_ROW = "A function of reader.map that ends without `return row` gives None"
# float32 does not represent every integer above `_EXACT`. `_looked_at` holds the declarations of the feeds that were
# checked for larger integers.
_EXACT = 2**24
_looked_at: "weakref.WeakSet[FeedSpec]" = weakref.WeakSet()
# A minibatch of fewer than `_LEAST_ROWS` rows may hold a single class by chance. So a small minibatch of one class does
# not show that the data is sorted by class.
_LEAST_ROWS = 8
_ROWS = ("", ", rows of any length (lod_level=1)", ", rows of sequences (lod_level=2)")


def complaint(
    spec: FeedSpec, where: str, sample: int | None, found: str, fix: str, expected: str = "", dtype: bool = False
) -> errors.FeedError:
    """Return the error for data that does not fit a feed, with the found value, the expected value, and a fix."""
    place = ", ".join(filter(None, (f"feed {spec.name!r}", "" if sample is None else f"sample {sample}", where)))
    declared = str(Array(spec.shape, spec.dtype)) + _ROWS[spec.lod_level]
    site = f" (declared at {spec.site})" if spec.site else ""
    kind = errors.FeedTypeError if dtype else errors.FeedError
    return kind(f"{place}: found {found}, expected {expected or declared}{site}. {fix}")


class SortedClasses:
    """A check of the minibatches of a training for rows that are sorted by a class label or an id.

    Training on sorted rows forgets one class while it trains on the next class. The check of a feed ends at the first
    minibatch with several classes, so that it costs almost nothing for shuffled rows.

    Example:
      >>> import warnings
      >>> check = SortedClasses([FeedSpec("y", (None, 1), "int64", limits=(0, 9, None))])
      >>> with warnings.catch_warnings(record=True, action="always") as caught:
      ...     for label in (3, 3, 5, 5):
      ...         check.look({"y": np.full((8, 1), label)})
      >>> print(str(caught[0].message).partition(";")[0])
      each of 4 minibatches holds one value of 'y' alone, first 3, then 5
    """

    def __init__(self, specs: Iterable[FeedSpec]):
        self._counts: dict[str, Counter[Any]] = {
            spec.name: Counter()
            for spec in specs
            if spec.limits is not None and not spec.indexes_rows and spec.shape in ((None,), (None, 1))
        }

    def look(self, feed: Mapping[str, Any]) -> None:
        """Check one minibatch for rows that are sorted by a class label or an id.

        Warn once for a feed if both conditions hold:

        - Each minibatch so far held a single class.
        - Exactly two classes were found so far, each of them in at least two minibatches.
        """
        for name, counts in list(self._counts.items()):
            values = feed[name]
            if type(values) is not np.ndarray or len(values) < _LEAST_ROWS or (values != values[0]).any():
                del self._counts[name]
                continue
            counts[values.flat[0].item()] += 1
            if len(counts) > 1:
                if min(counts.values()) > 1:
                    first, second = list(counts)[:2]
                    warn(
                        f"each of {counts.total()} minibatches holds one value of {name!r} alone, first {first}, then "
                        f"{second}; rows that are sorted train one class after the other. Shuffle them: "
                        f"fluid.reader.arrays(..., shuffle=True), or fluid.reader.shuffle(rows, buf_size=10000) "
                        f"before fluid.batch"
                    )
                if len(counts) > 2 or min(counts.values()) > 1:
                    del self._counts[name]


class NaNs:
    """A check of feeds for NaN, which warns once for each feed.

    Only arrays on the host are checked. This takes less time than a copy of the array, and happens while the device
    works. A check of an array on a device would have to wait until the device has computed the array.

    Example:
      >>> import warnings
      >>> with warnings.catch_warnings(record=True, action="always") as caught:
      ...     NaNs().look({"x": FeedSpec("x", (None, 1), "float32")}, {"x": np.array([[0.5], [np.nan]])}, "batch 7")
      >>> print(str(caught[0].message).partition(", expected")[0])
      feed 'x', sample 1, batch 7: found NaN in 1 of 2 samples
    """

    def __init__(self) -> None:
        self._noticed: set[str] = set()

    def look(self, specs: Mapping[str, FeedSpec], feed: Mapping[str, Any], where: str = "") -> None:
        """Warn of feeds that hold NaN, unless their declaration allows NaN or a warning was given before."""
        for name in self.found(specs, feed):
            self._tell(specs[name], feed[name], where)

    def found(self, specs: Mapping[str, FeedSpec], feed: Mapping[str, Any]) -> list[str]:
        """Return the names of feeds that hold NaN, except feeds that allow NaN or have been warned of.

        In contrast to `look`, a NaN in the padding of sequences counts.
        """
        found = []
        for name, value in feed.items():
            if name in self._noticed or specs[name].allow_nan:
                continue
            array = value if type(value) is np.ndarray else getattr(value, "data", None)
            if type(array) is not np.ndarray or class_of(array.dtype) not in ("float", "complex"):
                continue
            # The sum of squares is NaN exactly if a number is NaN: squares are not negative, so infinities cannot
            # cancel. `total != total` is true for NaN only.
            total = np.vdot(array, array)
            if total != total:
                found.append(name)
        return found

    def _tell(self, spec: FeedSpec, value: Any, where: str) -> None:
        rows = np.atleast_1d(value) if isinstance(value, np.ndarray) else value.rows()
        found = [index for index, row in enumerate(rows) if _has_nan(row)]
        if not found:  # all NaN are in the padding, which no layer reads
            return
        self._noticed.add(spec.name)
        batched = spec.shape[:1] == (None,)
        what = f"NaN in {len(found)} of {len(rows)} samples" if batched else "NaN"
        fix = (
            f"Everything that is computed from it becomes NaN: leave such rows out, or fill them, as with "
            f"np.nan_to_num(value); layers.data({spec.name!r}, ..., allow_nan=True) says that the program expects it"
        )
        warn(str(complaint(spec, where, found[0] if batched else None, what, fix, "numbers")))


def _has_nan(row: Any) -> bool:
    return any(map(_has_nan, row)) if isinstance(row, list) else bool(np.isnan(row).any())


def empty(spec: FeedSpec, where: str) -> errors.FeedError:
    """Return the error for a minibatch without samples."""
    return complaint(spec, where, None, "an empty minibatch", "Give at least one sample", "at least one sample")


@functools.lru_cache(maxsize=256)
def class_of(dtype: Any) -> str:
    """Return the class of a dtype: "float", "int", "bool", "complex" or "other"."""
    for parent, name in (
        (np.floating, "float"),
        (np.integer, "int"),
        (np.bool_, "bool"),
        (np.complexfloating, "complex"),
    ):
        if jnp.issubdtype(dtype, parent):
            return name
    return "other"


def typed(
    spec: FeedSpec,
    array: np.ndarray,
    where: str,
    rows: Any,
    owner: Callable[[int], int] = int,
    owners: Sequence[int] | None = None,
) -> np.ndarray:
    """Check the values of a feed, and convert them to the dtype of its arrays, `spec.held`.

    Raises:
      FeedError: a value does not fit.
      FeedTypeError: the dtype does not fit.
    """
    want = spec.held
    if array.dtype == want and spec.limits is None and spec.bounds is None:
        return array
    if array.dtype != want and class_of(array.dtype) not in _ACCEPTS.get(class_of(want), ()):
        raise wrong_dtype(spec, rows, where, array.dtype, owners)
    if array.size and spec.bounds is not None:
        _check_bounds(spec, array, where, owner)
    if array.size and (spec.limits is not None or not _always_fits(array.dtype, want)):
        _check_range(spec, array, want, where, owner)
    if array.dtype == want:
        return array
    if array.dtype == np.uint8 and class_of(want) == "float":
        _warn_of_pixels(spec, array)
    if want == np.float32 and array.dtype.itemsize > 2 and spec not in _looked_at:
        _warn_of_rounding(spec, array)
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return array.astype(want)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            at = tuple(np.argwhere(np.isinf(array.astype(want)) & ~np.isinf(array))[0])
        found = f"the value {array[at]}, too large for {want}"
        raise complaint(spec, where, owner(at[0]) if at else None, found, "Scale the data") from None


def _warn_of_pixels(spec: FeedSpec, array: np.ndarray) -> None:
    """Warn, once for each feed, of uint8 images with values up to 255 for a float feed.

    Arrays whose maximum is below 128, such as masks and small counts, cause no warning.
    """
    # Data with one number per row, or with no number above 127, are most likely not images.
    if array.ndim < 2 or math.prod(array.shape[1:]) < 2 or not array.size or array.max() < 128:
        return
    warn_once(
        spec,
        "pixels",
        lambda: (
            f"feed {spec.name!r}: found values 0..255 of dtype uint8 for a feed of {spec.dtype}, which nets learn from "
            f"slowly or not at all; give the same scale in training and inference: value / np.float32(255). If the "
            f"program divides by itself, declare what it is fed: layers.data({spec.name!r}, ..., dtype='uint8'), then "
            f"layers.cast(x, 'float32') / 255"
        ),
    )


def _warn_of_rounding(spec: FeedSpec, array: np.ndarray) -> None:
    """Warn of large integers, for example timestamps, that float32 rounds to equal numbers; check each feed once."""
    large = array[(array >= _EXACT) | (array <= -_EXACT)]
    distinct = np.unique(large)
    left = len(np.unique(distinct.astype(np.float32)))
    # Accept a loss of a few numbers: among many random numbers, some round to equal numbers by chance.
    if left < 0.9 * len(distinct):
        found = f"{len(distinct)} different numbers from {distinct[0]} to {distinct[-1]}, of which float32 keeps {left}"
        fix = (
            f"float32 tells whole numbers apart up to {_EXACT}. Feed what matters in them: value - value.min() for "
            f"timestamps, scaled; ids go to layers.embedding, of layers.data({spec.name!r}, ..., dtype='int64')"
        )
        warn(str(complaint(spec, "", None, found, fix, "numbers that it tells apart")))
    _looked_at.add(spec)


def warn_of_labels(spec: FeedSpec, array: np.ndarray) -> None:
    """Warn of labels in the format of another loss function, which the program's loss function misreads."""
    binary = array.size and ((array == 0) | (array == 1)).all()
    if binary and spec.labels == "signs" and not array.all():
        warn(
            f"feed {spec.name!r}: found labels of 0 and 1 for layers.margin_rank_loss, whose labels are -1 and 1 "
            f"(declared at {spec.site}), so that pairs of label 0 teach nothing; give 2 * value - 1, or use "
            f"layers.rank_loss, whose labels are 0 and 1"
        )
    if binary and spec.labels == "shares" and array.sum(axis=-1).max() > 1:
        warn(
            f"feed {spec.name!r}: found rows with several classes of 1 for soft_label=True, whose labels are "
            f"probabilities that add up to 1 (declared at {spec.site}); where each class is there or not by itself, "
            f"use layers.sigmoid_cross_entropy_with_logits(logits, label); for shares give "
            f"value / value.sum(axis=-1, keepdims=True)"
        )


@functools.lru_cache(maxsize=256)
def _always_fits(found: np.dtype, want: np.dtype) -> bool:
    return class_of(want) not in ("int", "bool") or bool(np.can_cast(found, want))


def _check_range(spec: FeedSpec, array: np.ndarray, want: np.dtype, where: str, owner: Callable[[int], int]) -> None:
    fits, low, high, also = _bounds(spec.limits_for(len(array)) if array.ndim else None, want)
    is_float = class_of(want) == "float"  # float labels (sigmoid loss) may equal the limit `high`; integers may not
    if low <= array.min() and (array.max() <= high if is_float else array.max() < high):
        return
    if is_float:
        # comparisons with NaN are False; the class NaNs warns of NaN
        bad = (array < low - _ROUNDED) | (array > high + _ROUNDED)
    else:
        bad = (array < low) | (array >= high)
    if also is not None:
        bad &= array != also
    if not bad.any():
        return
    at = tuple(np.argwhere(bad)[0])
    value = array[at]
    expected = f"{low} <= value {'<=' if is_float else '<'} {high}" + ("" if also is None else f" (or {also})")
    if is_float:
        fix = (
            f"The loss that takes {spec.name!r} expects 0, 1 or a number between them, and has no minimum elsewhere: "
            f"(value + 1) / 2 for labels of -1 and 1, value / 255 for pixels, np.exp(value) for logarithms"
        )
    elif not fits[0] <= value < fits[1]:
        expected = f"what fits into {want}: {fits[0]} to {fits[1] - 1}"
        fix = "Number ids from 0 on, or enable 64 bits: jax.config.update('jax_enable_x64', True)"
    elif spec.indexes_rows:
        fix = f"{spec.name!r} holds indices of rows, which count from 0 in each minibatch, here of {len(array)} rows"
    else:
        fix = f"Ids and labels count from 0; correct the data, or give the layer that takes {spec.name!r} a larger size"
    raise complaint(spec, where, owner(at[0]) if at else None, f"the value {value}", fix, expected)


def _check_bounds(spec: FeedSpec, array: np.ndarray, where: str, owner: Callable[[int], int]) -> None:
    """Refuse values outside the limits of `layers.data(minimum=, maximum=)`; a NaN is neither below nor above."""
    low, high = spec.bounds or (None, None)
    with np.errstate(over="ignore"):  # a limit beyond the range of float16 becomes an infinity
        if (low is None or array.min() >= low) and (high is None or array.max() <= high):
            return
        bad = np.full(array.shape, False) if low is None else array < low
        if high is not None:
            bad |= array > high
    if not bad.any():
        return
    at = tuple(np.argwhere(bad)[0])
    expected = " and ".join([f"value >= {low}"] * (low is not None) + [f"value <= {high}"] * (high is not None))
    fix = f"Leave out the row or correct it; the limits are those of layers.data({spec.name!r}, minimum=, maximum=)"
    raise complaint(spec, where, owner(at[0]) if at else None, f"the value {array[at]}", fix, expected)


@functools.lru_cache(maxsize=256)
def _bounds(limits: Any, want: np.dtype) -> tuple[tuple[float, float], float, float, int | None]:
    """Return the values that a feed may have: the range of its dtype, a lower limit, an upper limit, an extra value.

    The upper end of the range is exclusive. The extra value, such as a padding id, is allowed outside the limits; None
    if there is no extra value.
    """
    fits: tuple[float, float] = (0, 2) if want == np.bool_ else (-math.inf, math.inf)
    if class_of(want) == "int":
        fits = int(jnp.iinfo(want).min), int(jnp.iinfo(want).max) + 1
    low, high, also = limits or (*fits, None)
    return fits, max(low, fits[0]), min(high, fits[1]), also


def wrong_dtype(
    spec: FeedSpec, rows: Any, where: str, found: Any, owners: Sequence[int] | None = None
) -> errors.FeedError:
    """Return the error for data of a dtype that the feed does not accept; the error names the first bad sample."""
    want = spec.held
    accepted = _ACCEPTS.get(class_of(want), set())
    sample: int | None = None
    shown = f"{found} data"
    for index, row in enumerate(rows if isinstance(rows, Sequence) or np.ndim(rows) else ()):
        array = array_or_none(row)
        if array is None or (array.size and class_of(array.dtype) not in accepted):
            sample = index
            shown = described(row, array)
            break
    else:
        if class_of(want) == "int" and isinstance(rows, Sequence):  # NumPy converts lists of huge integers to floats
            return complaint(spec, where, None, f"whole numbers too large for {want}", "Number ids from 0 on")
    huge = sample is not None and _huge(rows[sample])
    if huge:
        shown = f"the value {short(rows[sample])}, too large for {want}"
    if sample is not None and owners is not None:
        sample = owners[sample]
    if huge:
        return complaint(spec, where, sample, shown, "Number ids from 0 on")
    if class_of(found) == "float" or "float" in shown:
        fix = "Class labels and ids are whole numbers: value.astype('int64'); or declare the feed with dtype='float32'"
    else:
        fix = "Give real numbers, such as value.real"
    return complaint(spec, where, sample, shown, fix, dtype=True)


def _huge(row: Any) -> bool:
    while isinstance(row, list | tuple) and row:
        row = max(row, key=lambda v: abs(v) if isinstance(v, int) else -1)
    return isinstance(row, int) and not -(2**63) <= row < 2**64


def described(row: Any, array: np.ndarray | None) -> str:
    """Return a description of a row for a message; `array` is the row as an array, or None for a ragged row."""
    if array is None:
        return f"lists of different lengths in {short(row)}"
    return f"{array.dtype} {short(row)}"


def array_or_none(row: Any) -> np.ndarray | None:
    """Return a row as an array; None for a ragged row."""
    try:
        return numbers_of(row)
    except (ValueError, RuntimeError):
        return None


def typed_on_device(spec: FeedSpec, value: jax.Array, where: str) -> jax.Array:
    """Convert an array on a device to `spec.held`, the dtype of its feed's arrays, without a check of its values."""
    want = spec.held
    if value.dtype == want:
        return value
    if class_of(value.dtype) not in _ACCEPTS.get(class_of(want), ()):
        fix = f"Convert it first: value.astype('{want}')"
        raise complaint(spec, where, None, f"a jax.Array of dtype {value.dtype}", fix, dtype=True)
    return value.astype(want)


def fit(shape: tuple[int, ...], declared: tuple[int | None, ...]) -> tuple[int, ...] | None:
    """Return the shape to which data is reshaped so that it fits a declaration; None if it cannot fit.

    Data may be flattened, or unflattened, and dimensions of size 1 may be absent or added.
    """
    if len(shape) == len(declared):
        for found, size in zip(shape, declared, strict=True):
            if found != size and size is not None:
                break
        else:
            return shape
    head = 1 if declared[:1] == (None,) else 0
    row = shape[head:]
    want = declared[head:]
    if len(shape) < head or None in want or math.prod(row) != math.prod(w for w in want if w is not None):
        return None
    if len(row) > 1 and len(want) > 1 and [d for d in row if d != 1] != [d for d in want if d != 1]:
        return None
    return (*shape[:head], *(w for w in want if w is not None))
