"""Arguments by which a layer of Fluid changes a value: errors in a program function, where no value ever changes."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from fluid import errors

F = TypeVar("F", bound=Callable[..., Any])


def assigns(**instead: str) -> Callable[[F], F]:
    """Decorate a layer that has arguments for variables in which Fluid stores a result.

    The arguments become the attribute `assigns` of the function. Passing one of them raises an ArgumentError.

    Args:
      instead: for each of these arguments the corrected call, as in `output="y = layers.assign(x)"`.
    """

    def decorate(function: F) -> F:
        parameters = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(parameters, args, strict=False)), **kwargs}
            for name, call in instead.items():
                if given.get(name) is not None:
                    raise errors.ArgumentError(
                        f"{function.__qualname__}({name}=...) would change a value, and the values of a program "
                        f"function never change; use what is returned: {call}. Programs that assign to variables run "
                        f"in fluid.static"
                    )
            return function(*args, **kwargs)

        wrapper.__dict__["assigns"] = instead
        return wrapper  # type: ignore[return-value]

    return decorate
