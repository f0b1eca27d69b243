"""Closures of program functions, fixed when a Program is made.

A program function is traced again at another batch size, in test mode and for an export. Python reads the variables of
an enclosing function at each call, so without this module every program of the following loop would have the last rate:

    for rate in (0.0, 0.5, 0.95):
        def program(): ... layers.dropout(h, rate) ...
        trainers[rate] = Trainer(program, optimizer)

Rules:

- A variable of an enclosing function keeps the value that it had when the Program was made. Only the binding is fixed:
  a list, a dict and any other object stay the same object, and its changes are visible.
- A variable that one of the functions assigns itself (`nonlocal calls; calls += 1`) stays shared, because the function
  uses it to speak with its surroundings.
- The rules hold for the functions of the user that the program function closes over, also inside `functools.partial`,
  bound methods, decorators and `fluid.shared`. Functions that close over nothing stay the same object, and so do
  functions inside lists, dicts and objects.
- Globals, attributes and elements are not fixed; `fluid.core.outside_values` compares them.
"""

import copy
import dis
import functools
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from fluid.core.frame import is_library
from fluid.core.shared_functions import Shared


def with_fixed_closure(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function whose variables of enclosing functions keep their present values.

    Example:
      >>> functions = []
      >>> def make():
      ...     for rate in (0.25, 0.5):
      ...         functions.append(with_fixed_closure(lambda: rate))
      >>> make()
      >>> [function() for function in functions]
      [0.25, 0.5]
    """
    shared = {id(cell) for code, cells in _closures(function) for name in _assigned(code) for cell in [cells[name]]}
    return _Copies(shared).of(function, outermost=True)


class _Copies:
    """The copies of functions and cells, by the `id` of the originals, so that each has one copy."""

    def __init__(self, shared: set[int]):
        self._shared = shared
        self._made: dict[int, Any] = {}

    def of(self, value: Any, outermost: bool = False) -> Any:
        """Return the copy of a function, a method or a partial; return any other value itself."""
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, FunctionType):
            is_own = outermost or not is_library(value.__code__.co_filename)
            return self._function(value) if is_own or self._holds_own(value) else value
        if isinstance(value, MethodType):
            function = self.of(value.__func__, outermost)
            return value if function is value.__func__ else MethodType(function, value.__self__)
        if isinstance(value, Shared):
            function = self.of(value.function)
            if function is value.function:
                return value
            made = copy.copy(value)
            made.function = made.__wrapped__ = function  # type: ignore[attr-defined]
            return made
        if type(value) is functools.partial:
            before = [value.func, *value.args, *value.keywords.values()]
            after = [self.of(part) for part in before]
            if any(a is not b for a, b in zip(before, after, strict=True)):
                function, *given = after[: 1 + len(value.args)]
                named = after[1 + len(value.args) :]
                return functools.partial(function, *given, **dict(zip(value.keywords, named, strict=True)))
        return value

    def _function(self, function: FunctionType) -> FunctionType:
        cells = function.__closure__ or ()
        if all(self._is_shared(cell) for cell in cells):
            return function
        new = tuple(cell if self._is_shared(cell) else self._made.setdefault(id(cell), CellType()) for cell in cells)
        made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, new)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        made.__module__ = function.__module__
        made.__annotations__ = function.__annotations__
        made.__dict__ = function.__dict__  # one dict for both, so that attributes of the function stay shared
        self._made[id(function)] = made  # before the cells are filled: a function may close over itself
        for cell, copied in zip(cells, new, strict=True):
            if copied is not cell and is_empty(copied):
                copied.cell_contents = self.of(cell.cell_contents)
        return made

    def _holds_own(self, function: FunctionType) -> bool:
        """Return whether a function of a library, such as a decorator, closes over a function that is copied."""
        self._made[id(function)] = function  # a function may close over itself
        cells = [cell for cell in function.__closure__ or () if not is_empty(cell)]
        found = any(self.of(cell.cell_contents) is not cell.cell_contents for cell in cells)
        del self._made[id(function)]
        return found

    def _is_shared(self, cell: CellType) -> bool:
        # A class is the cell of `super()`. An empty cell belongs to a variable that is not assigned yet.
        return id(cell) in self._shared or is_empty(cell) or isinstance(cell.cell_contents, type)


def is_empty(cell: CellType) -> bool:
    """Return whether a variable of an enclosing function is not assigned yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _closures(function: Any) -> Iterator[tuple[CodeType, dict[str, CellType]]]:
    """Yield the code and the cells of a function, and of all functions that `_Copies` reaches from it."""
    waiting, seen = [function], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
            yield value.__code__, cells
            waiting += [cell.cell_contents for cell in cells.values() if not is_empty(cell)]
        elif isinstance(value, MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, Shared):
            waiting.append(value.function)
        elif type(value) is functools.partial:
            waiting += [value.func, *value.args, *value.keywords.values()]


def _assigned(code: CodeType) -> set[str]:
    """Return the names of enclosing variables that a function assigns, itself or in an inner function."""
    free = set(code.co_freevars)
    if not free:
        return set()
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF")}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _assigned(inner)
    return found & free
