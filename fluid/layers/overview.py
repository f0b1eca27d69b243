"""`overview`: a table of all layers, also by their names in Keras, PyTorch and Flax."""

import importlib
import inspect
import re
from typing import NamedTuple

from fluid.compat.name_hints.table import HINTS

__all__ = ["overview"]


class Row(NamedTuple):
    """A line of the table: the name of a layer, its effect, and its names in other libraries."""

    layer: str
    computes: str
    elsewhere: tuple[str, ...]


class Overview(tuple[Row, ...]):
    """Rows of the table, which show themselves one below another."""

    def __repr__(self) -> str:
        """Return the table as text."""
        width = max((len(row.layer) for row in self), default=0)
        names = {row: f" ({', '.join(row.elsewhere)})" if row.elsewhere else "" for row in self}
        return "\n".join(f"{row.layer:<{width}}  {row.computes}{names[row]}" for row in self)


def overview(search: str = "") -> Overview:
    """List layers, one line each: the name, the effect, and the names in Keras, PyTorch and Flax.

    Args:
      search: show only layers that have this text in their line; capitals do not matter. By default all layers.

    Returns:
      A tuple of rows, printed as a table; a row has `layer`, `computes` and `elsewhere`.

    Example:
      >>> import fluid
      >>> fluid.layers.overview("LayerNorm")
      feature_norm  Normalise the last axis to mean 0 and variance 1: layer normalisation ... (LayerNorm, ...)
      >>> len(fluid.layers.overview()) > 200
      True
    """
    layers = importlib.import_module("fluid.layers")  # on use, because this module is one of its names
    elsewhere: dict[str, set[str]] = {}
    for hints in HINTS.values():
        for name, instead in hints.items():
            if found := re.match(r"layers\.(\w+)", instead):
                elsewhere.setdefault(found[1], set()).add(name)
    rows = []
    for name in layers.__all__:
        lines = (inspect.getdoc(getattr(layers, name)) or "").splitlines() or [""]
        rows.append(Row(name, lines[0], tuple(sorted(elsewhere.get(name, ())))))
    return Overview(row for row in rows if search.lower() in " ".join((*row[:2], *row[2])).lower())
