"""Multi-process training: join the processes, exchange values, and end together when one process fails.

Names are loaded on use. `__init__.pyi` lists the file of each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
