"""Arguments that do nothing, and are there so that programs written for Fluid run."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fluid import core

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Warned:
    """Why an argument has no effect, for one whose value may ask for something that does not happen.

    Attributes:
      why: the reason, as the docstring of the layer gives it.
      asks: called with the value and with all arguments that were given, by name; whether this value asks for something
        that does not happen.
      instead: what to do instead, an imperative.
    """

    why: str
    asks: Callable[[Any, dict[str, Any]], bool]
    instead: str


# The functions and arguments of the warnings that were given, each once in a process.
_told: set[tuple[Callable[..., Any], str]] = set()


def no_effect(**reasons: str | Warned) -> Callable[[F], F]:
    """Decorate a function some of whose arguments do nothing, and are there so that programs written for Fluid run.

    The reasons become the attribute `no_effect` of the function. They are in its docstring too, which a test compares.

    Args:
      reasons: why each of these arguments does nothing. A string is for an argument that could not change anything a
        user sees. `Warned` is for an argument of which a user may expect something; giving it such a value warns, once
        in a process.
    """
    warned = {name: reason for name, reason in reasons.items() if isinstance(reason, Warned)}

    def decorate(function: F) -> F:
        function.__dict__["no_effect"] = reasons
        if not warned:
            return function
        parameters = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(parameters, args, strict=False)), **kwargs}
            for name, reason in warned.items():
                if name in given and reason.asks(given[name], given):
                    _tell(function, name, reason)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def _tell(function: Callable[..., Any], argument: str, reason: Warned) -> None:
    if (function, argument) in _told:
        return
    _told.add((function, argument))
    core.warn(
        f"{function.__qualname__}: {argument}= has no effect: {reason.why}; {reason.instead} "
        f"(called at {core.user_site()})"
    )
