"""What a user is offered: the modules, and how their public names are found."""

import importlib
import inspect

MODULES = [
    "fluid",
    "fluid.layers",
    "fluid.nets",
    "fluid.optimizer",
    "fluid.initializer",
    "fluid.regularizer",
    "fluid.clip",
    "fluid.metrics",
    "fluid.handlers",
    "fluid.reader",
    "fluid.io",
    "fluid.errors",
    "fluid.static",
    "fluid.static.backward",
    "fluid.static.clip",
    "fluid.static.core",
    "fluid.static.framework",
    "fluid.static.io",
    "fluid.static.unique_name",
]


def public_names(module):
    """Map name to value: what `__all__` lists, or else what the module itself defines."""
    module = importlib.import_module(module)
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not (name.startswith("_") or inspect.ismodule(value)) and getattr(value, "__module__", "") == module.__name__
    }
