"""One function that converts fed values to arrays, and refuses values that NumPy misreads or cannot read.

NumPy drops the masks of `numpy.ma`: a number under a mask becomes a number like any other.
"""

import itertools
from typing import Any

import numpy as np

from fluid import errors

_LISTS = (list, tuple)
_LIST: set[type] = {list}
_ARRAY: set[type] = {np.ndarray}


class NotNumbers(errors.ArgumentTypeError):
    """The error for fed data that is no array of numbers."""


def numbers_of(value: Any, dtype: Any = None, what: str = "data") -> np.ndarray:
    """Convert what a user feeds to an array.

    Args:
      value: an array, or nested lists of numbers and arrays.
      dtype: the dtype of the array; by default NumPy chooses the dtype.
      what: a name of the value, for the message.

    Raises:
      NotNumbers: a number is under a mask of `numpy.ma`, wherever it is; or there is a sparse matrix, or a tensor that
        NumPy cannot read.
      ValueError: lists of the same level differ in length.

    Example:
      >>> numbers_of([np.ma.array([1, 2]), [3, 4]]).tolist()
      [[1, 2], [3, 4]]
    """
    if type(value) is np.ndarray:
        return np.asarray(value, dtype)
    try:
        array = np.asarray(value, dtype)
    except Exception as error:  # besides ValueError: MaskError for an int, RuntimeError and TypeError for tensors
        raise _not_numbers(value, what) or error from None
    if _may_hide(value, array) and (refused := _not_numbers(value, what)):
        raise refused
    return array


def first_unreadable(value: Any) -> tuple[list[int], str, str] | None:
    """Return the first part of a value that NumPy cannot read rightly: its index, a description, and the fix.

    Example:
      >>> first_unreadable([[1, 2], np.ma.array([3, 4], mask=[False, True])])[:2]
      ([1, 1], 'a masked number (numpy.ma)')
    """
    if isinstance(value, np.ma.MaskedArray):
        # the mask of a structured array has a bool for each field
        mask = np.frombuffer(np.ma.getmaskarray(value).tobytes(), np.bool_)
        if not mask.any():
            return None
        at = np.unravel_index(mask.argmax() * value.size // mask.size, value.shape)
        return [int(i) for i in at], "a masked number (numpy.ma)", _FILL
    if unreadable := _unreadable(value):
        return [], *unreadable
    if isinstance(value, _LISTS) or (isinstance(value, np.ndarray) and value.dtype == object and value.ndim):
        for index, item in enumerate(value):
            if found := first_unreadable(item):
                return [index, *found[0]], *found[1:]
    return None


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


def _not_numbers(value: Any, what: str) -> NotNumbers | None:
    if (first := first_unreadable(value)) is None:
        return None
    index, found, fix = first
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
