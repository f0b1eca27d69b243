"""Files of rows, on this machine or in an object store: their listing, their formats and the order of reading."""

from fluid.reader.files.reader import files

__all__ = ["files"]
