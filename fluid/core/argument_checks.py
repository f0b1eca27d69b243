"""Argument checks, and warnings about arguments and defaults of PaddlePaddle Fluid (2017) that surprise most users."""

import contextlib
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar, cast

import jax
import numpy as np

from fluid import errors
from fluid._util import known_names
from fluid.core.frame import current_frame, present_frame, warn
from fluid.core.variables import doubt

F = TypeVar("F", bound=Callable[..., Any])


def whole_number(owner: str, name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Check that an argument is a whole number in a range.

    Raises:
      ArgumentError: the value is not an integer, or is outside `least ... most`.

    Example:
      >>> whole_number("fc", "size", 10)
      10
      >>> whole_number("fc", "size", 0)
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentError: fc(size=0): expected a whole number from 1 on, as in size=1
    """
    if jax.export.is_symbolic_dim(value):  # `jax.export` checks the bounds of symbolic dimensions itself
        return cast(int, value)
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        span = f"from {least} on" if most is None else f"from {least} to {most}"
        raise errors.ArgumentError(f"{owner}({name}={value!r}): expected a whole number {span}, as in {name}={least}")
    return number


def is_positive(value: Any) -> bool:
    """Return whether a value is a number above 0. The result for a bool is False.

    Example:
      >>> is_positive(0.5), is_positive(np.float32(2)), is_positive(0), is_positive(True), is_positive("1")
      (True, True, False, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0


def one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    """Return the value of an argument that has two names, `name` and `other_name`; None if both values are None.

    Raises:
      ArgumentTypeError: neither value is None.

    Example:
      >>> one_of("optimizer", None, "optimizer_func", 3)
      3
    """
    if value is not None and other is not None:
        raise errors.ArgumentTypeError(f"{name} and {other_name} are two spellings of one argument; give one")
    return other if value is None else value


def is_size(value: Any) -> bool:
    """Return whether a value can be an array size: an integer, or a symbolic dimension of `jax.export`.

    Example:
      >>> is_size(4), is_size(True), is_size("4"), is_size(jax.export.symbolic_shape("batch")[0])
      (True, False, False, True)
    """
    if isinstance(value, int | np.integer):
        return not isinstance(value, bool)
    return bool(jax.export.is_symbolic_dim(value))


def fitting(name: str) -> Callable[[F], F]:
    """Return a decorator for a function or class: a call with wrong arguments raises an error that shows all arguments.

    For a frozen dataclass, an assignment to a field raises an error that shows how to make a changed copy.

    Example:
      >>> @fitting("double")
      ... def double(number): return 2 * number
      >>> double(3)
      6
      >>> double(nunber=3)
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentTypeError: double() got an unexpected keyword argument 'nunber'. Did you mean 'number'? ...
    """

    def decorate(function: F) -> F:
        if inspect.isclass(function):
            _fit_class(function, name)
            return function
        switches = switches_of(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            check_switches(name, switches, kwargs)
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                misfit = misfit_of(function, name, args, kwargs)
                if misfit is None or isinstance(error, errors.FluidError):
                    raise
            raise misfit

        return wrapper  # type: ignore[return-value]

    return decorate


def switches_of(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the arguments of a function that are annotated as bool.

    Example:
      >>> def sort(rows: list, reverse: bool = False): ...
      >>> switches_of(sort)
      frozenset({'reverse'})
    """
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.annotation in (bool, "bool"))


def check_switches(name: str, switches: frozenset[str], given: Mapping[str, Any]) -> None:
    """Raise an error if a bool argument is a string: Python would treat any string, even "False", as True.

    Raises:
      ArgumentTypeError: a bool argument is a string.
    """
    for argument in switches.intersection(given):
        if isinstance(given[argument], str):
            raise errors.ArgumentTypeError(
                f"{name}({argument}={given[argument]!r}): expected True or False, and any text would count as True; "
                f"write {argument}={given[argument].lower() in ('true', 'yes', 'on', '1')}"
            )


def _fit_class(kind: Any, name: str) -> None:
    kind.__init__ = fitting(name)(kind.__init__)
    explain_frozen(kind, name)


def explain_frozen(kind: Any, name: str) -> None:
    """Make assignments to a frozen dataclass raise an error that shows how to make a changed copy.

    Other classes stay unchanged.
    """
    refuse = vars(kind).get("__setattr__")
    if not dataclasses.is_dataclass(kind) or refuse is None or hasattr(refuse, "__wrapped__"):
        return

    @functools.wraps(refuse)
    def __setattr__(self: Any, attribute: str, value: Any) -> None:
        try:
            refuse(self, attribute, value)
        except dataclasses.FrozenInstanceError:
            fields = [field.name for field in dataclasses.fields(self)]
            if attribute not in fields:
                raise errors.missing_name(f"{type(self).__name__!r} object", attribute, fields) from None
            how = getattr(kind, "_set_by", {}).get(attribute, "")
            raise errors.MissingNameError(
                f"{attribute!r} of a {name} is fixed once it is made; make another one, "
                f"{name}({attribute}={value!r}){how}",
                name=attribute,
            ) from None

    kind.__setattr__ = __setattr__  # type: ignore[method-assign]


def misfit_of(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> errors.ArgumentTypeError | None:
    """Return the error that explains why arguments do not fit a function; None if they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
        return None
    except TypeError as error:
        reason = str(error)
    parameters = {n: p for n, p in signature.parameters.items() if n != "self"}
    taken = [n for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = next((n for n in kwargs if n not in parameters and not takes_any), None)
    advice = ""
    if unknown is not None:
        # Report an unknown name before a missing argument: often the user misspelled the name of the missing argument.
        reason = f"got an unexpected keyword argument {unknown!r}"
        advice = known_names.argument_advice(name, unknown, taken)
    shown = ", ".join(n if p.default is p.empty else f"{n}={_shown(p.default)}" for n, p in parameters.items())
    return errors.ArgumentTypeError(f"{name}() {_verb(reason)}.{advice} It takes {name}({shown})")


def _verb(reason: str) -> str:
    return f"is {reason}" if reason.startswith("missing") else f"got {reason.removeprefix('got ')}"


def _shown(default: Any) -> str:
    return repr(default) if isinstance(default, int | float | str | None | tuple) else "..."


def is_compiled_with_cuda() -> bool:
    """Return whether JAX has CUDA support and finds a GPU, so that `place=fluid.CUDAPlace(0)` works.

    Example:
      >>> import fluid
      >>> place = fluid.CUDAPlace(0) if fluid.core.is_compiled_with_cuda() else fluid.CPUPlace()
    """
    try:
        return bool(jax.local_devices(backend="cuda"))
    except RuntimeError:  # JAX raises RuntimeError if it has no CUDA support
        return False


def check_takes_nothing(function: Callable[..., Any]) -> None:
    """Raise an error if a program function has required arguments: fluid calls it without arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # `inspect.signature` fails for some built-in callables
        return
    waiting = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if waiting:
        raise errors.ProgramError(
            f"the program function {name_of(function)} takes {', '.join(waiting)}; fluid calls it without arguments. "
            f"Data is declared inside, {waiting[0]} = fluid.layers.data({waiting[0]!r}, shape=[...]); settings are "
            f"given by functools.partial(program, {waiting[0]}=...)"
        )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a program function; "program" if the name is no Python identifier, for example of a lambda."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "program"


def not_copied(name: str, instead: str) -> Callable[..., Any]:
    """Return a method `__reduce_ex__` that makes copying and pickling raise an error with advice.

    Classes that hold compiled steps and arrays on devices use this method, because they cannot be copied.
    """

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        raise errors.ArgumentTypeError(
            f"a fluid.{name} cannot be copied or pickled: it holds compiled steps, and arrays of a device; {instead}"
        )

    return __reduce_ex__


T = TypeVar("T", int, str)


class _Default:
    """A base class of numbers and strings that are default values of arguments; `is_default` recognizes this class."""


class _Number(_Default, int):
    __slots__ = ()


class _Text(_Default, str):
    __slots__ = ()


def default(value: T) -> T:
    """Return a marked copy of a default value for the signature of a layer, so that `is_default` recognizes the value.

    Example:
      >>> axis = default(1)
      >>> axis == 1, is_default(axis), is_default(1)
      (True, True, False)
    """
    return cast(T, _Number(value) if isinstance(value, int) else _Text(value))


def is_default(value: Any) -> bool:
    """Return whether `value` was marked by `default`, which means that the user did not pass the argument."""
    return isinstance(value, _Default)


@contextlib.contextmanager
def as_fluid() -> Iterator[None]:
    """Silence warnings about likely mistakes, from `doubt_reading` and `doubt_setting`, in a `with` block.

    The block runs code that was written for PaddlePaddle Fluid (2017). Its author means the arguments as Fluid does, so
    the warnings would be false alarms.
    """
    frame = current_frame("core.as_fluid")
    before, frame.as_fluid = frame.as_fluid, True
    try:
        yield
    finally:
        frame.as_fluid = before


def doubt_reading(message: str) -> None:
    """Warn once of code that has another meaning in PaddlePaddle Fluid than most users expect today.

    The warning begins with the user's source line.
    """
    if not current_frame("core.doubt_reading").as_fluid:
        doubt(message)


def doubt_setting(message: str) -> None:
    """Warn of arguments of an object, such as an optimizer, that are most likely a mistake.

    Outside a program function (a function that calls layers), the warning appears immediately. Inside a program
    function, each trace creates the object again, but only the first traced run issues the warning.
    """
    frame = present_frame()
    if frame is None:
        warn(message)
    elif not frame.as_fluid:
        doubt(message)
