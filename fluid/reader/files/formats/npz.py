"""NumPy's npz: columns `[n, ...]` by name."""

import zipfile

from fluid import errors
from fluid.reader.base import Rows
from fluid.reader.files.fields import Fields
from fluid.reader.files.format import Format, Piece
from fluid.reader.files.formats import npy
from fluid.reader.files.listing import File


class Npz(Format):
    """Archives of `numpy.savez` and `numpy.savez_compressed`; the wanted columns of a file are in memory at once."""

    name = "npz"
    extensions = (".npz",)
    counts_rows = True

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """The file, with the number of rows that the headers of its columns tell."""
        with file.open() as stream, zipfile.ZipFile(stream) as archive:
            shapes = {}
            for name in fields.present(_names(archive)):
                with archive.open(f"{name}.npy") as entry:
                    shapes[name] = npy.header(entry)[2]
        lengths = {shape[0] if shape else None for shape in shapes.values()}
        if len(lengths) != 1 or None in lengths:
            raise errors.ReaderError(
                f"file {file.name}: found arrays of shapes {shapes}, expected columns of one length, each [rows, ...]; "
                f"name those that are columns: columns=[...]"
            )
        (count,) = lengths
        return [Piece(file, rows=count)] if count else []

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """The rows of a file."""
        columns = {}
        with piece.file.open() as stream, zipfile.ZipFile(stream) as archive:
            for name in fields.present(_names(archive)):
                with archive.open(f"{name}.npy") as entry:
                    columns[name] = npy.read(entry)
        for number in range(skip, piece.rows or 0):
            yield {name: column[number] for name, column in columns.items()}


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]
