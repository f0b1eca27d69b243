"""Defaults: defaults that Fluid chose in 2017, and warnings where most people expect another default today."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from fluid.core.frame import current_frame, present_frame, warn
from fluid.core.variables import doubt

T = TypeVar("T", int, str)


class _Default:
    """A marked default value. A marked value equals the plain number or string, and has another type."""


class _Number(_Default, int):
    __slots__ = ()


class _Text(_Default, str):
    __slots__ = ()


def default(value: T) -> T:
    """Mark a default value in the signature of a layer, so that `is_default` recognizes it.

    Example:
      >>> axis = default(1)
      >>> axis == 1, is_default(axis), is_default(1)
      (True, True, False)
    """
    return cast(T, _Number(value) if isinstance(value, int) else _Text(value))


def is_default(value: Any) -> bool:
    """Return whether the user left an argument out, so that its value is a default marked by `default`."""
    return isinstance(value, _Default)


@contextlib.contextmanager
def as_fluid() -> Iterator[None]:
    """Silence `doubt_reading` and `doubt_setting` in a block of code for Fluid, such as a program of `fluid.static`."""
    frame = current_frame("core.as_fluid")
    before, frame.as_fluid = frame.as_fluid, True
    try:
        yield
    finally:
        frame.as_fluid = before


def doubt_reading(message: str) -> None:
    """Warn, once and with the user's line, of code that Fluid reads differently from what most people expect today.

    Args:
      message: both meanings, and the code to write for each.
    """
    if not current_frame("core.doubt_reading").as_fluid:
        doubt(message)


def doubt_setting(message: str) -> None:
    """Warn of arguments that are most likely a mistake, inside and outside program functions.

    Each trace of a program function creates the object with these arguments again, but only discovery warns.

    Args:
      message: what was found and what to write.
    """
    frame = present_frame()
    if frame is None:
        warn(message)
    elif not frame.as_fluid:
        doubt(message)
