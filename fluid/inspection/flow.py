"""Data flow between the parts of a program."""

from collections.abc import Sequence
from typing import Any

from fluid.core.equations import is_literal
from fluid.inspection.parts import Part, Partition


class Flow:
    """The parts that each part of a program reads from.

    Args:
      found: the program, taken apart.
    """

    def __init__(self, found: Partition):
        self._found = found
        self._order = {part: n for n, part in enumerate(part for top in found.parts for part, _ in top.walk())}
        self._parts: dict[int, list[Part]] = {}  # those without loops that compute a variable or, like feeds, name it
        for part in self._order:
            for variable in () if part.inside else (part.variable, *(v for e in part.equations for v in e.outvars)):
                self._parts.setdefault(id(variable), []).append(part)

    def inputs(self, part: Part) -> list[Part]:
        """Return the parts whose results a part without a loop reads."""
        read = [variable for equation in part.equations for variable in equation.invars]
        return self._sources(read if part.equations else [part.variable], part)

    def makers(self, variable: Any) -> list[Part]:
        """Return the parts that computed an output of the program."""
        return self._sources([variable], None)

    def _sources(self, variables: Sequence[Any], reader: Part | None, lengths: bool = False) -> list[Part]:
        """Return the parts before `reader` that computed variables; equations of loops are followed through."""
        found = self._found
        end = len(self._order) if reader is None else self._order[reader]
        waiting: list[tuple[Any, Part | None]] = [(variable, None) for variable in variables]
        seen = set()
        reached: dict[tuple[Part, Part | None], None] = {}  # parts, each with the loop that led there
        for variable, loop in waiting:  # which grows
            if variable is None or is_literal(variable):  # None stands for a parameter that nothing reads
                continue
            if (variable, loop) in seen or (variable in found.lengths and not lengths):
                continue
            seen.add((variable, loop))
            parts = [part for part in self._parts.get(id(variable), ()) if self._order[part] < end]
            equation = found.makers.get(variable)
            if parts:
                reached[parts[-1], loop] = None
            elif variable in found.outer:
                waiting.append((found.outer[variable], loop))
            elif equation is not None:
                read = [found.inner[variable]] if variable in found.inner else equation.invars
                waiting += [(v, found.owners.get(id(equation), loop)) for v in read]
        # The initial values of a loop have a part in its results, but say nothing where something inside has one.
        inside = {loop: {part for part, _ in loop.walk()} for _, loop in reached if loop is not None}
        left = {loop for loop, parts in inside.items() if reader not in parts and any(p in parts for p, _ in reached)}
        sources = list(dict.fromkeys(part for part, loop in reached if loop not in left or part in inside[loop]))
        # Nearly every layer of a net of sequences reads their lengths, which says nothing about what it works on.
        return sources if sources or lengths else self._sources(variables, reader, lengths=True)
