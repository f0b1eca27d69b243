"""Data sets passed where a reader is expected: recognize them, and show the call that makes minibatches of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fluid import errors


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame, of pandas or a similar library.

    Example:
      >>> is_frame({"x": [1]}), is_frame(np.ones(3))
      (False, False)
    """
    return hasattr(value, "columns") and hasattr(value, "dtypes") and hasattr(value, "to_numpy")


def columns_of(frame: Any) -> dict[str, np.ndarray]:
    """Return the columns `[rows]` of a DataFrame by name."""
    return {str(name): np.asarray(frame[name]) for name in frame.columns}


def check_indices(columns: Mapping[Any, Any]) -> None:
    """Refuse pandas columns that hold the rows of one table in different orders.

    Raises:
      ArgumentError: the indices of two columns differ only in their order.
    """
    indexed = {name: column.index for name, column in columns.items() if hasattr(column, "iloc")}
    names = list(indexed)
    for name in names[1:]:
        first, index = indexed[names[0]], indexed[name]
        if len(first) == len(index) and not first.equals(index) and first.sort_values().equals(index.sort_values()):
            raise errors.ArgumentError(
                f"reader.arrays: the columns {names[0]!r} and {name!r} hold the rows of one table in different orders, "
                f"found the indices {list(first[:3])} and {list(index[:3])}, expected one order, since rows are "
                f"matched by position; bring one into the order of the other: y.loc[x.index]"
            )


def is_data(value: Any) -> bool:
    """Return whether a value is an array with rows, a column of a DataFrame, or a DataFrame.

    Example:
      >>> is_data(np.ones((3, 2))), is_data(np.float32(3)), is_data([1, 2])
      (True, False, False)
    """
    return is_frame(value) or (hasattr(value, "dtype") and bool(getattr(value, "shape", ())))


def spelled(names: Iterable[Any]) -> str:
    """Return source code for a message: a dict from each column name to a variable of this name.

    Example:
      >>> spelled(["x", "y"])
      "{'x': x, 'y': y}"
    """
    return "{" + ", ".join(f"{name!r}: {name}" for name in map(str, names)) + "}"


def refuse(caller: str, value: Any, rows: bool, shuffle: bool = True) -> None:
    """Raise an error for a data set that would be misread as rows or minibatches.

    Args:
      rows: True if the caller needs rows, so that an array `[n, ...]` is accepted; False if it needs minibatches.

    Raises:
      ArgumentTypeError: the value is a DataFrame, a dict or tuple of columns, or an array in place of minibatches.
    """
    found = _described(value, rows)
    if found is None:
        return
    what, written = found
    call = f"reader.arrays({written}, batch_size=32{', shuffle=True' if shuffle else ''})"
    if not rows:
        raise errors.ArgumentTypeError(
            f"{caller} needs something that gives minibatches, found {what}; say how many rows make one: "
            f"reader=fluid.{call}"
        )
    is_pandas = is_frame(value) and type(value).__module__.startswith("pandas")
    records = "; frame.to_dict('records') is a list of its rows" if is_pandas else ""
    raise errors.ArgumentTypeError(
        f"{caller} needs a reader of rows, found {what}; columns become a reader of minibatches so: {call}{records}"
    )


def _described(value: Any, rows: bool) -> tuple[str, str] | None:
    """Return a description of a data set, and the text that names it in a suggested call; None for other values."""
    if is_frame(value):
        return "a DataFrame", "frame"
    if isinstance(value, Mapping):
        return "a dict of columns", spelled(list(value)[:4])
    if isinstance(value, tuple) and _are_columns(value, rows):
        return "arrays, a tuple of them", "(x, y)" if len(value) == 2 else "(" + "x, " * len(value) + ")"
    if hasattr(value, "dtype") and not rows:
        return "arrays", "x"
    return None


def _are_columns(values: tuple[Any, ...], rows: bool) -> bool:
    """Return whether the arrays of a tuple are columns of a data set.

    If `rows` is False, every tuple with an array or a DataFrame holds columns. If `rows` is True, arrays of equal shape
    may be rows, so that the arrays are columns only if they have equal lengths and different shapes.
    """
    if not rows:
        return any(hasattr(v, "dtype") or is_frame(v) for v in values)
    if len(values) < 2 or not all(is_data(v) for v in values):
        return False
    shapes = {tuple(v.shape) for v in values}
    return len(shapes) > 1 and len({shape[0] for shape in shapes}) == 1
