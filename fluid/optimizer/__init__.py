"""Optimizers with the names and formulas of PaddlePaddle Fluid, based on optax. Users may also pass optax objects.

The package imports a module on the first use of one of its names. `__init__.pyi` lists the module of each name.
"""

from fluid._util import known_names, lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, otherwise=known_names.getattr_of(__name__))
