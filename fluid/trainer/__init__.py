"""The training loop, its events and handlers, and Trainer.

What not every script uses is loaded on use. `__init__.pyi` says which file each name comes from.
"""

from fluid import lazy
from fluid.trainer.trainer import Trainer  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(__name__)
