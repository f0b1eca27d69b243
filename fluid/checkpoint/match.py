"""Comparison of named arrays with the arrays of a program, and a LoadReport of the result."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluid import errors
from fluid._util.globs import select
from fluid._util.text import counted, shape_text
from fluid.checkpoint.source import ArraySource

log = logging.getLogger("fluid")
_LISTED = 10
_IN = " in "


@dataclass(frozen=True, repr=False)
class LoadReport:
    """The result of loading a file or named arrays into a program; `print` shows a summary.

    Attributes:
      where: the source of the arrays as text, such as the path of the file.
      taken: names of the parameters and states that were loaded.
      missing: by name, dtype and shape of parameters and states that the source lacks, and that keep their values.
      extra: by name, dtype and shape of arrays in the source that the program does not have.
      skipped: by name, dtype and shape of arrays that `skip=` or `names=` left out, in the source and in the program.

    Example:
      >>> LoadReport("old.params", ("fc_0.w_0",), {"head.w_0": "float32[8, 3]"})
      1 array taken from old.params
        1 array keeps its value: head.w_0 float32[8, 3]
      >>> LoadReport("old.params", ("fc_0.w_0",)).complete
      True
    """

    where: str
    taken: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if every array of the program was loaded, and every array of the source was used."""
        return not (self.missing or self.extra or self.skipped)

    def __repr__(self) -> str:
        lines = [f"{counted(len(self.taken), 'array')} taken from {self.where}"]
        if self.missing:
            keeps = "keeps its value" if len(self.missing) == 1 else "keep their values"
            lines.append(f"  {counted(len(self.missing), 'array')} {keeps}: {_listed(self.missing)}")
        if self.extra:
            lines.append(f"  {counted(len(self.extra), 'array')} there not used: {_listed(self.extra)}")
        if self.skipped:
            lines.append(f"  {counted(len(self.skipped), 'array')} skipped: {_listed(self.skipped)}")
        return "\n".join(lines)

    def tell(self, may_be_extra: bool = False) -> None:
        """Log the report; as a warning if the source lacks arrays of the program, or has arrays that are not used."""
        unexpected = self.missing or (self.extra and not may_be_extra)
        log.log(logging.WARNING if unexpected else logging.INFO, "%s", self)


def _listed(arrays: Mapping[str, str]) -> str:
    more = f", and {len(arrays) - _LISTED} more" if len(arrays) > _LISTED else ""
    return ", ".join(f"{name} {text}" for name, text in list(arrays.items())[:_LISTED]) + more


# The type of a mapping that describes the arrays of a program: by name, the shape and the dtype of each array.
Wanted = Mapping[str, tuple[tuple[int, ...], str]]

_SHOWN = 20
CHECK_THE_PROGRAM = (
    "parameters and program must come from the same layers and names; check that the program function is the one that "
    "was trained"
)
RENAME_THEM = f'{CHECK_THE_PROGRAM}. Arrays with other names are taken by rename={{"old/*": "new/*"}}'
TAKE_A_PART = (
    f'{CHECK_THE_PROGRAM}. To take what another program left: rename={{"old/*": "new/*"}} for other names, '
    'skip=["head/*"] for what shall not be taken, such as arrays of other shapes, strict=False for what is missing '
    "there or here"
)


def check_match(
    found: Mapping[str, Any],
    wanted: Wanted,
    where: Any,
    allow_extra: bool = False,
    advice: str | None = None,
    sites: Mapping[str, str] = {},
    sites_there: Mapping[str, str] = {},
    owner: str = "the program",
) -> None:
    """Check names, shapes and dtypes of arrays against a program.

    Args:
      found: the arrays to check, by name.
      wanted: shape and dtype of the program's arrays, by name.
      where: the origin of the arrays `found`, for the message.
      allow_extra: True accepts names that the program does not have.
      advice: a sentence for the message that says how to resolve a difference; by default, to check the program.
      sites: the line of code that created each array of the program, for the message.
      sites_there: the line of code that created each array of `found`, if known.
      owner: the text that names the program in the message.

    Raises:
      ParameterError: names, shapes or dtypes differ. The message lists at most twenty differences, with the nearest
        name for each missing array.

    Example:
      >>> import numpy as np
      >>> check_match({"w": np.ones(3, "float32")}, {"w": ((3,), "float32")}, "here")
    """

    def created(name: str) -> str:
        lines = [f"{at[name]} {side}" for at, side in ((sites_there, "there"), (sites, "here")) if name in at]
        return f"; created at {', and at '.join(lines)}" if lines else ""

    missing = [n for n in wanted if n not in found]
    extra = [n for n in found if n not in wanted]
    problems = [f"missing: {n} {wanted[n][1]}{list(wanted[n][0])}{_nearest(n, extra)}{created(n)}" for n in missing]
    for name in wanted:
        if name in found:
            shape, dtype = wanted[name]
            value = found[name]
            if tuple(value.shape) != tuple(shape) or str(value.dtype) != str(dtype):
                convert = f": array.astype({str(dtype)!r})" if tuple(value.shape) == tuple(shape) else ""
                problems.append(
                    f"{name}: found {value.dtype}{list(value.shape)}, expected {dtype}{list(shape)}"
                    f"{convert}{created(name)}"
                )
    if not allow_extra:
        problems += [f"extra: {n} {found[n].dtype}{list(found[n].shape)}{created(n)}" for n in extra]
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listed = "\n  ".join(problems[:_SHOWN]) + more
        raise errors.ParameterError(f"{where} does not match {owner}:\n  {listed}\n{advice or CHECK_THE_PROGRAM}")


