"""Files of rows, on this machine or in an object store: list the files, choose their format, and read them in order."""

from fluid.reader.files.reader import column_names, files

__all__ = ["column_names", "files"]
