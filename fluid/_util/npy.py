"""Arrays in NumPy's npy format, and archives of arrays (npz), whose headers are checked before data is read.

`numpy.load` parses the header as Python source text. In several threads, CPython 3.11 then fails occasionally with a
SystemError about the recursion depth. This module parses the header itself, as numpy.lib.format specifies.
"""

import math
import re
import zipfile
import zlib
from typing import IO

import numpy as np

# Errors of a damaged archive. RuntimeError: an entry is encrypted, or uses an unknown method of compression.
DAMAGES = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
# The maximum size of a header, in bytes.
HEADER_LIMIT = 1 << 16

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\s*\{\s*'descr':\s*'([<>|=]?[a-zA-Z]\d{0,9}(?:\[\w+\])?)',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([\d\s,]*)\),?\s*\}\s*"
)


def read_header(stream: IO[bytes]) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """Read the header of an array in NumPy's npy format.

    Raises:
      ValueError: the data is not an array, or holds Python objects or records.
    """
    magic = stream.read(len(_MAGIC) + 2)
    size = 2 if magic[-2:-1] == b"\x01" else 4
    length = int.from_bytes(stream.read(size), "little")
    known = magic.startswith(_MAGIC) and length <= HEADER_LIMIT
    found = _HEADER.fullmatch(stream.read(length).decode("latin-1")) if known else None
    if found is None or "O" in found[1]:
        raise ValueError(
            "this is no array of numbers or text in the format of NumPy; Python objects and records are never read"
        )
    shape = tuple(int(n) for n in found[3].split(",") if n.strip())
    return np.dtype(found[1]), found[2] == "True", shape


def read_array(stream: IO[bytes]) -> np.ndarray:
    """Read an array in NumPy's npy format.

    Raises:
      ValueError: the data is not an array, is truncated, or holds Python objects or records.

    Example:
      >>> import io
      >>> stream = io.BytesIO()
      >>> np.save(stream, np.arange(6).reshape(2, 3))
      >>> _ = stream.seek(0)
      >>> read_array(stream)
      array([[0, 1, 2],
             [3, 4, 5]])
    """
    dtype, is_fortran, shape = read_header(stream)
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(stream.read(size))  # in a bytearray, so that the array from `np.frombuffer` is writable
    if len(data) < size:
        raise ValueError(f"found {len(data)} bytes of an array of {size}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


def entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive of arrays, by name.

    Raises:
      ValueError: two entries have one name.
    """
    found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(found) < len(archive.infolist()):
        raise ValueError("two of its entries have one name")
    return found


def outline(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Return zeros with the shape and dtype of an entry, from its header; the zeros take no memory.

    Raises:
      ValueError: the entry is no array of numbers, or its size is not the size that its header declares.
    """
    with archive.open(entry) as stream:
        dtype, _, shape = read_header(stream)
        size = stream.tell() + math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufc":
        raise ValueError(f"{entry.filename} holds {dtype}, expected numbers: text, dates and records are no weights")
    if entry.file_size != size:
        raise ValueError(f"{entry.filename} has {entry.file_size} bytes, and its header declares {size}")
    return np.broadcast_to(np.zeros((), dtype), shape)
