"""Layers: the functions that a program function calls.

A subpackage is imported when one of its layers is first used. `__init__.pyi` lists the file of each layer.
"""

from fluid._util import lazy
from fluid.compat import name_hints

# Nearly every program calls `data`, `embedding` and `fc`, so these three layers are imported immediately; all other
# layers are imported on first use.
from fluid.layers.data import data  # noqa: F401
from fluid.layers.embedding import embedding  # noqa: F401
from fluid.layers.fc import fc  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(
    __name__, otherwise=name_hints.getattr_of(__name__), above=["learning_rate_scheduler"]
)
