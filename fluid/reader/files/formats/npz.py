"""Npz: NumPy's archive of columns `[n, ...]` by name."""

import zipfile

from fluid import errors
from fluid._util.npy import entries, read_array, read_header
from fluid.reader.base import Rows
from fluid.reader.files.format import Fields, Format, Piece
from fluid.reader.files.listing import File


class Npz(Format):
    """The format of `numpy.savez` and `numpy.savez_compressed`; requested columns of a file are read into memory."""

    name = "npz"
    extensions = (".npz",)
    counts_rows = True

    def pieces(self, file: File, fields: Fields) -> list[Piece]:
        """Return the whole file as one Piece, with the number of rows from the headers; [] for a file without rows."""
        with file.open() as stream, zipfile.ZipFile(stream) as archive:
            shapes = {}
            for name in fields.present(list(entries(archive))):
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
            for name in fields.present(list(entries(archive))):
                with archive.open(f"{name}.npy") as entry:
                    columns[name] = read_array(entry)
        for number in range(skip, piece.rows or 0):
            yield {name: column[number] for name, column in columns.items()}
