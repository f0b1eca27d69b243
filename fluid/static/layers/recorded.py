"""All names of `fluid.layers` for `fluid.static.layers`; a layer is wrapped by `recorded` on its first use."""

import functools
import inspect
from typing import Any

from fluid import layers
from fluid.static.tape.recording import recorded


@functools.cache
def _layer(name: str) -> Any:
    found = getattr(layers, name)
    return recorded(found) if inspect.isfunction(found) else found


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return layers.__all__
    if name.startswith("_"):
        raise AttributeError(name)
    return _layer(name)
