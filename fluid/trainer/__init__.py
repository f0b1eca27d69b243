"""Training: Trainer, the training loop, its events and its handlers.

Names that few scripts use are imported on first use. `__init__.pyi` lists the module that defines each name.
"""

from fluid._util import lazy
from fluid.trainer.trainer import Trainer  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(__name__)
