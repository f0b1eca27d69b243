"""Together: how many of the next steps run in one call of the device, without anybody seeing a difference."""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Literal

from fluid import errors
from fluid.core import Program
from fluid.distributed import group
from fluid.reader.pipeline import Batch
from fluid.session import Session
from fluid.trainer.dispatch.pace import Pace
from fluid.trainer.programs import Member

log = logging.getLogger("fluid")

StepsPerDispatch = int | Literal["auto"]
"""What `Trainer(steps_per_dispatch=)` takes."""

AUTO = "auto"
# What the feeds and results of the steps of one call may take, in bytes, where the number of steps is chosen.
_BYTES = 1 << 26


class Together:
    """How many steps of each program of a Trainer go into one call.

    Args:
      wanted: the argument `steps_per_dispatch`.
      members: the programs.
      session: that of the Trainer.

    Attributes:
      one_by_one: the names of the programs whose steps run one by one, whatever they are fed with.

    Raises:
      ArgumentError: `wanted` is no number of steps; or it is one, and a program cannot run several in one call.
    """

    def __init__(self, wanted: StepsPerDispatch, members: Sequence[Member], session: Session):
        self._wanted = _checked(wanted)
        self._alone = {member.name: _reason_against(member, session) for member in members}
        self.one_by_one = frozenset(n for n, reason in self._alone.items() if reason is not None or wanted == 1)
        self._paces = {member.name: Pace() for member in members}
        self._told = False
        refused = [reason for reason in self._alone.values() if reason is not None]
        if refused and isinstance(self._wanted, int) and self._wanted > 1:
            raise errors.ArgumentError(
                f"steps_per_dispatch={wanted}: {refused[0]}; leave steps_per_dispatch out, or write "
                f'steps_per_dispatch="auto", which runs several steps in one call where that is possible'
            )

    def room(self, program: Program, batch: Batch) -> int:
        """How many steps may run in one call, whatever handlers want to see.

        Args:
          program: whose steps.
          batch: the minibatch of the next one.
        """
        if program.name in self.one_by_one:
            return 1
        if isinstance(self._wanted, int):
            return self._wanted
        wanted = self._paces[program.name].together
        if wanted == 1:
            return 1
        held = max(1, _BYTES // max(1, _bytes_of(program, batch)))
        return wanted if wanted <= held else 2 ** int(math.log2(held))

    def ahead(self, declared: float | None, least: float) -> float:
        """How many steps handlers let run before one of them has to act.

        Args:
          declared: what all of them have said; None where one says nothing.
          least: what those have said that say something.
        """
        if declared is not None or isinstance(self._wanted, int):
            return least
        if not self._told:
            self._told = True
            log.warning(
                'steps_per_dispatch="auto" runs step after step, since a handler does not say how many steps may run '
                "before it acts: def steps_ahead(self): return ... in a fluid.Handler; a function is called every so "
                "often by @fluid.handlers.every(50)"
            )
        return 1

    def mark(self, program: str, steps: int) -> None:
        """Note that the loop has waited for a step of a program; see `Pace.mark`."""
        self._paces[program].mark(steps, time.perf_counter())

    def interrupt(self) -> None:
        """Leave the time since the last mark out."""
        for pace in self._paces.values():
            pace.interrupt()


def _checked(wanted: Any) -> StepsPerDispatch:
    if wanted == AUTO:
        return "auto"
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise errors.ArgumentError(
            f'steps_per_dispatch={wanted!r}: expected a number of steps from 1 on, or "auto": '
            f'fluid.Trainer(..., steps_per_dispatch="auto")'
        )
    return wanted


def _reason_against(member: Member, session: Session) -> str | None:
    """Why the steps of a program run one by one; None where several can run in one call."""
    if group().size > 1:
        return "several processes train together, and agree after each step on the next one"
    if session.layout.mesh is not None:
        return "the steps of several devices run one by one"
    if member.chain is not None:
        return f"the feeds of {member.name} come from other programs, which compute them anew for each step"
    if member.program.convolves and session.device.platform == "cpu":
        return (
            f"the program {member.name} has convolutions, for which XLA has its quick code on a CPU outside of loops "
            f"alone, so that several steps in one call would be slower, and round otherwise"
        )
    return None


def _bytes_of(program: Program, batch: Batch) -> int:
    """How much a step is fed with, and gives back."""
    rows = batch.examples
    results = sum(4 * math.prod(rows if size is None else size for size in out.shape) for out in program.outputs)
    return results + batch.nbytes
