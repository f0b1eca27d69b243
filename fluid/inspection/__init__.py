"""Inspection of programs: tables and drawings of their layers.

A module of this package is imported when one of its names is used first, so `import fluid` stays fast. `__init__.pyi`
lists the module of each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
