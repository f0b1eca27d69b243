"""Which parts of a program read the results of which others."""

from typing import Any

from fluid.core.equations import is_literal
from fluid.inspection.parts import Part, Partition


class Flow:
    """Follows variables back to the parts that computed them.

    Equations that belong to no single part are followed through: those of a loop around the parts inside of it.

    Args:
      found: the program, taken apart.
    """

    def __init__(self, found: Partition):
        self._found = found
        every = [part for top in found.parts for part, _ in top.walk()]
        self._order = {id(part): number for number, part in enumerate(every)}
        self._names: dict[Any, list[Part]] = {}  # parts that only name a variable that another one computed
        for part in every:
            variable = part.variable
            if variable is not None and not is_literal(variable) and self._owner(variable) is not part:
                self._names.setdefault(variable, []).append(part)
        self._around = {id(e) for part in every if part.inside for e in part.equations}
        self._known: dict[tuple[Any, int, bool], dict[Part, None]] = {}

    def inputs(self, part: Part) -> list[Part]:
        """The parts whose results a part without others inside reads, in order."""
        own = {v for equation in part.equations for v in equation.outvars}
        read = [v for e in part.equations for v in e.invars if not is_literal(v) and v not in own]
        if not part.equations and part.variable is not None and not is_literal(part.variable):
            read = [part.variable]
        return self._before(read, self._order[id(part)])

    def makers(self, variable: Any) -> list[Part]:
        """The parts whose result an output of the program is."""
        return [] if is_literal(variable) else self._before([variable], len(self._order))

    def _before(self, variables: list[Any], place: int) -> list[Part]:
        # Nearly every layer of a net of sequences reads their lengths, which says nothing about what it works on.
        for lengths in (False, True):
            found: dict[Part, None] = {}
            for variable in variables:
                found |= self._sources(variable, place, lengths)
            found = {part: None for part in found if self._order[id(part)] < place}
            if found:
                break
        return list(found)

    def _sources(self, variable: Any, place: int, lengths: bool) -> dict[Part, None]:
        if is_literal(variable):
            return {}
        key = (variable, place, lengths)
        if key not in self._known:
            self._known[key] = {}
            self._known[key] = self._find(variable, place, lengths)
        return self._known[key]

    def _find(self, variable: Any, place: int, lengths: bool) -> dict[Part, None]:
        found = self._found
        names = [part for part in self._names.get(variable, ()) if self._order[id(part)] < place]
        if names and not names[-1].inside:
            return {names[-1]: None}
        if variable in found.outer:
            return self._sources(found.outer[variable], place, lengths)
        if variable in found.lengths and not lengths:
            return {}
        equation = found.makers.get(variable)
        if equation is None:
            return {}
        owner = found.owners.get(id(equation))
        if owner is not None and not owner.inside:
            return {owner: None}
        through: dict[Part, None] = {}
        for read in [found.inner[variable]] if variable in found.inner else equation.invars:
            through |= self._sources(read, place, lengths)
        # What a loop begins with has a part in what it returns, but says nothing once something inside has one.
        inside = {part for part, _ in owner.walk()} if owner is not None and id(equation) in self._around else set()
        return {part: None for part in through if part in inside} or through

    def _owner(self, variable: Any) -> Part | None:
        return self._found.owners.get(id(self._found.makers.get(variable)))
