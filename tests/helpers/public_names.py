"""The public modules of fluid, and a function that finds the public names of a module."""

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
    "fluid.static.profiler",
    "fluid.static.unique_name",
]


def public_names(module):
    """Map the public names of a module to their values: the names in `__all__` or, without it, all definitions."""
    module = importlib.import_module(module)
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not (name.startswith("_") or inspect.ismodule(value)) and getattr(value, "__module__", "") == module.__name__
    }
