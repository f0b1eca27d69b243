"""Arrays in NumPy's format, read by several threads at once.

`numpy.load` has Python parse the header as source text. When several threads do so, CPython 3.11 fails now and then,
with a SystemError about the depth of the recursion. The format is that of numpy.lib.format.
"""

import math
import re
from typing import IO

import numpy as np

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\s*\{\s*'descr':\s*'([^']+)',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([\d\s,]*)\),?\s*\}\s*"
)


def header(stream: IO[bytes]) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """Read what stands before the values of an array.

    Args:
      stream: at the beginning of the array.

    Returns:
      The dtype, whether the first index varies fastest, and the shape.

    Raises:
      ValueError: it is no array, or holds Python objects or records.
    """
    magic = stream.read(len(_MAGIC) + 2)
    size = 2 if magic[-2:-1] == b"\x01" else 4
    length = int.from_bytes(stream.read(size), "little")
    found = _HEADER.fullmatch(stream.read(length).decode("latin-1")) if magic.startswith(_MAGIC) else None
    if found is None or "O" in found[1]:
        raise ValueError("this is no array of numbers or text in the format of NumPy; Python objects are never read")
    shape = tuple(int(n) for n in found[3].split(",") if n.strip())
    return np.dtype(found[1]), found[2] == "True", shape


def read(stream: IO[bytes]) -> np.ndarray:
    """Read an array.

    Args:
      stream: at the beginning of the array.

    Raises:
      ValueError: it is no array, not whole, or holds Python objects or records.

    Example:
      >>> import io
      >>> stream = io.BytesIO()
      >>> np.save(stream, np.arange(6).reshape(2, 3))
      >>> _ = stream.seek(0)
      >>> read(stream)
      array([[0, 1, 2],
             [3, 4, 5]])
    """
    dtype, is_fortran, shape = header(stream)
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(stream.read(size))  # which can be written to
    if len(data) < size:
        raise ValueError(f"found {len(data)} bytes of an array of {size}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
