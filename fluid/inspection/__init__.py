"""Inspection of programs: tables and drawings of their layers.

Names are loaded on first use, so `import fluid` stays fast. `__init__.pyi` lists the module of each name.
"""

from fluid._util import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)
