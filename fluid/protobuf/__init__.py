"""Protobuf: message classes for file formats that use protobuf."""

from fluid.protobuf.declared import classes

__all__ = ["classes"]
