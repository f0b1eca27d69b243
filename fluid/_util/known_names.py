"""Errors for unknown attributes and arguments; the messages say what to write instead.

The file `lint/names.json` holds the names of other libraries, and the names in fluid to write instead.
"""

import functools
import inspect
import json
import pathlib
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fluid import errors

_NAMES = pathlib.Path(__file__).parents[1] / "lint" / "names.json"


@functools.cache
def names() -> Mapping[str, Any]:
    """Return the table of names of other libraries, and what to write in fluid instead."""
    if not _NAMES.exists():
        return {"other_libraries": {}, "fluid_2018": {}, "arguments": {"same": {}, "instead": {}}}
    table: Mapping[str, Any] = json.loads(_NAMES.read_text(encoding="utf-8"))
    return table


@functools.cache
def hints(owner: str) -> Mapping[str, str]:
    """Return the advice for names that an owner, such as "fluid.layers" or "Trainer", lacks; a subclass has it too.

    Example:
      >>> hints("fluid.layers")["Dense"]
      'layers.dense(x, size=10), with act= for its activation'
    """
    owner = "fluid" if owner == "fluid.static" else owner
    return {**names()["other_libraries"].get(owner, {}), **names()["fluid_2018"].get(owner, {})}


class KnownAttributes:
    """A base class for fixed attributes: reading or setting an unknown attribute raises an error with advice.

    The advice comes from the table of hints, by the name of the class. Subclasses that a user writes may set any
    attribute. Names that begin with an underscore are not checked, since copies, pickles and notebooks read them.

    Attributes:
      _set_by: a dict from the name of a property without a setter to advice: how to change the value of the property.

    Example:
      >>> class Reader(KnownAttributes):
      ...     path = "rows.csv"
      >>> Reader().paht
      Traceback (most recent call last):
      fluid.errors.MissingNameError: 'Reader' object has no attribute 'paht'. Did you mean 'path'?
      >>> hasattr(Reader(), "paht")
      False
    """

    __slots__ = ()

    _set_by: ClassVar[Mapping[str, str]] = {}

    # Hidden from type checkers: in a class with `__getattr__`, type checkers accept every name, also a misspelled one.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if _advice(kind, name):
                raise _missing(self, name)
            if name.startswith("_") or hasattr(kind, name):
                # Python also calls `__getattr__` after the getter of a property has failed. The next line then raises
                # the error of the getter.
                return object.__getattribute__(self, name)
            raise _missing(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name[:1] != "_" and name not in self.__dict__:
                _check_set(self, name, sys._getframe(1).f_globals)
            object.__setattr__(self, name, value)


def _check_set(owner: Any, name: str, caller: Mapping[str, Any]) -> None:
    """Raise an error if code outside fluid sets an unknown public attribute, or if a property has no setter."""
    kind = type(owner)
    there = getattr(kind, name, None)
    if isinstance(there, property) and there.fset is None:
        how = kind._set_by.get(name, "it follows from what the object does")
        raise errors.MissingNameError(f"{name!r} of a {kind.__name__} is read, and not set; {how}", name=name)
    if hasattr(kind, name) or _is_of_fluid(caller.get("__name__")) or not _is_of_fluid(kind.__module__):
        return
    raise _missing(owner, name)


def _missing(owner: Any, name: str) -> errors.MissingNameError:
    kind = type(owner)
    advice = _advice(kind, name)
    return errors.missing_name(f"{kind.__name__!r} object", name, _public(owner), f"write {advice}" if advice else "")


def _advice(kind: type, name: str) -> str | None:
    bases = (hints(base.__name__) for base in kind.__mro__ if _is_of_fluid(base.__module__))
    return next((advice[name] for advice in bases if name in advice), None)


def _public(owner: Any) -> Iterable[str]:
    return [name for name in object.__dir__(owner) if not name.startswith("_")]


def _is_of_fluid(module: Any) -> bool:
    return str(module).split(".", 1)[0] == "fluid"


def check_attributes(owner: Any) -> None:
    """Check that the class of an object declares all public attributes that the object has.

    The check is for handlers (training callbacks), which set attributes in each training step. One check of the object
    takes less time than a check of each assignment.

    Raises:
      MissingNameError: a public attribute is neither defined nor annotated in the class.
    """
    kind = type(owner)
    # Check only public handlers of fluid. `core.fitting` wraps their `__init__`, so it has an attribute `__wrapped__`.
    if not (_is_of_fluid(kind.__module__) and hasattr(vars(kind).get("__init__"), "__wrapped__")):
        return
    declared = {name for base in kind.__mro__ for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    for name in vars(owner):
        if name.startswith("_") or name in declared:
            continue
        given = list(inspect.signature(kind).parameters)
        if name in given:
            raise errors.MissingNameError(
                f"{name!r} of a {kind.__name__} is given when it is made, and cannot be set afterwards; write "
                f"{kind.__name__}(..., {name}={vars(owner)[name]!r})",
                name=name,
            )
        known = [*given, *(other for other in _public(owner) if other != name)]
        raise errors.missing_name(f"{kind.__name__!r} object", name, known)


def getattr_of(module: str) -> Callable[[str], Any]:
    """Return a function for `__getattr__` of a module, which raises an error with advice for a missing name.

    Example:
      >>> import fluid.layers
      >>> getattr_of("fluid.layers")("BatchNorm2d")
      Traceback (most recent call last):
        ...
      fluid.errors.MissingNameError: module 'fluid.layers' has no attribute 'BatchNorm2d'; use layers.batch_norm(x)
    """

    def missing(name: str) -> Any:
        there = vars(sys.modules[module])
        own = (
            n for n, value in there.items() if not n.startswith("_") and getattr(value, "__module__", None) == module
        )
        # While Python still imports the module, `__all__` may not be set yet.
        known = there.get("__all__") or list(own)
        advice = hints(module).get(name)
        raise errors.missing_name(f"module {module!r}", name, known, f"use {advice}" if advice else "")

    return missing


class _Called(types.ModuleType):
    """A module that raises an error when a user calls it; the message shows the correct call."""

    def __call__(self, *args: Any, **values: Any) -> Any:
        raise errors.ArgumentTypeError(
            f"{self.__name__} is a module, which is not called; write {self.__dict__['_write']}"
        )


def not_called(module: str, write: str) -> None:
    """Make a module raise an error when a user calls it; the message shows the correct call.

    Example:
      >>> import fluid
      >>> fluid.trainer()
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentTypeError: fluid.trainer is a module, which is not called; write fluid.Trainer(...)
    """
    sys.modules[module].__class__ = _Called
    sys.modules[module].__dict__["_write"] = write


def argument_advice(function: str, argument: str, taken: Collection[str]) -> str:
    """Return a sentence for an error message: what to write in place of an argument that a function does not take.

    Example:
      >>> argument_advice("layers.fc", "units", ["input", "size"])
      " Did you mean 'size'?"
      >>> argument_advice("fluid.CheckpointConfig", "monitor", ["keep_best"])
      ' Write keep_best=("test_loss", "min").'
    """
    table = names()["arguments"]
    owners = table["instead"].get(argument, {})
    instead = next((advice for owner, advice in owners.items() if owner and function.startswith(owner)), None)
    same = next((name for name in table["same"].get(argument, ()) if name in taken), None)
    if instead is None and same is None:
        instead = owners.get("")
    if instead is not None:
        return f" {instead[0].upper()}{instead[1:]}."
    if same is not None:
        return f" Did you mean {same!r}?"
    near = errors.nearest(argument, taken) if taken else ""
    return f" {near}" if near.startswith("Did you mean") else ""
