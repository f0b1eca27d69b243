"""Recording: layers, nets and the like, as functions that may be called outside a program function."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fluid import core
from fluid.static.tape.calls import running
from fluid.static.tape.program import default_main_program

# Arguments of Fluid without influence on numbers, which a layer here may not have.
_WITHOUT_INFLUENCE = frozenset(
    {"force_cpu", "fuse_with_relu", "is_test", "need_clip", "persistable", "startup_program", "stop_gradient"}
    | {"use_cudnn", "use_mkldnn"}
)


def in_a_function() -> bool:
    """Whether a program function is running, in which layers are called at once."""
    return core.present_frame() is not None


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A layer that is written down where it is called outside a program function, and else called at once."""
    known = inspect.signature(function).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not open_ended:
            kwargs = {n: v for n, v in kwargs.items() if n in known or n not in _WITHOUT_INFLUENCE}
        if in_a_function() and running() is None:
            return function(*args, **kwargs)
        return default_main_program().apply(function, args, kwargs)

    return call
