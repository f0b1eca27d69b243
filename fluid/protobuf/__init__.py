"""Messages of protobuf, for formats that are made of them."""

from fluid.protobuf.declared import classes

__all__ = ["classes"]
