"""Arrow: convert Arrow columns to the values of rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fluid.reader.files.format import Row, broken
from fluid.reader.files.listing import File

Values = Sequence[Any] | np.ndarray
Missing = Callable[[int, Any], Exception]


def rows(batch: Any, file: File, first: int) -> Iterator[Row]:
    """Yield the rows of a record batch.

    Args:
      batch: a `pyarrow.RecordBatch`.
      file: the file of the batch, for messages.
      first: the index in the file of the first row of the batch.

    Raises:
      ReaderError: a number is absent.
    """
    names = batch.schema.names
    columns = [_values(column, _missing(name, file, first)) for name, column in zip(names, batch.columns, strict=True)]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def kind(type_: Any) -> str:
    """Return the kind of values in a column, for example "numbers", "text" or "lists of numbers".

    Args:
      type_: a `pyarrow.DataType`.
    """
    import pyarrow as pa

    of = pa.types
    if of.is_dictionary(type_):
        return kind(type_.value_type)
    if isinstance(type_, pa.FixedShapeTensorType):
        return f"tensors of {kind(type_.value_type)}"
    if of.is_list(type_) or of.is_large_list(type_) or of.is_fixed_size_list(type_):
        return f"lists of {kind(type_.value_type)}"
    if of.is_integer(type_) or of.is_floating(type_) or of.is_boolean(type_):
        return "numbers"
    if of.is_string(type_) or of.is_large_string(type_) or of.is_string_view(type_):
        return "text"
    if of.is_binary(type_) or of.is_large_binary(type_) or of.is_fixed_size_binary(type_) or of.is_binary_view(type_):
        return "bytes"
    return str(type_)


def _values(column: Any, missing: Missing) -> Values:
    """Return the values of an Arrow array, one for each row.

    Numbers become an array `[rows, ...]`, in which an absent float is NaN. Lists of numbers become arrays of different
    lengths, and lists of lists become lists of arrays. Absent text is None. Arrow converts values of other types.

    Args:
      column: the Arrow array.
      missing: returns the error for an absent value; called with the index of the row and the Arrow type.
    """
    import pyarrow as pa

    of = pa.types
    type_ = column.type
    if of.is_dictionary(type_):
        return _values(column.dictionary_decode(), missing)
    is_list = of.is_list(type_) or of.is_large_list(type_) or of.is_fixed_size_list(type_)
    is_tensor = isinstance(type_, pa.FixedShapeTensorType)
    is_number = of.is_integer(type_) or of.is_floating(type_) or of.is_boolean(type_)
    if column.null_count and (is_list or is_tensor or (is_number and not of.is_floating(type_))):
        raise missing(int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]), type_)
    if is_number or of.is_temporal(type_):
        return np.array(column.to_numpy(zero_copy_only=False))  # a copy, because the memory of Arrow is not writable
    if is_tensor:
        return np.array(column.to_numpy_ndarray())
    if is_list:
        return _lists(column, missing)
    values: list[Any] = column.to_pylist()
    return values


def _lists(column: Any, missing: Missing) -> Values:
    """Return the values of a column of lists, one for each row, as a list; lists of numbers become arrays.

    If the type of the column fixes the size of its lists of numbers, return one array `[rows, size, ...]` instead.
    """
    import pyarrow as pa

    is_fixed = pa.types.is_fixed_size_list(column.type)
    size = column.type.list_size if is_fixed else 0
    lengths = np.full(len(column), size) if is_fixed else column.value_lengths().to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=int)
    elements = _values(
        column.flatten(), lambda index, type_: missing(int(np.searchsorted(ends, index, side="right")), type_)
    )
    if is_fixed and isinstance(elements, np.ndarray):
        return elements.reshape(len(column), size, *elements.shape[1:])
    return [elements[low:high] for low, high in zip(ends - lengths, ends, strict=True)]


def _missing(name: str, file: File, first: int) -> Missing:
    """Return a function that creates the error for a row without a value in the column `name`.

    The function takes the index of the row in its batch, and the Arrow type of the column.
    """
    fix = "Fill it or leave the row out when the file is written, or read other columns: columns=[...]"
    return lambda index, type_: broken(
        file, first + index, f"column {name!r} has no value, expected one of type {type_}", fix
    )
