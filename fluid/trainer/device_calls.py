"""Device calls: run one or several training steps in one call of a compiled function, with equal results.

A StepRequest runs the compiled step; or, if handlers request values, a variant that also returns these values. A
call with several steps is a compiled loop over the single step, so no other code depends on the number of steps.
Between two calls the device is idle. Therefore the arrays of the next call are copied to the device before the running
call ends, and means are computed while the device works.
"""

import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.distributed import group
from fluid.reader.pipeline import Batch, Batches
from fluid.runtime import CompiledStep, Session, bind, check_fetch
from fluid.runtime.fetch import Fetch, check_feed, split_names
from fluid.runtime.results import StepResults
from fluid.trainer.programs import ProgramInput, Source, Turns


class StepRequest:
    """The requests of handlers for one training step: values to return, and values to replace; mostly there are none.

    Args:
      program: the program that the step trains.
      in_call: True if the step runs after another step in one device call; `fetch` and `override` then raise an error.

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
        """Run the step. With requests, run a variant of the step, which is compiled once for each set of names.

        Args:
          step: the compiled step without requests.
          feed: arrays by name; for several steps, StackedFeeds (stacked minibatches) or Picks (their row numbers).
          count: the number of steps to run in this call, 1 by default; above 1, there are no requests.
        """
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
                f"event.{method}() was called of a step that ran in one call with the one before, expected the first "
                f"step of a call: say in `def steps_ahead(self)` of a fluid.Handler how many steps may run before the "
                f"one that you ask something of, or train with fluid.Trainer(..., steps_per_dispatch=1)"
            )
        if self._over:
            raise errors.ArgumentError(
                f"event.{method}() was called after the step had begun, expected before: call it while BeginStepEvent "
                f"is handled, in begin_step(self, event) of a fluid.Handler"
            )


log = logging.getLogger("fluid")

StepsPerDispatch = int | Literal["auto"]
"""The type of `Trainer(steps_per_dispatch=)`: a number of steps, or "auto"."""

AUTO = "auto"
# With `steps_per_dispatch="auto"`, the maximum size of the feeds and outputs of all steps in one device call, in bytes.
_BYTES = 1 << 26


# The target duration of a device call, in seconds. The host needs some tenths of a millisecond to start a call, which
# is then negligible.
_CALL = 0.04
# Training steps that take longer than this time, in seconds, run one per device call: several per call would not be
# faster.
_LONG = 0.0025
MOST = 64
# The time per step is measured this number of times. Each measurement is the mean time per step between two moments at
# which the training loop has waited for the device. The shortest of the times is used, because it most probably
# includes no test and no delay by another process.
_SPANS = 3


class StepsPerCall:
    """The number of training steps per device call, for each program of a Trainer.

    Args:
      wanted: the argument `steps_per_dispatch` of Trainer.
      inputs: the programs.
      session: the session of the Trainer.

    Attributes:
      one_by_one: the names of the programs whose steps always run one by one.

    Raises:
      ArgumentError: `wanted` is neither a number of steps nor "auto"; or it is above 1, and a program cannot run
        several steps per call.
    """

    def __init__(self, wanted: StepsPerDispatch, inputs: Sequence[ProgramInput], session: Session):
        self._wanted = _checked(wanted)
        self._alone = {input.name: _reason_against(input, session) for input in inputs}
        self.one_by_one = frozenset(n for n, reason in self._alone.items() if reason is not None or wanted == 1)
        self._paces = {input.name: Pace() for input in inputs}
        self._warned = False
        self._compilations = session.compilations
        self._compiled = 0
        refused = [reason for reason in self._alone.values() if reason is not None]
        if refused and isinstance(self._wanted, int) and self._wanted > 1:
            raise errors.ArgumentError(
                f"steps_per_dispatch={wanted}: {refused[0]}; leave steps_per_dispatch out, or write "
                f'steps_per_dispatch="auto", which runs several steps in one call where that is possible'
            )

    def capacity(self, program: Program, batch: Batch) -> int:
        """Return the maximum number of steps in the next device call; handlers and hooks of the loop may require fewer.

        Args:
          program: the program of the steps.
          batch: the minibatch of the next step, whose size limits the number with "auto".
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
        """Return the number of training steps that may run in one device call before a handler has to act.

        The number is the minimum over the handlers that declare one. But with `steps_per_dispatch="auto"`, it is 1 if
        any handler declares no number.

        Args:
          declared: the minimum of `Handler.steps_ahead` over all handlers; None if a handler declares no number.
          least: the minimum over the handlers that declare a number.
        """
        if declared is not None or isinstance(self._wanted, int):
            return least
        if not self._warned:
            self._warned = True
            log.warning(
                'steps_per_dispatch="auto" runs step after step, since a handler does not say how many steps may run '
                "before it acts: def steps_ahead(self): return ... in a fluid.Handler; a function is called every so "
                "often by @fluid.handlers.every(50)"
            )
        return 1

    def mark(self, program: str, steps: int) -> None:
        """Update the measured speed of a program, after the training loop has waited for one of its steps.

        Args:
          program: the name of the program.
          steps: the number of training steps done so far, of all programs.
        """
        compiled = len(self._compilations)
        if compiled > self._compiled:  # a measured time of steps must not include a compilation
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


