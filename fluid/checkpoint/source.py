"""Sources of parameters: a file, arrays by name, or a folder of checkpoints; and the renaming of their arrays."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid._util.paths import PathLike, is_address, local_path
from fluid.checkpoint.array_files import load_file
from fluid.checkpoint.object_store import folder_of
from fluid.checkpoint.recognize import instead

Rename = Mapping[str, str] | None

_SIGN = re.compile(r"(\*|\?|\[[^\]]+\]|\{[a-z_]+(?:[+-]\d+)?\})")


def renamed(arrays: Mapping[str, Any], rename: Rename, where: Any = "the given parameters") -> dict[str, Any]:
    """Return arrays under the names that a program uses.

    Args:
      rename: patterns and the names that replace matching names. The first matching pattern counts; names without a
        match stay. `*`, `?` and `[abc]` match as in a glob; the matched texts replace the first, second, ... `*` of the
        new name. `{n}` matches a number, which the new name may contain as `{n}`, `{n+1}` or `{n-1}`.

    Raises:
      ArgumentError: a new name uses a `*` or a number that its pattern does not have.
      ParameterError: a pattern matches no name, or two arrays would get one name.

    Example:
      >>> files = {"layers.0.weight": 1, "layers.1.weight": 2, "head.bias": 3}
      >>> renamed(files, {"layers.{n}.weight": "fc_{n+1}.w_0", "*.bias": "*/fc_0.b_0"})
      {'fc_1.w_0': 1, 'fc_2.w_0': 2, 'head/fc_0.b_0': 3}
    """
    rules = [RenameRule(pattern, target) for pattern, target in (rename or {}).items()]
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


class RenameRule:
    """One entry of `rename`: a pattern for names, and the new name of an array whose name matches.

    Args:
      pattern: a name with `*`, `?`, `[abc]`, or `{n}` for a number.

    Raises:
      ArgumentError: the new name uses a `*` or a number that its pattern does not have.

    Example:
      >>> RenameRule("layers.{n}.weight", "fc_{n}.w_0").apply("layers.7.weight")
      'fc_7.w_0'
    """

    def __init__(self, pattern: str, target: str, argument: str = "rename"):
        if not isinstance(pattern, str) or not isinstance(target, str):
            raise errors.ArgumentTypeError(
                f"{argument} maps names to names, found {pattern!r}: {target!r}; expected strings, as in "
                f'{argument}={{"dense.kernel": "fc_0.w_0"}}'
            )
        self.pattern = pattern
        self._target = _SIGN.split(target)
        parts = _SIGN.split(pattern)
        stars = sum(not sign.startswith("{") for sign in parts[1::2])
        numbers = {sign for sign in parts[1::2] if sign.startswith("{")}
        asked = {re.sub("[+-][0-9]+", "", sign) for sign in self._target[1::2] if sign.startswith("{")}
        if self._target[1::2].count("*") not in (0, stars) or not asked <= numbers:
            raise errors.ArgumentError(
                f"{argument}={{{pattern!r}: {target!r}}}: the new name has other signs than the pattern; expected as "
                f'many *, and numbers that the pattern names, as in {{"layers.{{n}}.*": "fc_{{n}}.*"}}'
            )
        self._expression = re.compile("".join(_expression(part, parts[:i]) for i, part in enumerate(parts)))

    def apply(self, name: str) -> str | None:
        """Return the new name of an array; None if its name does not match the pattern."""
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
    """Convert a part of a `rename` pattern, such as `*` or `{n}`, to a regular expression."""
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


# The argument of `source_of`: the path of a file of parameters, or arrays by name.
Parameters = PathLike | Mapping[str, Any]


class ArraySource(NamedTuple):
    """Arrays that can be loaded into a program.

    Attributes:
      arrays: the arrays, by name.
      where: the origin of the arrays, for messages, such as the path of a file.
      sites: the line of code that created each array, if known: `{"fc_0.w_0": "net.py:12 in head"}`.
      table: the JSON of the `fluid.reader.Table` that the parameters were trained with; None if there is none.
      paths: the user's functions that created each array, if its name is automatic: `{"fc_0.w_0": "net in train"}`.
    """

    arrays: dict[str, np.ndarray]
    where: str
    sites: Mapping[str, str] = {}
    table: Mapping[str, Any] | None = None
    paths: Mapping[str, str] = {}

    def check_table(self, table: Mapping[str, Any] | None) -> None:
        """Check that the parameters were trained with the Table of a program, if both have a Table.

        A `fluid.reader.Table` encodes raw rows of data as feeds.

        Raises:
          ParameterError: the tables encode rows in different ways.
        """
        if table is None or self.table is None or table == self.table:
            return
        part = next((key for key in table if table[key] != self.table.get(key)), "version")
        raise errors.ParameterError(
            f"{self.where}: its parameters were trained with another table of raw rows, whose {part} differ: found "
            f"{_brief(table.get(part))}, expected {_brief(self.table.get(part))}. Make the program with the table "
            f"that was saved: table = fluid.io.load_table(path)"
        )

    def renamed(self, rename: Rename) -> "ArraySource":
        """Return the arrays under other names, see `fluid.checkpoint.renamed`."""
        names = renamed({name: name for name in self.arrays}, rename, self.where)
        arrays = {new: self.arrays[old] for new, old in names.items()}
        sites = {new: self.sites[old] for new, old in names.items() if old in self.sites}
        # What `rename` names is declared: for these arrays, the functions that created them do not count.
        rules = [RenameRule(pattern, target) for pattern, target in (rename or {}).items()]
        kept = {new: old for new, old in names.items() if all(rule.apply(old) is None for rule in rules)}
        paths = {new: self.paths[old] for new, old in kept.items() if old in self.paths}
        return ArraySource(arrays, self.where, sites, self.table, paths)


def source_of(given: Parameters) -> ArraySource:
    """Return the arrays of a file, or of a mapping, as an ArraySource.

    Raises:
      ParameterFileError: the file does not exist, or has another format.

    Example:
      >>> source_of({"w": [1.0, 2.0]}).arrays["w"].shape
      (2,)
    """
    if isinstance(given, Mapping):
        arrays = {name: np.asarray(value) for name, value in given.items()}
        return ArraySource(arrays, "the given parameters", paths=getattr(given, "paths", {}))
    if not isinstance(given, str | os.PathLike):
        raise errors.ArgumentTypeError(f"found {type(given).__name__}, expected {_arrays_of(given)}")
    found = load_file(given)
    # In a file of Session.save, names of optimizer state and counters begin with "@". They are not parameters.
    arrays = {name: array for name, array in found.arrays.items() if not name.startswith("@")}
    return ArraySource(arrays, os.fspath(given), found.sites, found.table, found.paths)


def _arrays_of(given: Any) -> str:
    """Return the text for an error message that says what to pass instead of `given`, such as a Trainer."""
    session = getattr(given, "session", None)
    if hasattr(given, "params") and session is not None:
        return "its parameters, which are arrays by name: trainer.params"
    if session is not None or hasattr(given, "load_params"):
        return f"its parameters, which are arrays by name: {'inferencer.' if session else ''}session.params()"
    return 'a file of trainer.save_params, or arrays by name: {"fc_0.w_0": array, "fc_0.b_0": array}'


def newest_checkpoint(path: PathLike) -> ArraySource:
    """Return the parameters and states of the newest whole checkpoint in a folder. The folder is not changed.

    Raises:
      CheckpointError: the folder does not exist, or holds no whole checkpoint.

    Example:
      >>> newest_checkpoint("nowhere")
      Traceback (most recent call last):
      fluid.errors.CheckpointError: there is no folder 'nowhere'; expected the checkpoint_dir of a Trainer
    """
    if not is_address(path):
        if found := instead(local_path(path), "checkpoints"):
            raise errors.CheckpointError(found)
        if not os.path.isdir(path):
            raise errors.CheckpointError(f"there is no folder {str(path)!r}; expected the checkpoint_dir of a Trainer")
    folder = folder_of(path, read_only=True)
    step, flaws = folder.newest_whole()
    if step is None:
        listed = [*(f"{n}: {problem}" for n, problem in flaws.items()), *(f"{n}: set aside" for n in folder.aside())]
        raise errors.CheckpointError(
            f"no checkpoint in {str(path)!r} is whole: {'; '.join(listed) or 'it holds none'}; expected the "
            f"checkpoint_dir of a Trainer"
        )
    try:
        read = folder.arrays(step)
    except errors.FluidError:
        raise
    except Exception as error:
        raise errors.CheckpointError(
            f"checkpoint {step} in {str(path)!r} is whole, but Orbax cannot read it: {error}"
        ) from error
    arrays = {name: array for name, array in read.items() if not name.startswith("@")}
    meta = folder.meta(step)
    sites, paths = (meta.get(key) or {} for key in ("sites", "paths"))
    return ArraySource(arrays, f"checkpoint {step} in {str(path)!r}", sites, meta.get("table"), paths)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
