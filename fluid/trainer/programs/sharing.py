"""A warning of parameters that two programs of a Trainer share by accident."""

from collections.abc import Sequence

from fluid.core import CALLED_AT, Program, creation_sites, warn

_SHOWN = 3


def warn_of_shared_by_number(programs: Sequence[Program]) -> None:
    """Warn of parameters that programs share only because their layers have equal numbers.

    Automatic names count the layers of each program from 0 on, so the first `fc` of two programs is one parameter if
    the shapes agree. This sharing is intended if one line of a common function creates the parameter, and rarely
    otherwise.

    Args:
      programs: the programs of one Trainer, in their order.
    """
    made: dict[str, tuple[Program, str]] = {}
    found: list[str] = []
    for program in programs:
        for name, spec in program.parameters.items():
            if not (spec.kind and spec.site):
                continue
            first, line = made.setdefault(name, (program, _own_line(spec.site)))
            if line != _own_line(spec.site):
                sites = [f"{each.name}: {creation_sites(each.parameters)[name]}" for each in (first, program)]
                found.append(f"{name} ({'; '.join(sites)})")
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        warn(
            f"the programs share parameters that different lines make, as these have the same automatic names: "
            f"{', '.join(found[:_SHOWN])}{more}. Give each program names of its own, with fluid.name_scope("
            f'"{programs[0].name}"): around its layers; or, where sharing is meant, make the parameter in one function '
            f'that both call, or name it: param_attr="shared.w"'
        )


def _own_line(site: str) -> str:
    """Return the line of a site without the line that called a shared function."""
    return site.partition(CALLED_AT)[0]
