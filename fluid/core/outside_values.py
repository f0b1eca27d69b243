"""Values from outside that a program function reads, so that a later trace can find that the program has changed.

A program is traced when it is made, and again at another batch size, in test mode and for an export. Every trace must
give the program that the first trace gave. Two steps check this:

1. `OutsideValues` reads the Python values that the code of the program names: globals, attributes, elements, defaults,
   and the code of the user's functions that it calls, at any depth. This costs well under a tenth of a trace. Nothing
   else happens while all these values are the same.
2. If a value has changed, `Program.check_unchanged` traces the program once more with the dummy sizes of the first
   trace, and compares the equations of the two traces one by one.

So the verdict never compares traces of different sizes: a reshape to the batch size, an `if` on a number of steps, and
a layer that chooses a kernel by its sizes give equal equations at equal sizes. And a changed value that no equation
depends on, such as a counter or a path, is no error.

The variables that the function closes over need no check, because `fluid.core.closures` fixes them. The check does not
see what a function reads without naming it, such as the content of a file.
"""

import functools
import os
import random
import sys
import sysconfig
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid.core.closures import is_empty
from fluid.core.frame import is_library

_FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, CodeType)
_NAMESPACES = frozenset({"types", "argparse"})  # modules of Python whose classes hold values of the user
_LIMIT = 4000  # number of values that are read; more are not compared
_ITEMS = 1000  # number of elements of a list or dict, above which only its identity is compared
_BYTES = 1 << 20  # size of a NumPy array, above which its identity and a sample of its numbers are compared
# Names of functions that return another number in each call, and change no state that can be compared.
_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "now", "today", "default_rng", "uuid4", "urandom"})
_ENVIRONMENT = frozenset({"environ", "getenv"})  # names by which code reads variables of the environment


class _Content(NamedTuple):
    """The content of an array, as text and a checksum."""

    text: str
    checksum: int


class _Generator(_Content):
    """The state of a generator of random numbers."""


class Change(NamedTuple):
    """A value that has changed: its name in the code of the user, and texts of the value before and now."""

    name: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"`{self.name}` was {self.before} when the program was made and is {self.now} now"


