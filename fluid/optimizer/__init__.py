"""Optimizers: Fluid's names and numbers on top of optax; any optax transformation is accepted too.

The names are loaded on first use. `__init__.pyi` lists the file of each name.
"""

from fluid import lazy, name_hints

__getattr__, __dir__, __all__ = lazy.attach(__name__, otherwise=name_hints.getattr_of(__name__))
