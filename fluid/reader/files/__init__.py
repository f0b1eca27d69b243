"""Files of rows, here or in an object store: which there are, what each format holds, and in which order it is read."""

from fluid.reader.files.reader import files

__all__ = ["files"]
