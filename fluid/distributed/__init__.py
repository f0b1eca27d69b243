"""Several processes that train together: how each finds its place, how they agree, and how they end when one fails.

`initialize` is loaded on use. `__init__.pyi` says which file each name comes from.
"""

from fluid import lazy

# A module that bears the name of its function: loaded later, the module would take the place of the function.
from fluid.distributed.group import group  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(__name__)
