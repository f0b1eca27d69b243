"""File formats of rows."""

from fluid.reader.files.formats.choice import FORMATS, format_of

__all__ = ["FORMATS", "format_of"]
