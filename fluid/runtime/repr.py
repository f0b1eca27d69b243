"""Reprs of objects that run the programs of a Session."""

import html
import math
from collections.abc import Iterable, Sequence

from fluid._util.text import counted, described
from fluid.core import Program
from fluid.runtime.session import Session


class ShowsProgram:
    """A base class with a repr of one line, and a small HTML table for notebooks. Neither computes or waits.

    Attributes:
      program: the program, if there is one.
      session: the Session that runs it.
    """

    program: Program
    session: Session

    def __repr__(self) -> str:
        programs = self._shown_programs()
        minimizes = [minimize for program in programs for minimize in program.minimizes]
        told = [] if self.session.engine.members is None else [counted(self.session.engine.members, "member")]
        told += [counted(parameter_count(programs), "parameter"), *(described(m.optimizer, 0) for m in minimizes)]
        if minimizes:
            step = self.session.scope.known_step()
            told.append("in a step" if step is None else f"step {step:,}")
        told.append(f"on {self.session.device.platform}")
        return f"{type(self).__name__}({', '.join(p.name for p in programs)}: {', '.join(told)})"

    def _repr_html_(self) -> str:
        return html.escape(repr(self)) + "".join(program._repr_html_() for program in self._shown_programs())

    def _shown_programs(self) -> Sequence[Program]:
        """Return the programs that the repr of a Session, Trainer or Inferencer lists."""
        return [self.program]


def parameter_count(programs: Iterable[Program]) -> int:
    """Return the number of elements of all parameters of some programs; shared parameters count once."""
    shapes = {name: spec.shape for program in programs for name, spec in program.parameters.items()}
    return sum(map(math.prod, shapes.values()))