def choose(
    source: ArraySource,
    wanted: Wanted,
    skip: str | Sequence[str] = (),
    *,
    names: str | Sequence[str] | None = None,
    sites: Mapping[str, str] = {},
    paths: Mapping[str, str] = {},
    allow_missing: bool = False,
    allow_extra: bool = False,
    advice: str | None = None,
) -> LoadReport:
    """Select the arrays of a source that a program takes.

    Args:
      advice: a sentence for error messages that says how to resolve a difference; by default, it recommends `rename=`,
        `skip=` and `strict=`.

    Raises:
      ParameterError: names, shapes or dtypes differ, the program would take no array, or the functions that created
        an array say that another one of the source has its place.
      UnknownNameError: a name or glob of `skip` or `names` fits no array of the source or the program.
      ArgumentError: `names` is empty.

    Example:
      >>> import numpy as np
      >>> arrays = {"a": np.ones(3, "float32"), "head": np.ones(9, "float32")}
      >>> wanted = {"a": ((3,), "float32"), "head": ((5,), "float32")}
      >>> choose(ArraySource(arrays, "here"), wanted, skip=["head"]).skipped
      {'head': 'float32[9] (here float32[5])'}
    """
    found = source.arrays
    every = {**wanted, **found}
    left_out = set(select(skip, every, "skip"))
    if names is not None:
        if not len(names):
            raise errors.ArgumentError(
                'names=[] takes nothing; name some arrays, as in names=["backbone/*"], or leave names out for all'
            )
        left_out |= every.keys() - set(select(names, every, "names"))
    there = {n: shape_text(str(v.dtype), v.shape) for n, v in found.items()}
    here = {n: shape_text(dtype, shape) for n, (shape, dtype) in wanted.items()}
    taken = tuple(n for n in wanted if n in found and n not in left_out)
    missing = {n: here[n] for n in wanted if n not in found and n not in left_out}
    extra = {n: there[n] for n in found if n not in wanted and n not in left_out}
    if wanted and left_out.issuperset(n for n in wanted if n in found) and any(n in found for n in wanted):
        chosen, fix = (f"skip={skip!r}", "skip fewer names") if names is None else (f"names={names!r}", "name others")
        raise errors.ParameterError(
            f"nothing would be taken from {source.where}: {chosen} leaves out every array that the program takes "
            f"from it, {_some([n for n in wanted if n in found])}; {fix}, or do not load"
        )
    if wanted and not taken and (allow_missing or left_out):
        raise errors.ParameterError(_nothing(source, wanted))
    check_match(
        {n: v for n, v in found.items() if n not in left_out},
        {n: wanted[n] for n in (*taken, *(() if allow_missing else missing))},
        source.where,
        allow_extra,
        advice or TAKE_A_PART,
        sites,
        source.sites,
    )
    check_paths(source, wanted, paths, left_out)
    skipped = {n: _both(there.get(n), here.get(n)) for n in every if n in left_out}
    return LoadReport(source.where, taken, missing, extra, skipped)


class Origin(NamedTuple):
    """The origin of an array with an automatic name.

    Attributes:
      group: equal for arrays that can stand for each other: the name without numbers, the shape and the dtype.
      path: the calls that created the array, innermost first.
    """

    group: Hashable
    path: Sequence[Any]

    @classmethod
    def of(cls, name: str, shape: Sequence[int], dtype: str, path: Sequence[Any]) -> Origin:
        """Return the Origin of an array from its name, shape, dtype and path."""
        return cls((re.sub("[0-9]+", "0", name), tuple(shape), str(dtype)), path)


