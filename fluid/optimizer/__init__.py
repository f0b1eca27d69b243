"""Optimizers: Fluid's names and numbers, optax underneath; any optax transformation is accepted beside them.

They are loaded on use. `__init__.pyi` says which file each name comes from.
"""

from fluid import lazy, name_hints

__getattr__, __dir__, __all__ = lazy.attach(__name__, otherwise=name_hints.of_optimizer)
