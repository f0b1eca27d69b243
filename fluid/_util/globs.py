"""Globs: patterns such as "backbone/*" that select names of parameters, states and values."""

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fluid import errors


def is_glob(name: str) -> bool:
    """Return whether a name is a glob: a pattern with `*`, `?` or `[`, which may match several names.

    Example:
      >>> is_glob("backbone/*"), is_glob("fc_0.w_0")
      (True, False)
    """
    return any(sign in name for sign in "*?[")


def select(patterns: str | Sequence[str], known: Collection[str], owner: str) -> list[str]:
    """Return the names in `known` that match one or more patterns.

    Args:
      patterns: one pattern or several: names, and globs with `*`, `?` or `[abc]`. A `*` also matches "/" and ".".

    Raises:
      ArgumentTypeError: a pattern is not a string.
      UnknownNameError: a pattern matches no name.

    Example:
      >>> select(["a/*", "b"], ["b", "a/x.w_0", "c", "a/y"], "freeze")
      ['b', 'a/x.w_0', 'a/y']
      >>> select("bakbone/*", ["backbone/fc_0.w_0", "backbone/fc_0.b_0"], "freeze")
      Traceback (most recent call last):
      fluid.errors.UnknownNameError: freeze: 'bakbone/*' matches no name. Did you mean 'backbone/*'?
    """
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not isinstance(pattern, str):
            raise errors.ArgumentTypeError(
                f'{owner}: expected names and globs such as "backbone/*", found {type(pattern).__name__} {pattern!r}'
            )
        matching = [pattern] if pattern in known else [n for n in known if fnmatch.fnmatchcase(n, pattern)]
        if not matching:
            what = "matches no name" if is_glob(pattern) else "is not the name of anything here"
            likely = [*known, *_groups(known)] if is_glob(pattern) else known
            raise errors.UnknownNameError(f"{owner}: {pattern!r} {what}. {errors.nearest(pattern, likely)}")
        found.update(matching)
    return [name for name in known if name in found]


def pattern_of(name: str, rules: Mapping[str, Any], owner: str) -> str | None:
    """Return the key of `rules` that applies to a name: the name itself, or else the glob that matches; None if none.

    Raises:
      ArgumentError: two globs match, and have different values.

    Example:
      >>> [pattern_of(name, {"fc_*": 1, "fc_0": 2}, "shardings") for name in ("fc_0", "fc_1", "emb")]
      ['fc_0', 'fc_*', None]
    """
    matching = [name] if name in rules else [p for p in rules if fnmatch.fnmatchcase(name, p)]
    for other in matching[1:]:
        if rules[other] != rules[matching[0]]:
            raise errors.ArgumentError(
                f"{owner}: both {matching[0]!r} and {other!r} match {name!r}, with different values; expected one glob "
                f"for each name. Add the full name, which comes before globs: {owner}={{{name!r}: ...}}"
            )
    return matching[0] if matching else None


def _groups(names: Collection[str]) -> list[str]:
    ends = (name[: found.end()] for name in names for found in re.finditer(r"[./]", name))
    return [f"{end}*" for end in dict.fromkeys(ends)]
