"""Recording: convert layers and nets to functions that can be called outside a program function."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fluid import core, errors
from fluid.static.tape.calls import running
from fluid.static.tape.program import default_main_program
from fluid.static.tape.variable import Persistent, Variable

# Arguments of Fluid that do not change results. They are dropped if the layer has no such argument here.
_WITHOUT_INFLUENCE = frozenset(
    {"force_cpu", "fuse_with_relu", "is_test", "need_clip", "persistable", "startup_program", "stop_gradient"}
    | {"use_cudnn", "use_mkldnn"}
)


def in_a_function() -> bool:
    """Return whether a program function is running; layers are then called at once instead of recorded."""
    return core.present_frame() is not None


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a layer: record the call outside a program function, and call the layer inside.

    If an argument in which Fluid stores the result, for example `out=`, is a variable, the result is assigned to it.
    """
    signature = inspect.signature(function)
    known = signature.parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())
    stores = getattr(function, "assigns", ())
    keyword = next(iter(stores)) if len(stores) == 1 else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not open_ended:
            kwargs = {n: v for n, v in kwargs.items() if n in known or n not in _WITHOUT_INFLUENCE}
        if in_a_function() and running() is None:
            with core.as_fluid():
                return function(*args, **kwargs)
        if keyword is not None:
            given = signature.bind(*args, **kwargs)
            target = given.arguments.pop(keyword, None)
            if target is not None:
                return assigned(target, function, *given.args, **given.kwargs)
        if "inplace" in known:
            args, kwargs, changed = _in_place(signature.bind(*args, **kwargs))
            if changed is not None:
                return assigned(changed, function, *args, **kwargs)
        return default_main_program().apply(function, args, kwargs)

    return call


def _in_place(given: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any], Variable | None]:
    """Return the arguments of a call without `inplace`, and the variable to assign; None for a new variable.

    As in Fluid, `reshape(x, shape, inplace=True)` gives `x` itself the new shape. A parameter keeps its shape.
    """
    x = next(iter(given.arguments.values()))
    in_place = given.arguments.pop("inplace", False) and isinstance(x, Variable) and running() is None
    changed = in_place and not isinstance(x, Persistent) and given.arguments.get("act") is None
    return given.args, given.kwargs, x if changed else None


def assigned(target: Variable, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Variable:
    """Record a call of a layer whose result is assigned to a variable; return the variable.

    Raises:
      ArgumentTypeError: the target is not a variable.
    """
    if not isinstance(target, Variable):
        raise errors.ArgumentTypeError(
            f"found {type(target).__name__}, expected a variable to give the result of {function.__name__} to, as in "
            f"layers.less_than(x, y, cond=cond)"
        )
    default_main_program().apply(function, args, kwargs, into=[target])
    return target
