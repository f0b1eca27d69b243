"""Online training: rows arrive over HTTP and are kept in a journal, and a model is trained on each exactly once.

Names are loaded on use. `__init__.pyi` lists the file of each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
