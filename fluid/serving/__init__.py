"""Serving of models over HTTP: the Open Inference Protocol, a server with batching and versions, and a client.

Names are imported on first use. `__init__.pyi` lists the module that defines each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
