"""Tensors of the Open Inference Protocol: each has a name, a datatype, a shape, and numbers as JSON or as bytes."""

import math
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import numbers_of

# The NumPy dtype for each datatype name of the protocol; all are little-endian, as the protocol requires.
DTYPES = {
    "BOOL": np.dtype("bool"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# For each NumPy `dtype.kind` of a tensor: the kinds that are accepted when NumPy converts its JSON numbers to an array.
_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "fiu"}
_MOST_DIMENSIONS = 32
_MOST_SIZE = 2**31 - 1
# The maximum number of rows of a tensor with a dimension of size 0. Limits of bytes do not limit these rows, because
# the tensor has no bytes, but each row costs time and memory.
_MOST_EMPTY = 1024
PIECE = 8192
"""The number of numbers to convert in one call of NumPy, during which no other thread runs."""
ANY = -1  # the number in a shape for a size that is not fixed, or that differs between rows


@dataclass(frozen=True)
class MessageTensor:
    """One tensor of a message.

    Attributes:
      name: the name of a feed or an output, or of its lengths.
      data: an array; nested lists if the rows differ in length.
    """

    name: str
    data: Any


def short(value: Any) -> str:
    """Return the repr of a value, shortened for error messages."""
    return reprlib.repr(value)


def datatype_of(dtype: Any) -> str:
    """Return the datatype name of the protocol for a NumPy dtype, such as "FP32" for float32.

    Raises:
      ProtocolError: the protocol has no datatype for this dtype.
    """
    name = _NAMES.get(np.dtype(dtype).newbyteorder("=")) or _NAMES.get(np.dtype(dtype))
    if name is None:
        raise errors.ProtocolError(f"the Open Inference Protocol has no datatype for {np.dtype(dtype)}")
    return name


def checked_header(found: Any) -> tuple[str, str, tuple[int, ...]]:
    """Check the description of a tensor in a message; return its name, datatype and shape.

    Raises:
      ProtocolError: the name, the datatype or the shape is missing or invalid.
    """
    if not isinstance(found, Mapping):
        raise errors.ProtocolError(f"expected a tensor, an object with name, shape and datatype, found {short(found)}")
    name, datatype, shape = found.get("name"), found.get("datatype"), found.get("shape")
    if not isinstance(name, str) or not name:
        raise errors.ProtocolError(f"a tensor needs a name, found {short(name)}")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise errors.ProtocolError(
            f"tensor {short(name)}: found the datatype {short(datatype)}, expected one of {', '.join(DTYPES)}"
        )
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_DIMENSIONS
        or not all(type(size) is int and ANY <= size <= _MOST_SIZE for size in shape)
    ):
        raise errors.ProtocolError(
            f"tensor {short(name)}: found the shape {short(shape)}, expected a list of at most {_MOST_DIMENSIONS} "
            f"sizes up to {_MOST_SIZE}, as in [1, 28, 28]"
        )
    if 0 in shape and math.prod(size for size in shape if size > 0) > _MOST_EMPTY:
        raise errors.ProtocolError(
            f"tensor {short(name)}: found the shape {short(shape)} of no numbers, expected at most {_MOST_EMPTY} rows "
            f"where a size is 0"
        )
    return name, datatype, tuple(shape)


def from_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> MessageTensor:
    """Create a tensor from the numbers in JSON, a flat list or nested lists.

    Raises:
      ProtocolError: data, datatype and shape do not fit together.

    Example:
      >>> from_json("x", "FP32", [2, 2], [1, 2, 3, 4]).data.tolist()
      [[1.0, 2.0], [3.0, 4.0]]
      >>> from_json("words", "INT64", [2, -1], [[1, 2, 3], [4]]).data
      [[1, 2, 3], [4]]
    """
    if not isinstance(data, list):
        raise errors.ProtocolError(f"tensor {short(name)}: expected its data as a list, found {short(data)}")
    # check for strings before the conversion: NumPy would allocate memory for the longest string in each element
    if not _holds_numbers(data):
        raise _misfit(name, datatype, data)
    if ANY in shape:
        if len(data) != shape[0] and shape[0] != ANY:
            raise errors.ProtocolError(f"tensor {short(name)}: found {len(data)} rows, and the shape {list(shape)}")
        return MessageTensor(name, data)
    try:
        array = _array(data)
    except ValueError:
        raise errors.ProtocolError(
            f"tensor {short(name)}: its rows differ in length; for rows of any length the shape has -1 there, as in "
            f"[{shape[0] if shape else 1}, -1]"
        ) from None
    if array.size and array.dtype.kind not in _KINDS[_kind(DTYPES[datatype])]:
        raise _misfit(name, datatype, data)
    if array.ndim != 1 and array.shape != tuple(shape):
        raise errors.ProtocolError(
            f"tensor {short(name)}: found data of shape {list(array.shape)}, and the shape {list(shape)}"
        )
    if (converted := _within(array, DTYPES[datatype])) is None:
        raise _misfit(name, datatype, data)
    return MessageTensor(name, _shaped(name, converted, shape))


def _holds_numbers(data: list[Any], depth: int = 1) -> bool:
    """Return whether nested lists hold only numbers and booleans, in at most `_MOST_DIMENSIONS` levels."""
    found = _types(data)
    if not found <= {int, float, bool, list}:
        return False
    if list not in found:
        return True
    return depth < _MOST_DIMENSIONS and all(_holds_numbers(part, depth + 1) for part in data if type(part) is list)


def count_numbers(data: list[Any]) -> int:
    """Return the number of numbers in nested lists.

    Example:
      >>> count_numbers([[1, 2, 3], [4]])
      4
    """
    if list not in _types(data):
        return len(data)
    return sum(count_numbers(part) if type(part) is list else 1 for part in data)


