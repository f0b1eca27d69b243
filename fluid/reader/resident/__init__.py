"""Data sets that lie on the device as a whole, and minibatches that are numbers of their rows."""

from fluid.reader.resident.columns import Resident, RowFeed, Rows, picked

__all__ = ["Resident", "RowFeed", "Rows", "picked"]
