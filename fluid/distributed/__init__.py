"""Several processes that train together: how each finds its place, how they agree, and how they end when one fails.

They are loaded on use. `__init__.pyi` says which file each name comes from.
"""

from fluid import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
