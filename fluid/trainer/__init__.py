"""The training loop, its events and handlers, and Trainer.

Names that few scripts use are loaded on first use. `__init__.pyi` lists the file of each name.
"""

from fluid import lazy
from fluid.trainer.trainer import Trainer  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(__name__)
