"""Defaults that Fluid chose in 2017, and the warning where they meet a value that most people read in another way."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from fluid.core.variables import doubt

T = TypeVar("T", int, str)


class _Default:
    """A default value; equal to the same value given by the user, but of another type."""


class _Number(_Default, int):
    __slots__ = ()


class _Text(_Default, str):
    __slots__ = ()


def default(value: T) -> T:
    """Return a value for the signature of a layer that `is_default` can tell from the same value given by the user.

    Example:
      >>> axis = default(1)
      >>> axis == 1, is_default(axis), is_default(1)
      (True, True, False)
    """
    return cast(T, _Number(value) if isinstance(value, int) else _Text(value))


def is_default(value: Any) -> bool:
    """Return whether an argument was left out, so that it has the value from `default`."""
    return isinstance(value, _Default)


_as_fluid: ContextVar[bool] = ContextVar("fluid_as_fluid", default=False)


@contextlib.contextmanager
def as_fluid() -> Iterator[None]:
    """Silence `doubt_reading`: programs and models that were written for Fluid mean the readings of Fluid."""
    token = _as_fluid.set(True)
    try:
        yield
    finally:
        _as_fluid.reset(token)


def doubt_reading(message: str) -> None:
    """Warn, once and with the user's line, that a value can be read in another way than Fluid reads it.

    Args:
      message: both readings, and what to write for each.
    """
    if not _as_fluid.get():
        doubt(message)