def other_origins(here: Mapping[str, Origin], there: Mapping[str, Origin]) -> dict[str, str]:
    """Return, for arrays of `here`, the name in `there` that their calls ask for, where it is not the equal name.

    Two paths agree as far as their innermost calls are equal. An array asks for another name if the path of this other
    array agrees further with its own path than the path of the equal name does, and if no array of `here` has this
    other name and agrees as far. So an equal name counts where functions were renamed, or code was copied from one
    function to another.

    Example:
      >>> train = {"fc_0.w_0": Origin("fc", ["train"]), "fc_1.w_0": Origin("fc", ["net", "train"])}
      >>> other_origins({"fc_0.w_0": Origin("fc", ["net", "infer"])}, train)
      {'fc_0.w_0': 'fc_1.w_0'}
      >>> other_origins({"fc_0.w_0": Origin("fc", ["infer"])}, train)
      {}
    """
    groups: dict[Hashable, list[str]] = {}
    for name, origin in there.items():
        groups.setdefault(origin.group, []).append(name)
    own = {name: _agreement(here[name], there[name]) for name in here if name in there}
    found = {}
    for name, agreed in own.items():
        if agreed == len(here[name].path):
            continue
        for other in groups.get(here[name].group, ()):
            further = _agreement(here[name], there[other])
            if further > agreed and own.get(other, -1) < further:
                found[name], agreed = other, further
    return found


def _agreement(first: Origin, second: Origin) -> int:
    pairs = zip(first.path, second.path, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def check_paths(source: ArraySource, wanted: Wanted, paths: Mapping[str, str], left_out: Collection[str] = ()) -> None:
    """Check that equal names are equal arrays, by the functions that created the arrays.

    Raises:
      ParameterError: for an array, another one of the source, or of the program, was created by the same functions.
    """
    here = {n: Origin.of(n, *wanted[n], paths[n].split(_IN)) for n in wanted if n in paths and n not in left_out}
    there = {
        n: Origin.of(n, v.shape, str(v.dtype), source.paths[n].split(_IN))
        for n, v in source.arrays.items()
        if n in source.paths and n not in left_out
    }
    if found := other_origins(here, there):
        name, other = next(iter(found.items()))
        rename = _exchange({old: new for new, old in _in_order(here, there, found).items()})
        asked = f"there, {other!r} was created in {source.paths[other]}"
    elif found := other_origins(there, here):
        name, other = next(iter(found.items()))
        rename = _exchange(_in_order(there, here, found))
        asked = f"in the program, {other!r} is created in {paths[other]}"
    else:
        return
    listed = ", ".join(f'"{old}": "{new}"' for old, new in list(rename.items())[:_LISTED])
    more = ", ..." if len(rename) > _LISTED else ""
    raise errors.ParameterError(
        f"{source.where}: {name!r} was created in {source.paths[name]} there, and is created in {paths[name]} in the "
        f"program; {asked}. Automatic names count layers, so that a layer more, less or in another place changes the "
        f"names of those after it. To load by functions: rename={{{listed}{more}}}; "
        f'to load by equal names all the same: rename={{"{name}": "{name}"}}, or rename={{"*": "*"}} for all. '
        f"Names that do not count come from name= and from fluid.shared(function)"
    )


def _in_order(here: Mapping[str, Origin], there: Mapping[str, Origin], found: Mapping[str, str]) -> dict[str, str]:
    """Return names of `there` by names of `here`, for all arrays of the calls in `found`, in numeric order.

    If the calls created more arrays on one side than on the other, return the pairs in `found` alone.
    """
    pairs: dict[str, str] = {}
    for name, other in found.items():
        first, second = (
            sorted((n for n, origin in side.items() if origin == side[chosen]), key=_numbers)
            for side, chosen in ((here, name), (there, other))
        )
        pairs |= zip(first, second, strict=True) if len(first) == len(second) else [(name, other)]
    return {name: other for name, other in pairs.items() if name != other}


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", name)]


def _exchange(rename: Mapping[str, str]) -> dict[str, str]:
    left = [new for new in rename if new not in rename.values()]
    lost = [name for name in rename.values() if name not in rename]
    return {**rename, **dict(zip(lost, left, strict=False))}


def _nothing(source: ArraySource, wanted: Wanted) -> str:
    """Return the error message for a source of arrays from which a program would load no array."""
    nearest = next(filter(None, (_nearest(n, list(source.arrays)) for n in wanted)), "")
    return (
        f"nothing would be taken from {source.where}: it has {_some(source.arrays)}, and the program has "
        f'{_some(wanted)}{nearest}; names are made to agree by rename={{"old/*": "new/*"}}'
    )


def _nearest(name: str, candidates: Sequence[str]) -> str:
    hint = errors.nearest(name, candidates) if candidates else ""
    return f"  ({hint})" if hint.startswith("Did") else ""


def _both(there: str | None, here: str | None) -> str:
    return f"{there} (here {here})" if there and here else there or f"here {here}"


def _some(names: Collection[str]) -> str:
    return ", ".join([*list(names)[:5], *(["..."] if len(names) > 5 else [])]) or "nothing"
