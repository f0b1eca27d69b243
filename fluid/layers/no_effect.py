"""Decorators for arguments of Fluid that have no effect, and for output arguments, which are refused."""

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from fluid import core, errors

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Warned:
    """The reason why an argument of Fluid has no effect, with the condition under which a call warns.

    Attributes:
      why: the reason, as the docstring of the layer gives it.
      asks: called with the value of the argument and with all given arguments by name; returns whether the value
        requests an unsupported behaviour.
      instead: the advice in the warning, such as "cast the input, as in layers.cast(x, 'float32')".
    """

    why: str
    asks: Callable[[Any, dict[str, Any]], bool]
    instead: str


# The pairs of function and argument that have caused a warning in this process: each pair warns only once.
_told: set[tuple[Callable[..., Any], str]] = set()


class BriefSignature(inspect.Signature):
    """A signature of a function that hides some arguments in `help()` and `str()`, but still accepts them.

    The method `bind` and the attribute `parameters` have all arguments.

    Attributes:
      hidden: the names of the hidden arguments; an argument without a default is shown nevertheless.
    """

    hidden: Collection[str] = ()

    @property
    def shown(self) -> inspect.Signature:
        """The signature that `help()` shows: no hidden arguments, and arguments after a hidden one are keyword-only."""
        shown: list[inspect.Parameter] = []
        positional = True
        for parameter in self.parameters.values():
            if parameter.name in self.hidden and parameter.default is not parameter.empty:
                positional = False
            elif positional or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                shown.append(parameter)
            else:
                shown.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
        return inspect.Signature(shown, return_annotation=self.return_annotation)

    def __str__(self) -> str:
        return str(self.shown)

    def format(self, **options: Any) -> str:
        """Return the signature as text, without hidden arguments; `help()` calls this method from Python 3.13 on."""
        return str(self.shown.format(**options))  # type: ignore[attr-defined]


def no_effect(**reasons: str | Warned) -> Callable[[F], F]:
    """Decorate a function that has arguments without effect, so that programs written for Fluid run.

    The reasons become the attribute `no_effect` of the function. A test compares the reasons with the docstring.
    `help()` hides these arguments by a `BriefSignature`.

    Args:
      reasons: the reason for each argument, by the name of the argument. A plain string never warns. A `Warned` is for
        an argument from which the user may expect an effect: a value that requests this effect causes a warning, once
        in a process.
    """
    warned = {name: reason for name, reason in reasons.items() if isinstance(reason, Warned)}

    def decorate(function: F) -> F:
        signature = BriefSignature.from_callable(function)
        signature.hidden = reasons
        function.__dict__.update(no_effect=reasons, __signature__=signature)
        if not warned:
            return function
        parameters = list(signature.parameters)

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


def assigns(**instead: str) -> Callable[[F], F]:
    """Decorate a layer that has output arguments, which name variables in which Fluid stores the result.

    The arguments become the attribute `assigns` of the function. Passing one of them raises an ArgumentError.
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
