"""Layers: what a program function calls.

The families are loaded on use. `__init__.pyi` says which file each name comes from.
"""

from fluid import lazy, name_hints

# What nearly every program calls is loaded at once, and with it core and JAX.
from fluid.layers.data import data  # noqa: F401
from fluid.layers.embedding import embedding  # noqa: F401
from fluid.layers.fc import fc  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(__name__, otherwise=name_hints.of_layers)
