"""Layers: what a program function calls.

The families are loaded on use. `__init__.pyi` says which file each name comes from.
"""

from fluid import lazy, missing

# Modules that bear the name of their layer: loaded later, a module would take the place of the layer.
from fluid.layers.data import data  # noqa: F401
from fluid.layers.embedding import embedding  # noqa: F401
from fluid.layers.fc import fc  # noqa: F401
from fluid.layers.module import module  # noqa: F401
from fluid.layers.py_func import py_func  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(__name__, otherwise=missing.of_layers)
