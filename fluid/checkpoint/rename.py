"""Renaming of arrays, for example from the names of another framework."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fluid import errors

Rename = Mapping[str, str] | None

_SIGN = re.compile(r"(\*|\?|\[[^\]]+\]|\{[a-z_]+(?:[+-]\d+)?\})")


def renamed(arrays: Mapping[str, Any], rename: Rename, where: Any = "the given parameters") -> dict[str, Any]:
    """Return arrays under the names that a program uses.

    Args:
      arrays: by name.
      rename: patterns and the names that replace matching names. The first matching pattern counts; names without a
        match stay. `*`, `?` and `[abc]` match as in a glob; the matched texts replace the first, second, ... `*` of the
        new name. `{n}` matches a number, which the new name may contain as `{n}`, `{n+1}` or `{n-1}`.
      where: the origin of the arrays, for messages.

    Returns:
      The arrays by their new names.

    Raises:
      ArgumentError: a new name uses a `*` or a number that its pattern does not have.
      ParameterError: a pattern matches no name, or two arrays would get one name.

    Example:
      >>> files = {"layers.0.weight": 1, "layers.1.weight": 2, "head.bias": 3}
      >>> renamed(files, {"layers.{n}.weight": "fc_{n+1}.w_0", "*.bias": "*/fc_0.b_0"})
      {'fc_1.w_0': 1, 'fc_2.w_0': 2, 'head/fc_0.b_0': 3}
    """
    rules = [_Rule(pattern, target) for pattern, target in (rename or {}).items()]
    origins: dict[str, str] = {}
    for name in arrays:
        found = (new for rule in rules if (new := rule.apply(name)) is not None)
        new = next(found, name)
        if new in origins:
            raise errors.ParameterError(
                f"rename gives {origins[new]!r} and {name!r} of {where} one name, {new!r}; give each its own"
            )
        origins[new] = name
    for rule in rules:
        if all(rule.apply(name) is None for name in arrays):
            raise errors.ParameterError(
                f"rename: {rule.pattern!r} fits no name of {where}. {errors.nearest(rule.pattern, arrays)}"
            )
    return {new: arrays[name] for new, name in origins.items()}


class _Rule:
    """One entry of `rename`: a pattern for names, and the new name of an array whose name matches."""

    def __init__(self, pattern: str, target: str):
        if not isinstance(pattern, str) or not isinstance(target, str):
            raise errors.ArgumentTypeError(
                f"rename maps names to names, found {pattern!r}: {target!r}; expected strings, as in "
                f'rename={{"dense.kernel": "fc_0.w_0"}}'
            )
        self.pattern = pattern
        self._target = _SIGN.split(target)
        parts = _SIGN.split(pattern)
        stars = sum(not sign.startswith("{") for sign in parts[1::2])
        numbers = {sign for sign in parts[1::2] if sign.startswith("{")}
        asked = {re.sub("[+-][0-9]+", "", sign) for sign in self._target[1::2] if sign.startswith("{")}
        if self._target[1::2].count("*") not in (0, stars) or not asked <= numbers:
            raise errors.ArgumentError(
                f"rename={{{pattern!r}: {target!r}}}: the new name has other signs than the pattern; expected as many "
                f'*, and numbers that the pattern names, as in {{"layers.{{n}}.*": "fc_{{n}}.*"}}'
            )
        self._expression = re.compile("".join(_expression(part, parts[:i]) for i, part in enumerate(parts)))

    def apply(self, name: str) -> str | None:
        """Return the new name, or None if the pattern does not match."""
        found = self._expression.fullmatch(name)
        if found is None:
            return None
        texts = found.groupdict()
        stars = iter([text for group, text in texts.items() if group.startswith("star")])
        return "".join(
            next(stars) if part == "*" else _number(part, texts) if _SIGN.fullmatch(part) else part
            for part in self._target
        )


def _expression(part: str, before: Sequence[str]) -> str:
    """Convert a part of a pattern to a regular expression; `before` holds the preceding parts."""
    if not _SIGN.fullmatch(part):
        return re.escape(part)
    if part.startswith("{"):
        name = part[1:-1]
        return f"(?P={name})" if part in before else f"(?P<{name}>[0-9]+)"
    chars = part[1:-1].replace("\\", "\\\\")
    inside = {"*": ".*?", "?": "."}.get(part) or f"[{'^' if chars[0] == '!' else ''}{chars.removeprefix('!')}]"
    return f"(?P<star{len(before)}>{inside})"


def _number(sign: str, texts: Mapping[str, str]) -> str:
    name, operator, offset = re.split("([+-]|$)", sign[1:-1], maxsplit=1)
    return str(int(texts[name]) + int(operator + offset)) if operator else texts[name]
