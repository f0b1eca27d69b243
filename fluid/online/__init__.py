"""Online training: a journal on disk stores rows that arrive over HTTP, and a model is trained on each row once.

Names are imported on first use. `__init__.pyi` lists the module that defines each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
