"""Choice of a file format: the list of all formats, and a function that finds the format of given files."""

import os
from collections.abc import Sequence

from fluid import errors
from fluid.reader.files.format import Format
from fluid.reader.files.formats.arrow import Csv, Parquet, Tsv
from fluid.reader.files.formats.json_lines import JsonLines
from fluid.reader.files.formats.npz import Npz
from fluid.reader.files.formats.tfrecord import TFRecord
from fluid.reader.files.formats.webdataset import WebDataset
from fluid.reader.files.listing import File

FORMATS: tuple[Format, ...] = (Parquet(), JsonLines(), Csv(), Tsv(), Npz(), TFRecord(), WebDataset())


def format_of(files: Sequence[File], name: str | None) -> Format:
    """Return the file format that all given files have.

    Raises:
      ArgumentError: the format is unknown, or differs between files.
    """
    if name is not None:
        for format in FORMATS:
            if format.name == name:
                return format
        raise errors.ArgumentError(f"reader.files(format={name!r}). {errors.nearest(name, (f.name for f in FORMATS))}")
    by_extension = {extension: format for format in FORMATS for extension in format.extensions}
    found = {file: by_extension.get(file.extension) for file in files}
    first = found[files[0]]
    for file, known in found.items():
        if known is None or first is None:
            raise errors.ArgumentError(
                f"reader.files does not know the format of {os.path.basename(file.path)!r} by its name, expected one "
                f"of {', '.join(by_extension)}; say which it is: reader.files(..., format='csv')"
            )
        if known is not first:
            raise errors.ArgumentError(
                f"reader.files found files of two formats, {os.path.basename(files[0].path)!r} and "
                f"{os.path.basename(file.path)!r}, expected one; read each by itself: "
                f"reader.chain(reader.files('*.csv'), reader.files('*.npz'))"
            )
    assert first is not None  # the loop above raises an error for a file without a known format
    return first