class OutsideValues:
    """The values from outside that a program function reads, at the time of construction.

    Example:
      >>> settings = {"rate": 0.5}
      >>> def program(): return settings["rate"]
      >>> values = OutsideValues(program)
      >>> settings["rate"] = 0.75
      >>> print(*values.changes("train"))
      `settings['rate']` was 0.5 when the program was made and is 0.75 now
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._first = _read(function)
        self._accepted: dict[str, dict[Hashable, Any]] = {}

    def leave_out_changed(self) -> bool:
        """Stop comparing values that have changed by now, such as a counter that the function itself increments."""
        now = _read(self._function)
        own = [key for key in self._first if not _same(self._first[key], now.get(key))]
        numbers = any(isinstance(self._first[key], int | float | np.generic | _Generator) for key in own)
        self._first = {key: value for key, value in self._first.items() if key not in own and key in now}
        return numbers

    def changes(self, mode: str) -> list[Change]:
        """Return the values that differ from their first values, unless `accept` has accepted them for this mode."""
        if not self._first:
            return []
        now = _read(self._function)
        if self._differing(self._accepted.get(mode, self._first), now):
            return [
                Change(key[1], _shown(self._first[key]), _shown(now.get(key)))
                for key in self._differing(self._first, now)
            ]
        return []

    def accept(self, mode: str) -> None:
        """Record that the present values give the same equations in a mode."""
        self._accepted[mode] = _read(self._function)

    def _differing(self, before: Mapping[Any, Any], now: Mapping[Any, Any]) -> list[Any]:
        return [key for key in self._first if not _same(before.get(key), now.get(key))]


def reads_clock(function: Callable[..., Any]) -> bool:
    """Return whether the code of a program function, or of a function that it calls, names a clock or the like."""
    found = _read(function).values()
    return any(_CLOCKS.intersection(_names_in(code)) for code in found if isinstance(code, CodeType))


def random_states() -> list[_Content]:
    """Return the states of the global generators of random numbers of Python and NumPy."""
    return [_content_of(generator) for generator in (random, np.random.mtrand._rand)]


@functools.lru_cache(1000)
def _names_in(code: CodeType) -> tuple[str, ...]:
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names_in(constant)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _read(function: Callable[..., Any]) -> dict[Any, Any]:
    """Return the values that a function reads, by a pair of the place of definition and the name in messages."""
    found: dict[Any, Any] = {}
    waiting: deque[tuple[Hashable, str, Any]] = deque([("", "", function)])
    seen: dict[int, Any] = {}
    while waiting and len(found) < _LIMIT:
        owner, name, value = waiting.popleft()
        # The first value of a name counts: an attribute of an object comes before an attribute of its class.
        if isinstance(value, _PLAIN):
            found.setdefault((owner, name), value)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            found.setdefault((owner, name), _content_of(value))
        elif isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
            found.setdefault((owner, name), _content_of(value))
        elif not isinstance(value, jax.core.Tracer):
            inner = None if id(value) in seen else _inner(owner, name, value)
            seen[id(value)] = value
            if inner is None:
                found.setdefault((owner, name), _identity_of(value))
            else:
                waiting += inner
    return found


def _identity_of(value: Any) -> Any:
    """Return a value that is the same object for the same value, and does not keep the value alive."""
    try:
        return weakref.ref(value)
    except TypeError:
        return _Content(type(value).__name__, len(value) if hasattr(value, "__len__") else 0)


def _inner(owner: Hashable, name: str, value: Any) -> Sequence[tuple[Hashable, str, Any]] | None:
    """Return the values inside a value as triples of owner, name and value; None to compare the value by identity."""
    if isinstance(value, FunctionType):
        if not name or not _is_foreign(value.__code__.co_filename):
            return _inside_function(owner, name, value)
        # A decorator of a library closes over the function of the user.
        inside = [cell.cell_contents for cell in value.__closure__ or () if not is_empty(cell)]
        return [
            (owner, name, f) for f in inside if isinstance(f, FunctionType | MethodType | functools.partial)
        ] or None
    if isinstance(value, MethodType):
        return [(owner, name, value.__func__), (owner, "self", value.__self__)]
    if isinstance(value, functools.partial):
        given = [(owner, f"argument {i}", item) for i, item in enumerate(value.args)]
        return [*given, *((owner, key, item) for key, item in value.keywords.items()), (owner, name, value.func)]
    if isinstance(value, staticmethod | classmethod):
        return [(owner, name, value.__func__)]
    if isinstance(value, property):
        return [(owner, name, f) for f in (value.fget,) if f is not None]
    if isinstance(value, list | tuple | set | frozenset | dict):
        if len(value) > _ITEMS:
            return None
        # A copy, because another thread may change the value meanwhile.
        pairs = enumerate(tuple(value)) if not isinstance(value, dict) else tuple(value.items())
        named = ((key if isinstance(key, str | int) else i, item) for i, (key, item) in enumerate(pairs))
        return [(owner, name, f"{len(value)} values"), *((owner, f"{name}[{key!r}]", item) for key, item in named)]
    if isinstance(value, ModuleType):
        return None
    if isinstance(value, type):
        # Only the functions and the plain values of a class: its identity changes when a notebook cell runs again.
        classes = [kind for kind in value.__mro__ if _is_users(kind)]
        kept = (FunctionType, staticmethod, classmethod, property, list, tuple, dict, *_PLAIN)
        return [
            (owner, f"{name}.{key}", item)
            for kind in classes
            for key, item in tuple(vars(kind).items())
            if isinstance(item, kept) and (not key.startswith("__") or key in ("__init__", "__call__"))
        ] or None
    attributes = getattr(value, "__dict__", {})
    if callable(value) and "__wrapped__" in attributes:
        return [(owner, name, attributes["__wrapped__"])]
    kind = type(value)
    if not _is_users(kind) and is_dataclass(value):
        return [(owner, f"{name}.{field.name}", attributes.get(field.name)) for field in fields(value)]
    if _is_users(kind) or kind.__module__ in _NAMESPACES:
        name = name or "self"
        return [(owner, name, kind), *((owner, f"{name}.{key}", item) for key, item in tuple(attributes.items()))]
    return None


def _inside_function(owner: Hashable, name: str, function: FunctionType) -> list[tuple[Hashable, str, Any]]:
    code = function.__code__
    here = hash((owner, name, function.__qualname__))
    found: list[tuple[Hashable, str, Any]] = [(owner, name or function.__name__, code)]
    taken = code.co_varnames[: code.co_argcount]
    for argument, value in zip(reversed(taken), reversed(function.__defaults__ or ()), strict=False):
        found.append((here, argument, value))
    found += [(here, argument, value) for argument, value in (function.__kwdefaults__ or {}).items()]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found += [(here, variable, cell.cell_contents) for variable, cell in cells if not is_empty(cell)]
    outside = function.__globals__
    names = _names_in(code)
    if _ENVIRONMENT.intersection(names):
        found.append(("os", "os.environ", dict(os.environ)))
    for variable in names:
        if variable not in outside:
            continue
        value = outside[variable]
        if isinstance(value, ModuleType) and not _is_foreign(getattr(value, "__file__", None) or "<built-in>"):
            inside = [(n, vars(value)[n]) for n in names if n in vars(value)]
            found += [(value.__name__, f"{variable}.{n}", item) for n, item in inside]
        else:
            found.append((function.__module__, variable, value))
    return found


def _is_users(kind: type) -> bool:
    module = kind.__module__
    if module == "__main__":
        return True
    if module in ("builtins", "types", "argparse"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not _is_foreign(file)


@functools.lru_cache(1000)
def _is_foreign(file: str) -> bool:
    return is_library(file) or file.startswith((*_FOLDERS, "<frozen", "<built-in"))


def _content_of(value: Any) -> _Content:
    """Return the content of an array or a generator of random numbers as a value that can be compared."""
    if isinstance(value, np.ndarray):
        sample = value if value.nbytes <= _BYTES else value.reshape(-1)[:: 1 + value.nbytes // _BYTES]
        checksum = zlib.crc32(np.ascontiguousarray(sample).tobytes())
        return _Content(f"{value.dtype}{list(value.shape)}", checksum if sample is value else checksum ^ id(value))
    state: Any
    if isinstance(value, np.random.Generator):
        state = repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        name, numbers, *rest = value.get_state(legacy=True)
        state = (name, np.asarray(numbers).tobytes(), *rest)
    else:
        state = value.getstate()
    return _Generator("a generator of random numbers", hash(state) & 0xFFFFFFFF)


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second) or not isinstance(first, (*_PLAIN, _Content)):
        return False
    return bool(first == second) or (first != first and second != second)


def _shown(value: Any) -> str:
    """Return a value as text for messages: plain values as the user writes them, and other values by their kind."""
    if isinstance(value, CodeType):
        return f"the function of {value.co_filename}:{value.co_firstlineno}"
    if isinstance(value, _Content):
        return f"{value.text} (checksum {value.checksum:x})"
    if isinstance(value, weakref.ref):
        return f"an object of the class {type(value()).__name__}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
