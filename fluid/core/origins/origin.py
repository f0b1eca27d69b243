"""Origin: what tells a parameter from another one that has the same name in another program."""

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluid.core.equations import is_literal
from fluid.core.frame import ParameterSpec


class Origin(NamedTuple):
    """Where a parameter with an automatic name comes from.

    Attributes:
      kind: of the layer that it belongs to, such as "fc".
      site: the user's line that made it, for messages: "net.py:12 in head".
      lines: from `user_lines`.
      place: a checksum of the feeds and the parameters that its layer's input is computed from: their kinds and shapes,
        but not their names. None where that is not known, as inside loops.
    """

    kind: str
    site: str
    lines: tuple[str, ...] = ()
    place: str | None = None


def origins_of(
    specs: Mapping[str, ParameterSpec], jaxpr: Any, feeds: Mapping[str, Sequence[Any]], parameters: Mapping[str, Any]
) -> dict[str, Origin]:
    """The origins of those parameters of a program that have automatic names.

    Args:
      specs: of all parameters, by name.
      jaxpr: the equations of the program.
      feeds: the variables of each feed.
      parameters: the variables of the parameters; those that only loops and branches use may be missing.
    """
    behind = _inputs(jaxpr, {f"feed {name}": found for name, found in feeds.items()}, parameters)
    places = {name: _checksum(found, specs) for name, found in behind.items()}
    return {
        name: Origin(spec.kind, _short(spec.site), spec.lines, places.get(name))
        for name, spec in specs.items()
        if spec.kind
    }


def _inputs(jaxpr: Any, feeds: Mapping[str, Sequence[Any]], parameters: Mapping[str, Any]) -> dict[str, list[str]]:
    """For each parameter, which feeds and parameters that is computed from which it first meets in an equation."""
    names = [*feeds, *parameters]
    bits = {name: 1 << i for i, name in enumerate(names)}
    # What a variable is computed from, one bit for each feed and parameter: sets of all names would be slow.
    made_of = {variable: bits[name] for name, found in feeds.items() for variable in found if not is_literal(variable)}
    made_of |= {variable: bits[name] for name, variable in parameters.items()}
    waiting = {bits[name]: name for name in parameters}
    met: dict[str, int] = {}
    for equation in jaxpr.eqns:
        inputs = [made_of.get(v, 0) for v in equation.invars if not is_literal(v)]
        together = 0
        for mask in inputs:
            together |= mask
        for mask in inputs:
            if mask in waiting and together != mask:
                met[waiting.pop(mask)] = together & ~mask
        for variable in equation.outvars:
            made_of[variable] = made_of.get(variable, 0) | together
    return {name: [n for n in names if mask & bits[n]] for name, mask in met.items()}


def _checksum(names: Sequence[str], specs: Mapping[str, ParameterSpec]) -> str:
    described = [f"{specs[n].kind}{list(specs[n].shape)}" if n in specs else n for n in names]
    return hashlib.blake2b("\n".join(sorted(described)).encode(), digest_size=8).hexdigest()


def _short(site: str) -> str:
    """A line without the folders of its file, which nobody else has."""
    path, colon, rest = site.rpartition(":")
    return f"{pathlib.PurePath(path).name}{colon}{rest}"
