"""fluid: write a model as one Python function; train, test, save and infer it on JAX.

Begin with `help(fluid.Trainer)`, which trains a program. `fluid.layers.overview()` lists the layers, and
`help(fluid.layers)` their families.

`import fluid` imports the layers; all other names are imported on first use. `__init__.pyi` lists the module of each
name.
"""

from fluid import layers  # noqa: F401
from fluid._util import known_names, lazy

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__, otherwise=known_names.getattr_of(__name__), above=["artifact", "inferencer", "lr", "runtime", "static"]
)