def _types(data: list[Any]) -> set[type]:
    return {kind for i in range(0, len(data), PIECE) for kind in set(map(type, data[i : i + PIECE]))}


def _array(data: list[Any]) -> np.ndarray:
    """Convert nested lists of numbers to an array, as `np.asarray` does, in pieces, so that other threads can run."""
    sizes = [len(data)]
    while list in (kinds := _types(data)):
        if kinds != {list} or len(lengths := set(map(len, data))) != 1:
            raise ValueError("lists differ in length")
        sizes.append(lengths.pop())
        flat: list[Any] = []
        for row in data:
            flat += row
        data = flat
    pieces = [numbers_of(data[i : i + PIECE]) for i in range(0, len(data), PIECE)] or [np.asarray(data)]
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).reshape(sizes)


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> MessageTensor:
    """Create a tensor from the bytes of its numbers, little-endian and in row-major order.

    Raises:
      ProtocolError: there are more or fewer bytes than the shape requires.
    """
    dtype = DTYPES[datatype]
    if ANY in shape:
        raise errors.ProtocolError(
            f"tensor {short(name)}: found the shape {list(shape)}, expected no -1 in a binary tensor; send padded "
            f"data and beside it {short(name + '.lengths')}"
        )
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise errors.ProtocolError(
            f"tensor {short(name)}: found {len(data)} bytes, expected {math.prod(shape) * dtype.itemsize} for "
            f"{datatype} {list(shape)}"
        )
    if dtype == np.bool_ and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise errors.ProtocolError(f"tensor {short(name)}: a BOOL is a byte 0 or 1")
    return MessageTensor(name, _shaped(name, np.frombuffer(data, dtype), shape))


def to_json(array: np.ndarray) -> Iterator[list[Any]]:
    """Yield the numbers of an array as flat lists of at most `PIECE` numbers.

    Non-finite numbers become "NaN", "Infinity" or "-Infinity".

    Other threads can run between two lists. While a list is computed, the interpreter lock (GIL) is not released, not
    even for a moment: each release would restart the time after which a waiting thread requests the lock.

    Example:
      >>> list(to_json(np.array([[1.5, np.inf], [np.nan, 2.0]])))
      [[1.5, 'Infinity', 'NaN', 2.0]]
    """
    flat = array.reshape(-1)
    if (floats := _kind(array.dtype) == "f") and array.dtype.kind != "f":
        flat = flat.astype(np.float64)
    finite = not floats or bool(np.isfinite(flat).all())
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE].tolist()
        yield piece if finite else [v if math.isfinite(v) else _NOT_FINITE.get(v, "NaN") for v in piece]


def json_size(dtype: np.dtype) -> int:
    """Return the maximum number of bytes of a number in JSON, with a comma.

    Example:
      >>> json_size(np.dtype("int8")), json_size(np.dtype("float32"))
      (5, 25)
    """
    if dtype.kind == "b":
        return len("false,")
    if dtype.kind in "iu":
        return max(len(str(limit)) for limit in (np.iinfo(dtype).min, np.iinfo(dtype).max)) + 1
    return len(repr(-sys.float_info.min)) + 1  # also numbers of fewer bits are written as float64


def to_bytes(array: np.ndarray) -> bytes:
    """Return the numbers of an array as bytes, little-endian and in row-major order."""
    order = array.dtype.byteorder
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _kind(dtype: np.dtype) -> str:
    return "f" if jnp.issubdtype(dtype, jnp.floating) else dtype.kind


def _limits(dtype: np.dtype) -> tuple[Any, Any]:
    """Return the smallest and the largest finite number of a dtype, as numbers of Python."""
    if dtype == np.bool_:
        return False, True
    if _kind(dtype) == "f":
        return float(jnp.finfo(dtype).min), float(jnp.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _within(array: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Convert an array of numbers, read from JSON, to a dtype; return None if a number is too large."""
    if _kind(dtype) in "iu" and array.size:
        least, most = _limits(dtype)
        if int(array.min()) < least or int(array.max()) > most:
            return None
    with np.errstate(over="ignore"):
        found = array.astype(dtype)
    return found if _kind(dtype) != "f" or np.isfinite(found).all() else None


def _misfit(name: str, datatype: str, data: list[Any]) -> errors.ProtocolError:
    """Return the error for JSON that does not fit a datatype; the error names the first value that does not fit."""
    kind = _kind(DTYPES[datatype])
    types = {"b": (bool,), "f": (int, float, bool)}.get(kind, (int,))
    least, most = _limits(DTYPES[datatype])

    def first(part: list[Any], index: list[int]) -> errors.ProtocolError | None:
        for i, value in enumerate(part):
            at, found = [*index, i], None
            if type(value) is list and len(at) < _MOST_DIMENSIONS:
                found = first(value, at)
            elif type(value) not in types:
                found = errors.ProtocolError(f"{short(value)} at {at} is not of the datatype {datatype}")
            elif not least <= value <= most:
                more = "; what is not finite is sent as a binary tensor" if kind == "f" else ""
                found = errors.ProtocolError(f"{short(value)} at {at} is too large for {datatype}{more}")
            if found is not None:
                return found
        return None

    found = first(data, []) or f"its data is not of the datatype {datatype}"
    return errors.ProtocolError(f"tensor {short(name)}: {found}")


def _shaped(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if array.size != math.prod(shape):
        raise errors.ProtocolError(f"tensor {short(name)}: found {array.size} numbers, and the shape {list(shape)}")
    try:
        return array.reshape(tuple(shape))
    # NumPy cannot reshape an empty array if the product of the other sizes is too large for its integers.
    except ValueError:
        raise errors.ProtocolError(f"tensor {short(name)}: found the shape {list(shape)}, which is too large") from None
