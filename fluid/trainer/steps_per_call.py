"""Steps per call: how many of the next steps run in one call of the device, without anybody seeing a difference."""

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Literal

from fluid import errors
from fluid.core import Program
from fluid.distributed import group
from fluid.reader.pipeline import Batch
from fluid.runtime import CompiledStep, Session
from fluid.trainer.programs import Member, Source, Turns

log = logging.getLogger("fluid")

StepsPerDispatch = int | Literal["auto"]
"""What `Trainer(steps_per_dispatch=)` takes."""

AUTO = "auto"
# What the feeds and results of the steps of one call may take, in bytes, where the number of steps is chosen.
_BYTES = 1 << 26


# A call costs the host some tenths of a millisecond; in calls of about this many seconds that does not count any more.
_CALL = 0.04
# Steps that take longer than this gain nothing from company.
_LONG = 0.0025
MOST = 64
# So many spans between two waits are measured; the quickest of them has no test, and no other process, in it.
_SPANS = 3


class StepsPerCall:
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
        self._compilations = session.compilations
        self._compiled = 0
        refused = [reason for reason in self._alone.values() if reason is not None]
        if refused and isinstance(self._wanted, int) and self._wanted > 1:
            raise errors.ArgumentError(
                f"steps_per_dispatch={wanted}: {refused[0]}; leave steps_per_dispatch out, or write "
                f'steps_per_dispatch="auto", which runs several steps in one call where that is possible'
            )

    def capacity(self, program: Program, batch: Batch) -> int:
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
        """Record that the loop has waited for a step of a program; see `Pace.mark`."""
        compiled = len(self._compilations)
        if compiled > self._compiled:  # no step takes as long as a compilation
            self._compiled = compiled
            for pace in self._paces.values():
                pace.interrupt()
        self._paces[program].mark(steps, time.perf_counter())


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
    if session.engine.layout.mesh is not None:
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


class Pace:
    """Measures steps that run one by one, and says how many shall run in one call from then on.

    Example:
      >>> pace = Pace()
      >>> for mark in range(4):
      ...     pace.mark(steps=10 * mark, now=0.003 * mark)
      >>> pace.together  # at 0.3 milliseconds each
      64
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._spans: list[float] = []
        self._together = 1

    @property
    def together(self) -> int:
        """The number of steps, a power of two; 1 until it is known."""
        return self._together

    def mark(self, steps: int, now: float) -> None:
        """Note that the loop has waited for a step.

        Args:
          steps: how many were started so far.
          now: the time in seconds.
        """
        if self._last is not None and steps > self._last[0] and len(self._spans) < _SPANS:
            self._spans.append((now - self._last[1]) / (steps - self._last[0]))
            if len(self._spans) == _SPANS:
                self._together = _worth_a_call(min(self._spans))
        self._last = (steps, now)

    def interrupt(self) -> None:
        """Leave the time since the last mark out, as in which something was compiled."""
        self._last = None


def _worth_a_call(seconds: float) -> int:
    """Return the number of steps, of this many seconds each, that are worth one call."""
    return 1 if seconds >= _LONG else min(MOST, 2 ** math.ceil(math.log2(max(_CALL / max(seconds, 1e-9), 1))))


def compile_ahead(
    members: Sequence[Member], steps: Sequence[CompiledStep], source: Source, steps_per_call: StepsPerCall
) -> None:
    """Begin to compile the step of a program, if its reader says which shapes it will be fed with.

    A reader says so that has a `batch_size`, of a program whose data has fixed shapes. Otherwise, and where the first
    call may have several steps, the step is compiled when its first minibatch is there.

    Args:
      members: the programs.
      steps: the step of each.
      source: what is going to be read.
      steps_per_call: how many steps run in one call of the device.
    """
    if len(members) > 1 or isinstance(source, Turns) or steps[0].compiled or not source.batch_size:
        return
    feed = members[0].expected(source)
    if feed is None or steps_per_call.capacity(members[0].program, Batch(feed, examples=source.batch_size)) > 1:
        return
    with contextlib.suppress(Exception):  # a mistake in the program is said by its first step, as ever
        steps[0].compile_ahead(feed)
