"""The networks of `fluid.nets`, and `embedding` and `one_hot`; calls are recorded into a program, and run later."""

import functools
from typing import Any

from fluid import nets
from fluid.compat import input
from fluid.static.tape.program import recorded

embedding = recorded(input.embedding)
one_hot = recorded(input.one_hot)


@functools.cache
def _net(name: str) -> Any:
    return recorded(getattr(nets, name))


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _net(name)
