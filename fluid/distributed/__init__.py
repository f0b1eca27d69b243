"""Multi-process training: join the processes, exchange values, and end all processes when one of them fails.

Names are imported lazily, at their first use. `__init__.pyi` lists the file of each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
