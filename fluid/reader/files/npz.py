"""NumPy's npz: columns `[n, ...]` by name."""

import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from fluid import errors
from fluid.reader.files.fields import Fields
from fluid.reader.files.format import Format, Piece, Row
from fluid.reader.files.listing import File


class Npz(Format):
    """Archives of `numpy.savez` and `numpy.savez_compressed`; the wanted columns of a file are in memory at once."""

    name = "npz"
    extensions = (".npz",)

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """The file, with the number of rows that the headers of its columns tell."""
        with file.open() as stream, zipfile.ZipFile(stream) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            shapes = {name: _shape(archive, name) for name in fields.present(names)}
        lengths = {shape[0] if shape else None for shape in shapes.values()}
        if len(lengths) != 1 or None in lengths:
            raise errors.ReaderError(
                f"file {file.name}: found arrays of shapes {shapes}, expected columns of one length, each [rows, ...]; "
                f"name those that are columns: columns=[...]"
            )
        (count,) = lengths
        return [Piece(file, rows=count)] if count else []

    def read(self, piece: Piece, skip: int, fields: Fields) -> Iterator[Row]:
        """The rows of a file; arrays of Python objects are refused by NumPy."""
        with piece.file.open() as stream, np.load(stream, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in fields.present(archive.files)}
        for number in range(skip, piece.rows or 0):
            yield {name: column[number] for name, column in columns.items()}


def _shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """The shape of an array of an archive, of which only the header is read."""
    form: Any = np.lib.format
    with archive.open(f"{name}.npy") as stream:
        version = form.read_magic(stream)
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape: tuple[int, ...] = read(stream)[0]
    return shape
