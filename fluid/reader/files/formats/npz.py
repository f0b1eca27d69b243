"""Npz: NumPy's archive of columns `[n, ...]` by name, with a parser of arrays that several threads may use at once.

`numpy.load` parses the header as Python source text. In several threads, CPython 3.11 then fails occasionally with a
SystemError about the recursion depth. This module parses the header itself, as numpy.lib.format specifies.
"""

import math
import re
import zipfile
from typing import IO

import numpy as np

from fluid import errors
from fluid.reader.base import Rows
from fluid.reader.files.format import Fields, Format, Piece
from fluid.reader.files.listing import File

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\s*\{\s*'descr':\s*'([^']+)',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([\d\s,]*)\),?\s*\}\s*"
)


class Npz(Format):
    """The format of `numpy.savez` and `numpy.savez_compressed`; requested columns of a file are read into memory."""

    name = "npz"
    extensions = (".npz",)
    counts_rows = True

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """Return the whole file as one Piece, with the number of rows from the headers; [] for a file without rows."""
        with file.open() as stream, zipfile.ZipFile(stream) as archive:
            shapes = {}
            for name in fields.present(_names(archive)):
                with archive.open(f"{name}.npy") as entry:
                    shapes[name] = read_header(entry)[2]
        lengths = {shape[0] if shape else None for shape in shapes.values()}
        if len(lengths) != 1 or None in lengths:
            raise errors.ReaderError(
                f"file {file.name}: found arrays of shapes {shapes}, expected columns of one length, each [rows, ...]; "
                f"name those that are columns: columns=[...]"
            )
        (count,) = lengths
        return [Piece(file, rows=count)] if count else []

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the rows of a file, as dicts of values by column name."""
        columns = {}
        with piece.file.open() as stream, zipfile.ZipFile(stream) as archive:
            for name in fields.present(_names(archive)):
                with archive.open(f"{name}.npy") as entry:
                    columns[name] = read_array(entry)
        for number in range(skip, piece.rows or 0):
            yield {name: column[number] for name, column in columns.items()}


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def read_header(stream: IO[bytes]) -> tuple[np.dtype, bool, tuple[int, ...]]:
    """Read the header of an array in NumPy's npy format.

    Args:
      stream: a stream, positioned at the beginning of the array.

    Returns:
      The dtype; True for Fortran order, in which the first index varies fastest; and the shape.

    Raises:
      ValueError: the data is not an array, or holds Python objects or records.
    """
    magic = stream.read(len(_MAGIC) + 2)
    size = 2 if magic[-2:-1] == b"\x01" else 4
    length = int.from_bytes(stream.read(size), "little")
    found = _HEADER.fullmatch(stream.read(length).decode("latin-1")) if magic.startswith(_MAGIC) else None
    if found is None or "O" in found[1]:
        raise ValueError("this is no array of numbers or text in the format of NumPy; Python objects are never read")
    shape = tuple(int(n) for n in found[3].split(",") if n.strip())
    return np.dtype(found[1]), found[2] == "True", shape


def read_array(stream: IO[bytes]) -> np.ndarray:
    """Read an array in NumPy's npy format.

    Args:
      stream: a stream, positioned at the beginning of the array.

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
