"""Structure checks of JSON in files: a checksum proves that a file is intact, but not that fluid wrote it."""

from typing import Any

Kind = Any
"""The expected structure of JSON: a type; `[kind]`, a list; `{"*": kind}`, a dict; `{"name": kind}`, members of a
dict, where an absent member is None; a tuple, any of its kinds; or a function that returns whether a value is valid."""


def natural(value: Any) -> bool:
    """Return whether a value is an integer from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < 1 << 63


def check_structure(value: Any, kind: Kind, where: str) -> None:
    """Check that JSON has the expected structure.

    Args:
      value: the JSON.
      kind: the expected structure.
      where: the name of the value, for the message.

    Raises:
      ValueError: the structure differs.

    Example:
      >>> check_structure({"shape": [2, 3]}, {"shape": [natural], "note": (None, str)}, "arrays.w")
      >>> check_structure({"shape": [2, -3]}, {"shape": [natural]}, "arrays.w")
      Traceback (most recent call last):
      ValueError: arrays.w.shape.1 is -3
    """
    if isinstance(kind, tuple):
        if not any(_fits(value, one, where) for one in kind[:-1]):
            check_structure(value, kind[-1], where)
    elif isinstance(kind, list) and isinstance(value, list):
        for number, member in enumerate(value):
            check_structure(member, kind[0], f"{where}.{number}")
    elif isinstance(kind, dict) and isinstance(value, dict):
        for name in value if "*" in kind else kind:
            check_structure(value.get(name), kind.get("*", kind.get(name)), f"{where}.{name}")
    elif isinstance(kind, type):
        if not isinstance(value, kind) or (type(value) is bool and kind is not bool and kind is not object):
            raise ValueError(f"{where} is {_short(value)}")
    elif not (callable(kind) and kind(value)) and not (kind is None and value is None):
        raise ValueError(f"{where} is {_short(value)}")


def _fits(value: Any, kind: Kind, where: str) -> bool:
    try:
        check_structure(value, kind, where)
    except ValueError:
        return False
    return True


def _short(value: Any) -> str:
    return repr(value)[:60]
