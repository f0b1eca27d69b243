"""Named arrays compared with what a program has."""

from collections.abc import Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.formatting import shape_text
from fluid.naming import select
from fluid.storage.report import LoadReport

# Shape and dtype of each array of a program, by name.
Wanted = Mapping[str, tuple[tuple[int, ...], str]]

_SHOWN = 20
_CHECK_THE_PROGRAM = (
    "parameters and program must come from the same layers and names; check that the program function is the one that "
    "was trained"
)
_TAKE_A_PART = (
    _CHECK_THE_PROGRAM + '. To take what another program left: rename={"old/*": "new/*"} for other names, skip=["head/*"] '
    "for what shall not be taken, such as arrays of other shapes, strict=False for what is missing there or here"
)


def check_match(
    found: Mapping[str, Any],
    wanted: Wanted,
    where: Any,
    allow_extra: bool = False,
    advice: str = _CHECK_THE_PROGRAM,
) -> None:
    """Compare names, shapes and dtypes of arrays with what a program has.

    Args:
      found: arrays by name.
      wanted: shape and dtype by name.
      where: what the arrays came from, for the message.
      allow_extra: accept names that are not wanted.
      advice: what to do about it, for the message.

    Raises:
      ParameterError: they differ; at most twenty differences are listed, with the nearest name for each missing one.

    Example:
      >>> import numpy as np
      >>> check_match({"w": np.ones(3, "float32")}, {"w": ((3,), "float32")}, "here")
    """
    missing = [n for n in wanted if n not in found]
    extra = [n for n in found if n not in wanted]
    problems = [f"missing: {n} {wanted[n][1]}{list(wanted[n][0])}{_nearest(n, extra)}" for n in missing]
    for name in wanted:
        if name in found:
            shape, dtype = wanted[name]
            value = found[name]
            if tuple(value.shape) != tuple(shape) or str(value.dtype) != str(dtype):
                problems.append(f"{name}: found {value.dtype}{list(value.shape)}, expected {dtype}{list(shape)}")
    if not allow_extra:
        problems += [f"extra: {n} {found[n].dtype}{list(found[n].shape)}" for n in extra]
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise errors.ParameterError(
            f"{where} does not match the program:\n  " + "\n  ".join(problems[:_SHOWN]) + more + "\n" + advice
        )


def choose(
    found: Mapping[str, Any],
    wanted: Wanted,
    where: Any,
    skip: str | Sequence[str] = (),
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> LoadReport:
    """Say which of the arrays that are there a program takes.

    Args:
      found: arrays by name.
      wanted: shape and dtype by name.
      where: what the arrays came from, for messages.
      skip: names and globs of what is not taken, there or in the program.
      allow_missing: accept that arrays of the program are not there.
      allow_extra: accept names that are not wanted.

    Raises:
      ParameterError: names, shapes or dtypes differ; or nothing at all would be taken.
      UnknownNameError: something to skip is neither there nor in the program.

    Example:
      >>> import numpy as np
      >>> arrays = {"a": np.ones(3, "float32"), "head": np.ones(9, "float32")}
      >>> choose(arrays, {"a": ((3,), "float32"), "head": ((5,), "float32")}, "here", skip=["head"]).skipped
      {'head': 'float32[9], here float32[5]'}
    """
    left_out = select(skip, {**wanted, **found}, "skip")
    there = {n: shape_text(str(v.dtype), v.shape) for n, v in found.items()}
    here = {n: shape_text(dtype, shape) for n, (shape, dtype) in wanted.items()}
    missing = {n: here[n] for n in wanted if n not in found and n not in left_out}
    extra = {n: there[n] for n in found if n not in wanted and n not in left_out}
    compared = {n: w for n, w in wanted.items() if n not in left_out and not (allow_missing and n in missing)}
    check_match(
        {n: v for n, v in found.items() if n not in left_out}, compared, where, allow_extra, advice=_TAKE_A_PART
    )
    taken = tuple(n for n in wanted if n in found and n not in left_out)
    if wanted and not taken:
        nearest = next(filter(None, (_nearest(n, list(found)) for n in wanted)), "")
        raise errors.ParameterError(
            f"nothing would be taken from {where}: it has {_some(found)}, and the program has {_some(wanted)}{nearest}; "
            f'names are made to agree by rename={{"old/*": "new/*"}}'
        )
    skipped = {n: _both(there.get(n), here.get(n)) for n in left_out}
    return LoadReport(str(where), taken, missing, extra, skipped)


def _nearest(name: str, candidates: list[str]) -> str:
    hint = errors.nearest(name, candidates) if candidates else ""
    return f"  ({hint})" if hint.startswith("Did") else ""


def _both(there: str | None, here: str | None) -> str:
    return ", ".join(([there] if there else []) + ([f"here {here}"] if here else []))


def _some(names: Mapping[str, Any]) -> str:
    return ", ".join([*list(names)[:5], *(["..."] if len(names) > 5 else [])]) or "nothing"
