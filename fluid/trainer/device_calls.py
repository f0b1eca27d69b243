"""Device calls: run one or several training steps in one call of a compiled function, with equal results.

A StepRequest runs the compiled step; or, if handlers request values, a variant that also returns these values. A
call with several steps is a compiled loop over the single step, so no other code depends on the number of steps.
Between two calls the device is idle. Therefore the arrays of the next call are copied to the device before the running
call ends, and means are computed while the device works.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.distributed import group
from fluid.reader.pipeline import Batches
from fluid.runtime import CompiledStep, Session, bind, check_fetch
from fluid.runtime.fetch import Fetch, check_feed, split_names
from fluid.runtime.results import StepResults
from fluid.trainer.programs import ProgramInput


class StepRequest:
    """The requests of handlers for one training step: values to return, and values to replace; mostly there are none.

    Attributes:
      names: the names of the values that the step returns in addition to the outputs of the program.
      values: the new values that handlers have set in this step, by name of a feed, named value, parameter or state.
    """

    __slots__ = ("_in_call", "_over", "_program", "names", "values")

    def __init__(self, program: Program, in_call: bool = False):
        self._program = program
        self._in_call = in_call
        self._over = False
        self.names: tuple[str, ...] = ()
        self.values: dict[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """True if no handler of the training requests or replaces a value of this step."""
        return not self.names and not self.values

    def fetch(self, names: Fetch) -> None:
        """Request values of the step by name or glob pattern, for `BeginStepEvent.fetch`."""
        self._check_time("fetch")
        self.names = tuple(dict.fromkeys((*self.names, *check_fetch(self._program, names, TRAIN))))

    def override(self, values: Mapping[str, Any]) -> None:
        """Replace values of the step by name, for `BeginStepEvent.override`."""
        self._check_time("override")
        values = check_feed(self._program, values)
        split_names(self._program, values)
        if twice := [name for name in values if name in self.values]:
            raise errors.ArgumentError(
                f"{twice[0]!r} is overridden twice in one step, found a second value for it, expected one: two "
                f"handlers want to replace it; leave one of them out"
            )
        self.values.update(values)

    def run(self, step: CompiledStep, feed: Any, count: int = 1) -> StepResults:
        """Run the step. With requests, run a variant of the step, which is compiled once for each set of names."""
        self._over = True
        if count > 1:
            return step(feed, count=count)
        if self.is_empty:
            return step(feed)
        given, replaced = split_names(self._program, self.values)
        also = tuple(dict.fromkeys((*step.request.also, *self.names)))
        request = replace(step.request, also=also, overrides=tuple(sorted(replaced)))
        feeds, overrides = step.engine.take(self._program, self.values, given, request.overrides, step.buckets)
        return bind(step.engine, self._program, request)({**feed, **feeds}, overrides)

    def _check_time(self, method: str) -> None:
        if self._in_call:
            raise errors.ArgumentError(
                f"event.{method}() was called in a step that runs in one device call with the step before it; expected "
                f"the first step of a call. Call it in fluid.Trainer(..., steps_per_dispatch=1)"
            )
        if self._over:
            raise errors.ArgumentError(
                f"event.{method}() was called after the step had begun, expected before: call it while BeginStepEvent "
                f"is handled, in begin_step(self, event) of a fluid.Handler"
            )


def checked_steps(wanted: int, inputs: Sequence[ProgramInput], session: Session) -> int:
    """Return the maximum number of training steps per device call, from the argument `steps_per_dispatch` of Trainer.

    Raises:
      ArgumentError: `wanted` is no number of steps; or it is above 1, and a program cannot run several steps per call.
    """
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise errors.ArgumentError(
            f"steps_per_dispatch={wanted!r}: expected a number of steps from 1 on: "
            f"fluid.Trainer(..., steps_per_dispatch=8)"
        )
    for input in inputs if wanted > 1 else ():
        if (reason := _reason_against(input, session)) is not None:
            raise errors.ArgumentError(f"steps_per_dispatch={wanted}: {reason}; leave steps_per_dispatch out")
    return wanted


def _reason_against(input: ProgramInput, session: Session) -> str | None:
    """Return the reason, for a message, why a program must run one step per device call; None if there is no reason."""
    if group().size > 1:
        return "several processes train together, and agree after each step on the next one"
    if session.engine.layout.mesh is not None or session.engine.layout.in_parts:
        return "the steps of several devices run one by one"
    if input.chain is not None:
        return f"the feeds of {input.name} come from other programs, which compute them anew for each step"
    if input.program.convolves and session.device.platform == "cpu":
        return (
            f"the program {input.name} has convolutions, for which XLA has its quick code on a CPU outside of loops "
            f"alone, so that several steps in one call would be slower, and round otherwise"
        )
    return None


class DeviceCall(NamedTuple):
    """The results of one device call, which runs one or several training steps; handlers already know these steps.

    Attributes:
      program: the name of the program that was trained.
      results: the results of each step.
      examples: the number of examples of each step.
      batches: the running pass over the minibatches, which may already have read some of the next minibatches.
    """

    program: str
    results: StepResults
    examples: int
    batches: Batches


class Policy:
    """A hook of the training loop that runs between two device calls, for example to save checkpoints."""

    def after_steps(self, call: DeviceCall) -> None:
        """Act after a device call, which runs one or several training steps; `call` holds their results."""
