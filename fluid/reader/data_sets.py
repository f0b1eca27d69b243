"""Whole data sets where minibatches or rows are wanted: what they are, and the call that makes minibatches of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluid import errors


def is_frame(value: Any) -> bool:
    """Whether a value is a DataFrame, of pandas or of a library like it.

    Example:
      >>> is_frame({"x": [1]}), is_frame(np.ones(3))
      (False, False)
    """
    return hasattr(value, "columns") and hasattr(value, "dtypes") and hasattr(value, "to_numpy")


def columns_of(frame: Any) -> dict[str, np.ndarray]:
    """The columns `[rows]` of a DataFrame by name."""
    return {str(name): np.asarray(frame[name]) for name in frame.columns}


def refuse(caller: str, value: Any, rows: bool) -> None:
    """Refuse a data set that would not be read as what it is.

    Args:
      caller: the public function or argument that it was given to, for the message.
      value: what was given.
      rows: whether rows are wanted, which an array `[n, ...]` gives; or else minibatches, which it does not give.

    Raises:
      ArgumentTypeError: it is a DataFrame, a dict or tuple of columns, or an array where minibatches are wanted.
    """
    found = _described(value, rows)
    if found is None:
        return
    what, spelled = found
    call = f"fluid.reader.arrays({spelled}, batch_size=32, shuffle=True)"
    fix = f"{call} is a reader of minibatches of it" if rows else f"say how many rows make one: reader={call}"
    if rows and is_frame(value):
        fix += "; frame.to_dict('records') is a list of its rows"
    raise errors.ArgumentTypeError(
        f"{caller} needs {'rows' if rows else 'a reader, something that gives minibatches'}, found {what}; {fix}"
    )


def _described(value: Any, rows: bool) -> tuple[str, str] | None:
    """What a data set is called, and how it may be spelled in a call; None for what is none."""
    if is_frame(value):
        return "a DataFrame", "frame"
    if isinstance(value, Mapping):
        return "a dict of columns", "{" + ", ".join(f"{name!r}: ..." for name in list(value)[:4]) + "}"
    if isinstance(value, tuple) and _are_columns(value, rows):
        return "a tuple of arrays", "(x, y)" if len(value) == 2 else "(" + "x, " * len(value) + ")"
    if hasattr(value, "dtype") and not rows:
        return "arrays", "x"
    return None


def _are_columns(values: tuple[Any, ...], rows: bool) -> bool:
    """Whether the arrays of a tuple are columns; where rows are wanted, they may also be rows of one field."""
    arrays = [v for v in values if hasattr(v, "dtype") or is_frame(v)]
    if not rows:
        return bool(arrays)
    shapes = [tuple(v.shape) for v in arrays]
    lengths = {shape[:1] for shape in shapes}
    different = len({(len(shape), str(getattr(v, "dtype", ""))) for shape, v in zip(shapes, arrays, strict=True)}) > 1
    return len(arrays) == len(values) > 1 and len(lengths) == 1 and () not in lengths and different