def _bytes_of(program: Program, batch: Batch) -> int:
    """Return the size of the feed and the outputs of one step, in bytes; each number of an output counts as 4 bytes."""
    rows = batch.examples
    results = sum(4 * math.prod(rows if size is None else size for size in out.shape) for out in program.outputs)
    return results + batch.nbytes


class Pace:
    """A measurement of the time per training step, from which the number of steps per device call is chosen.

    Example:
      >>> pace = Pace()
      >>> for mark in range(4):
      ...     pace.mark(steps=10 * mark, now=0.003 * mark)
      >>> pace.together  # at 0.3 milliseconds a step
      64
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._spans: list[float] = []
        self._together = 1

    @property
    def together(self) -> int:
        """The number of steps per device call, a power of two; 1 until enough times are measured."""
        return self._together

    def mark(self, steps: int, now: float) -> None:
        """Record the time at which the training loop has finished waiting for a step.

        Args:
          steps: the number of steps that were started so far.
          now: the time in seconds, from any starting point.
        """
        if self._last is not None and steps > self._last[0] and len(self._spans) < _SPANS:
            self._spans.append((now - self._last[1]) / (steps - self._last[0]))
            if len(self._spans) == _SPANS:
                self._together = _worth_a_call(min(self._spans))
        self._last = (steps, now)

    def interrupt(self) -> None:
        """Leave the time until the next `mark` out of the measurement, for example if it includes a compilation."""
        self._last = None


def _worth_a_call(seconds: float) -> int:
    """Return the best number of training steps per device call, a power of two, if each step takes `seconds`."""
    return 1 if seconds >= _LONG else min(MOST, 2 ** math.ceil(math.log2(max(_CALL / max(seconds, 1e-9), 1))))


def compile_ahead(
    inputs: Sequence[ProgramInput], steps: Sequence[CompiledStep], source: Source, steps_per_call: StepsPerCall
) -> None:
    """Start to compile the step of a program before its first minibatch is read, if the shapes of its feeds are known.

    The shapes are known if the reader has a `batch_size`, and the program declares data of fixed shapes. Otherwise, or
    if the first call may have several steps, the compilation begins when the first minibatch is read.

    Args:
      inputs: the programs.
      steps: the compiled step of each program.
      source: the source of the minibatches.
      steps_per_call: the number of steps per device call.
    """
    if len(inputs) > 1 or isinstance(source, Turns) or steps[0].compiled or not source.batch_size:
        return
    feed = inputs[0].expected(source)
    if feed is None or steps_per_call.capacity(inputs[0].program, Batch(feed, examples=source.batch_size)) > 1:
        return
    # This compilation only saves time. Ignore its errors here, because the first training step raises them again.
    with contextlib.suppress(Exception):
        steps[0].compile_ahead(feed)


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
    """A hook of the training loop that runs between two device calls, for example to save checkpoints.

    One device call runs at most as many steps as the smallest `steps_ahead` of all policies.

    Example:
      >>> class Every(Policy):
      ...     done = 0
      ...     def steps_ahead(self):
      ...         return 5 - self.done % 5
      ...     def after_steps(self, call):
      ...         self.done += len(call.results)
      >>> Every().steps_ahead()
      5
    """

    def steps_ahead(self) -> float:
        """Return the maximum number of training steps in the next device call, at least 1."""
        return math.inf

    def after_steps(self, call: DeviceCall) -> None:
        """Act after a device call, which runs one or several training steps; `call` holds their results."""
