"""Data sets that are kept on the device as a whole, and minibatches of their row numbers."""

from fluid.reader.resident.columns import Resident, RowFeed, Rows, picked

__all__ = ["Resident", "RowFeed", "Rows", "picked"]
