"""Optimizers: the names and formulas of PaddlePaddle Fluid on top of optax; optax transformations are accepted too.

A module is imported when one of its names is first used. `__init__.pyi` lists the module of each name.
"""

from fluid._util import lazy
from fluid.compat import name_hints

__getattr__, __dir__, __all__ = lazy.attach(__name__, otherwise=name_hints.getattr_of(__name__))
