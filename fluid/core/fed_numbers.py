"""One function that converts fed values to arrays, and refuses values that NumPy misreads or cannot read.

NumPy drops the masks of `numpy.ma`: a number under a mask becomes a number like any other.
"""

import contextlib
import datetime
import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.text import short

_LISTS = (list, tuple)
_LIST: set[type] = {list}
_ARRAY: set[type] = {np.ndarray}
_NUMBERS = frozenset([int, float, bool, np.float64, np.float32, np.int64, np.int32, np.bool_])


class NotNumbers(errors.ArgumentTypeError):
    """The error for fed data that is no array of numbers."""


def numbers_of(value: Any, dtype: Any = None, what: str = "data") -> np.ndarray:
    """Convert fed data to an array of numbers.

    Raises:
      NotNumbers: there is a value that is no number, such as None, text or a date; or see `unmasked`.
      ValueError: lists of the same level differ in length.

    Example:
      >>> numbers_of(np.array([1, 2.5], dtype=object)), numbers_of([np.array([1, True], dtype=object), [3, 4]]).dtype
      (array([1. , 2.5]), dtype('int64'))
    """
    array = unmasked(value, dtype, what)
    if array.dtype.kind in "biufc":
        return array
    if array.dtype == object:
        listed = array.tolist()
        array = unmasked(listed, None, what)
        if array.dtype == object and first_bad(listed) is None:
            with contextlib.suppress(OverflowError):
                array = np.asarray(listed, np.float64)  # whole numbers beyond 64 bits
    if not _is_number(array.dtype) and (bad := first_bad(value)):
        raise _not_numbers(bad, what)
    return array


def unmasked(value: Any, dtype: Any = None, what: str = "data") -> np.ndarray:
    """Convert data of any dtype, which may be text or objects, to an array; arguments as for `numbers_of`.

    Raises:
      NotNumbers: a number is under a mask of `numpy.ma`, wherever it is; or there is a sparse matrix, or a tensor that
        NumPy cannot read.
      ValueError: lists of the same level differ in length.

    Example:
      >>> unmasked([np.ma.array([1, 2]), [3, 4]]).tolist()
      [[1, 2], [3, 4]]
    """
    if type(value) is np.ndarray:
        return value if dtype is None else np.asarray(value, dtype)
    try:
        array = np.asarray(value, dtype)
    except Exception as error:  # besides ValueError: MaskError for an int, RuntimeError and TypeError for tensors
        bad = first_bad(value, numbers=False)
        raise _not_numbers(bad, what) if bad else error from None
    if _may_hide(value, array) and (bad := first_bad(value, numbers=False)):
        raise _not_numbers(bad, what)
    return array


def first_bad(value: Any, numbers: bool = True, within: Sequence[Any] = ()) -> tuple[list[int], str, str] | None:
    """Return the index of the first value in nested lists that is no number, a description of it, and the fix.

    Example:
      >>> first_bad([[1, 2], np.ma.array([3, 4], mask=[False, True])])[:2]
      ([1, 1], 'a masked number (numpy.ma)')
      >>> first_bad([[1, 2], [3, None]])
      ([1, 1], '[3, None] (list) with None (NoneType)', 'Give numbers')
    """
    if isinstance(value, np.ma.MaskedArray):
        # the mask of a structured array has a bool for each field
        mask = np.frombuffer(np.ma.getmaskarray(value).tobytes(), np.bool_)
        if mask.any():
            at = np.unravel_index(mask.argmax() * value.size // mask.size, value.shape)
            return [int(i) for i in at], "a masked number (numpy.ma)", _FILL
    if unreadable := _unreadable(value):
        return [], *unreadable
    if not isinstance(value, _LISTS):
        value = np.asarray(value)
        if _is_number(value.dtype) or not (numbers or value.dtype == object):
            return None
        if not value.ndim:
            return ([], *_described(value, within)) if numbers and not isinstance(value.item(), int) else None
    if not _NUMBERS.issuperset(map(type, value)):
        for index, item in enumerate(value):
            if bad := first_bad(item, numbers, (*within, value)):
                return [index, *bad[0]], *bad[1:]
    return None


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or jnp.issubdtype(dtype, np.number)


def _described(leaf: np.ndarray, within: Sequence[Any]) -> tuple[str, str]:
    """Return a description of a value that is no number, a 0-d array, and the fix."""
    value = leaf[()]
    value, fix = value.item() if isinstance(value, np.str_ | np.bytes_) else value, "Give numbers"
    if isinstance(value, str | bytes):
        fix += "; turn words into ids first, for example {word: id}[word]"
    elif isinstance(value, datetime.date | datetime.timedelta | np.datetime64 | np.timedelta64):
        fix += "; a date becomes a number as (date - first_date).days"
    elif hasattr(value, "__float__"):
        fix += ": float(value)"
    shown = [f"{short(each)} ({type(each).__name__})" for each in (*within[1:][-1:], value)]
    return " with ".join(shown) if within else f"{leaf.dtype} data", fix


_FILL = (
    "Convert it first: x.filled(0) puts a number under each mask; if the program should know where the mask is, feed "
    "the mask too: np.ma.getmaskarray(x)"
)


def _unreadable(value: Any) -> tuple[str, str] | None:
    """Return a description of a sparse matrix or tensor that NumPy cannot read, and the fix; None for other values."""
    if hasattr(value, "tocsr"):
        return f"a sparse matrix ({type(value).__name__})", (
            "Convert it first: x.toarray(), which holds its zeros too; of a large matrix only a minibatch at a time: "
            "x[rows].toarray()"
        )
    if getattr(value, "requires_grad", False) is True and hasattr(value, "detach"):
        fix = "Convert it first: x.detach().cpu().numpy(), since no gradient flows back into data"
        return "a tensor that requires grad", fix
    if getattr(value, "is_cuda", False) is True:
        return "a tensor on a GPU", "Convert it first: x.cpu().numpy()"
    return None


def _not_numbers(bad: tuple[list[int], str, str], what: str) -> NotNumbers:
    index, found, fix = bad
    return NotNumbers(f"{what}: found {found}{f' at {index}' if index else ''}, expected numbers. {fix}")


def _may_hide(value: Any, array: np.ndarray) -> bool:
    """Return whether `array`, which NumPy converted from `value`, may come from a masked array or a sparse matrix.

    The check takes little time, because it does not read the numbers of the innermost lists: NumPy converts a single
    number under a mask to NaN.
    """
    kind = array.dtype.kind
    if kind == "O" or not isinstance(value, _LISTS):
        return kind == "O" or isinstance(value, np.ma.MaskedArray)
    level: Any = value
    kinds: set[type] = _LIST
    for depth in range(array.ndim - 1):
        if depth:
            items = level if kinds == _LIST else [item for item in level if isinstance(item, _LISTS)]
            level = itertools.chain.from_iterable(items)
            level = level if depth == array.ndim - 2 else list(level)
        kinds = set(map(type, level))
        if kinds == _ARRAY:
            return False
        if kinds != _LIST and any(issubclass(each, np.ma.MaskedArray) for each in kinds):
            return True
        if kinds != _LIST and not any(issubclass(each, _LISTS) for each in kinds):
            return False
    # A minimum is NaN if any number is; a dot product would wait for the threads of BLAS.
    return kind in "fc" and bool(array.size) and bool(np.isnan(array.min()))
