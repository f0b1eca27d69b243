"""The function `overview`, which lists all layers with their names in Keras, PyTorch and Flax."""

import importlib
import inspect
import re
from typing import NamedTuple

from fluid._util.known_names import names

__all__ = ["overview"]

# The sections of the table of names in Keras, PyTorch and Flax in which the first layer in the advice computes the same
# as the name. In other sections, such as "fluid.metrics", this layer may compute only a part.
OWNERS = ("fluid.layers", "fluid.nets", "fluid.lr", "jax.Array")


class LayerLine(NamedTuple):
    """A line of an `Overview`: a layer, the first line of its docstring, and its names in other libraries."""

    layer: str
    computes: str
    elsewhere: tuple[str, ...]


class Overview(tuple[LayerLine, ...]):
    """A tuple of `LayerLine`, one for each layer, which prints as a table of layers."""

    def __repr__(self) -> str:
        """Return the rows as a text table, one line for each layer."""
        width = max((len(row.layer) for row in self), default=0)
        names = {row: f" ({', '.join(row.elsewhere)})" if row.elsewhere else "" for row in self}
        return "\n".join(f"{row.layer:<{width}}  {row.computes}{names[row]}" for row in self)


def overview(search: str = "") -> Overview:
    """List layers, one line each: the name, the effect, and the names in Keras, PyTorch and Flax.

    Args:
      search: list only layers whose line contains this text, in upper or lower case. By default all layers.

    Returns:
      A tuple of rows, printed as a table. Each row has the attributes `layer`, the name; `computes`, the effect; and
      `elsewhere`, the names in other libraries.

    Example:
      >>> import fluid
      >>> fluid.layers.overview("LayerNorm")
      feature_norm  Normalise the last axis to mean 0 and variance 1: layer normalisation ... (LayerNorm, ...)
      >>> len(fluid.layers.overview()) > 200
      True
    """
    # Import `fluid.layers` only here, because `fluid.layers` itself imports this module.
    layers = importlib.import_module("fluid.layers")
    elsewhere: dict[str, set[str]] = {}
    for owner in OWNERS:
        for name, instead in names()["other_libraries"][owner].items():
            if found := re.match(r"(?:fluid\.)?(?:layers|lr)\.(\w+)", instead):
                elsewhere.setdefault(found[1], set()).add(name)
    rows = []
    for name in layers.__all__:
        lines = (inspect.getdoc(getattr(layers, name)) or "").splitlines() or [""]
        rows.append(LayerLine(name, lines[0], tuple(sorted(elsewhere.get(name, ())))))
    return Overview(row for row in rows if search.lower() in " ".join((*row[:2], *row[2])).lower())
