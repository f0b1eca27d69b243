"""The training loop, readable from top to bottom."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluid.core import TRAIN
from fluid.reader.buckets import padding_of
from fluid.reader.converter import examples_in
from fluid.reader.pipeline import Batch, Batches
from fluid.runtime import CompiledStep, Request, Results, Session, bind
from fluid.runtime.in_flight import IN_FLIGHT
from fluid.trainer.checkpoint import NoCheckpoints
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
)
from fluid.trainer.handlers import Dispatcher
from fluid.trainer.losses import Losses
from fluid.trainer.policy import Call, Policy
from fluid.trainer.programs import Member
from fluid.trainer.resume import Progress
from fluid.trainer.signals import Signals
from fluid.trainer.step_request import StepRequest
from fluid.trainer.steps_per_call import StepsPerCall
from fluid.trainer.together.agreement import Agreement

# Seconds that reading a minibatch may take for the loop to do it before it tells handlers of the end of a step.
_SLOW = 0.02

log = logging.getLogger("fluid")


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What the loop knows of one program.

    Attributes:
      member: the program.
      step: its compiled step.
      loss_output: the position of the loss among the outputs.
    """

    member: Member
    step: CompiledStep
    loss_output: int


@dataclass(frozen=True)
class Run:
    """What one call of `train` works with.

    Attributes:
      programs: what is trained: one program, or several in turn.
      progress: the position of training; the loop keeps it up to date.
      handlers: deliver every event.
      stopping: asked after each call of the device whether training shall end.
      pausing: whether it shall then be possible to continue with the next minibatch, in this process.
      losses: of the steps in flight.
      agreement: has all processes take the same steps, where there are several.
      checkpoints: are told when something can be saved.
      signals: hold back Ctrl-C and SIGTERM until they can do no harm.
      steps_per_call: how many steps run in one call of the device.
      compile_ahead: begins to compile the step before the first minibatch is read, where its shapes are known.
      epoch_metrics: gives the scalars of the program over the epoch so far, without waiting for them.
    """

    programs: Sequence[ProgramRun]
    progress: Progress
    handlers: Dispatcher
    stopping: Callable[[], bool]
    pausing: Callable[[], bool]
    losses: Losses
    agreement: Agreement
    checkpoints: NoCheckpoints
    signals: Signals
    steps_per_call: StepsPerCall
    compile_ahead: Callable[[], None]
    epoch_metrics: Callable[[], Results]

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies that act between two calls of the device, in their order."""
        return (self.agreement, self.checkpoints, self.signals, self.losses)


def runs_of(members: Sequence[Member], session: Session, handlers: Dispatcher) -> list[ProgramRun]:
    """The compiled training step of each program of a Trainer, with what handlers want to see of it.

    Raises:
      UnknownNameError: a handler wants to see what no program has.
    """
    fetched = handlers.fetches([member.program for member in members])
    runs = []
    for member, also in zip(members, fetched, strict=True):
        feeds = member.program.feeds
        step = bind(session.engine, member.program, Request(TRAIN, None, tuple(feeds), also=also))
        runs.append(ProgramRun(member, step, member.program.loss_output))
    return runs


def train(run: Run, num_epochs: int) -> bool:
    """Run epochs of steps, tell the handlers, save checkpoints.

    Args:
      run: the step, the handlers, and whatever else this call of `train` has.
      num_epochs: how many passes over the reader, those included that were done before an interruption.

    Returns:
      Whether every loss was finite, so that nothing was said of one that was not.
    """
    progress, handlers = run.progress, run.handlers
    error: BaseException | None = None
    try:
        with run.checkpoints:
            handlers.enter(BeginTrainEvent(num_epochs, progress.resuming))
            while progress.epoch < num_epochs and not run.stopping():
                handlers(BeginEpochEvent(progress.epoch, progress.step))
                event = _epoch(run)
                if event.feeding:
                    log.info("epoch %d: %s", event.epoch, event.feeding)
                handlers(event)
                if event.completed:
                    progress.next_epoch()
                    run.checkpoints.after_epoch()
                run.signals.check()
            run.losses.wait_for_all()
    except BaseException as raised:
        error = raised
        if "RESOURCE_EXHAUSTED" in str(raised):
            raised.add_note("the device has no memory left for this step; feed smaller minibatches: batch_size=...")
        raise
    finally:
        handlers.leave(EndTrainEvent(progress.epoch, stopped=run.stopping(), error=error))
    return not run.losses.warned


def _epoch(run: Run) -> EndEpochEvent:
    """Run the steps of one epoch, or of what an interruption has left of it; returns the event of its end."""
    progress, waits, policies = run.progress, run.handlers.waits, run.policies
    begun = (time.perf_counter(), waits.data, _compiled(run))
    with run.signals.at_once:
        run.compile_ahead()
        batches = progress.start_pass()
        waits.begin_pass(batches.seconds)
        batches.read_ahead()
        waits.look(batches.seconds, run.losses.idle)
    try:
        ended = run.agreement.before_epoch(batches)
        while not ended and (first := batches.peek()):
            call = _call(run, first, batches)
            for policy in policies:
                policy.after_steps(call)
            ended = run.stopping() or (progress.last and not batches.ended)
    finally:
        if run.pausing():
            progress.keep_pass(batches)
        else:
            batches.close()
    return _end_of_epoch(run, *begun)


def _call(run: Run, first: Batch, batches: Batches) -> Call:
    """Run one call of the device, which is one step or several, and tell handlers of each step.

    The events of several steps are delivered after all of them were dispatched, while the device may still compute.

    Args:
      run: what this call of `train` works with.
      first: the next minibatch.
      batches: first among these.
    """
    progress, handlers, program = run.progress, run.handlers, run.programs[first.program]
    step, name = program.step, program.member.name
    begun = progress.step
    paced = name not in run.steps_per_call.one_by_one
    compiled = len(step.engine.compilations)
    chain = program.member.chain
    feed = first.feed if chain is None else chain(first.feed)
    request = StepRequest(program.member.program)
    capacity, limit = _limit(run, program, first) if paced else (1, 1)
    handlers.in_flight = IN_FLIGHT if capacity == 1 else max(IN_FLIGHT, 2 * capacity)
    if handlers.hear(BeginStepEvent):
        handlers(BeginStepEvent(progress.epoch, begun, feed, first.seconds, request, name))
    together = limit if request.is_empty else 1
    if together > 1:
        _read_ahead(run, batches, together)
    batch = batches.take(1 if run.stopping() else together, capacity)
    results = request.run(step, batch.feed if chain is None else feed, batch.count)
    run.losses.add(results.values[program.loss_output], progress.epoch, begun, batch.count)
    progress.advance(batch)
    if paced and len(step.engine.compilations) > compiled:
        run.steps_per_call.interrupt()
    quick = batch.seconds < _SLOW and not progress.reads_once
    if quick:  # while the device works
        _read_ahead(run, batches, limit)
        if batch.count > 1:
            batches.stack_ahead(batch.program, capacity)
    _tell(run, program, feed, batch, results)
    if not quick:  # who waits for the end of this step need not wait for a slow reader as well
        _read_ahead(run, batches, limit)
        handlers.waits.look(batches.seconds, run.losses.idle)
    return Call(name, results, batches)


def _tell(
    run: Run, program: ProgramRun, feed: Mapping[str, Any], batch: Batch, results: Sequence[tuple[Results, Results]]
) -> None:
    """Tell handlers of the steps of one call, the beginning of the first excepted, of which they know already.

    Args:
      run: what this call of `train` works with.
      program: whose steps they were.
      feed: of the first.
      batch: the minibatches of all.
      results: of all.
    """
    epoch, handlers = run.progress.epoch, run.handlers
    begun = run.progress.step - batch.count
    name = program.member.name
    begins = batch.count > 1 and handlers.hear(BeginStepEvent)
    examples = batch.examples if program.member.chain is None else examples_in(program.member.program.feeds, feed)
    for number, (minibatch, (metrics, fetched)) in enumerate(zip(batch.each, results, strict=True)):
        if number and begins:
            request = StepRequest(program.member.program, in_call=True)
            handlers(BeginStepEvent(epoch, begun + number, minibatch.feed, minibatch.seconds, request, name))
        handlers(EndStepEvent(epoch, begun + number, metrics, fetched, examples, name))


def _limit(run: Run, program: ProgramRun, first: Batch) -> tuple[int, int]:
    """Return the capacity of a call in steps, and how many steps may run in the next call before somebody acts."""
    capacity = run.steps_per_call.capacity(program.member.program, first)
    if capacity == 1:
        return 1, 1
    ahead = run.steps_per_call.ahead(*run.handlers.steps_ahead())
    return capacity, int(max(1, min(capacity, ahead, *(policy.steps_ahead() for policy in run.policies))))


def _end_of_epoch(run: Run, begun: float, waited: float, compiled: int) -> EndEpochEvent:
    """The event of the end of an epoch, by the time, the seconds waited for data and the compilations before it."""
    return EndEpochEvent(
        run.progress.epoch,
        run.progress.step,
        completed=not run.stopping(),
        compiled=_compiled(run) - compiled,
        seconds=time.perf_counter() - begun,
        data_wait=run.handlers.waits.data - waited,
        padding=padding_of([program.step.buckets for program in run.programs]),
        metrics=run.epoch_metrics(),
    )


def _compiled(run: Run) -> int:
    """How often the steps were compiled so far."""
    return run.programs[0].step.engine.compilations.of_training


def _read_ahead(run: Run, batches: Batches, count: int) -> None:
    """Read the next minibatches, unless training ends here: then they would be lost to readers that are read once only.

    What follows a step does not wait for a reader that has nothing yet.
    """
    with run.signals.reading_ahead:
        for number in range(batches.waiting + 1, count + 1):
            if run.stopping() or run.signals.arrived is not None or not (run.progress.ready or run.agreement.needs_end):
                return
            batches.read_ahead(number)
            if batches.waiting < number:
                return
