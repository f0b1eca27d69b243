"""Named arrays compared with what a program has."""

from collections.abc import Mapping
from typing import Any

from fluid import errors

_SHOWN = 20
_CHECK_THE_PROGRAM = (
    "parameters and program must come from the same layers and names; check that the program function is the one that "
    "was trained"
)


def check_match(
    found: Mapping[str, Any],
    wanted: Mapping[str, tuple[tuple[int, ...], str]],
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


def _nearest(name: str, candidates: list[str]) -> str:
    hint = errors.nearest(name, candidates) if candidates else ""
    return f"  ({hint})" if hint.startswith("Did") else ""
