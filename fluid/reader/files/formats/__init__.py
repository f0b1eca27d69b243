"""File formats of `reader.files`, and the choice between them."""

from fluid.reader.files.formats.choice import FORMATS, format_of

__all__ = ["FORMATS", "format_of"]
