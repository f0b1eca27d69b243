"""What objects around one program of a Session say of themselves."""

import html

from fluid.core import Program
from fluid.formatting import counted, described
from fluid.session.session import Session


class ShowsProgram:
    """One line, and a small table for notebooks; nothing is computed for them, nor waited for.

    Attributes:
      program: the program.
      session: the Session that runs it.
    """

    program: Program
    session: Session

    def __repr__(self) -> str:
        minimizes = self.program.minimizes
        told = [counted(self.program.parameter_count, "parameter"), *(described(m.optimizer, 0) for m in minimizes)]
        if minimizes:
            step = self.session.scope.known_step()
            told.append("in a step" if step is None else f"step {step:,}")
        told.append(f"on {self.session.device.platform}")
        return f"{type(self).__name__}({self.program.name}: {', '.join(told)})"

    def _repr_html_(self) -> str:
        return html.escape(repr(self)) + self.program._repr_html_()
