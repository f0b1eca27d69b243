"""The training loop, readable from top to bottom."""

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluid.core import TRAIN
from fluid.reader.buckets import padding_of
from fluid.reader.prefetch import Prefetched, Prefetcher
from fluid.reader.resident import RowFeed
from fluid.session import Request, Results, Session
from fluid.session.in_flight import IN_FLIGHT
from fluid.trainer.asking import AskableStep
from fluid.trainer.checkpoint import CheckpointHooks
from fluid.trainer.dispatch import Losses, Together
from fluid.trainer.dispatch.together import alike
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
)
from fluid.trainer.handlers import Dispatcher
from fluid.trainer.programs import Member, Turn
from fluid.trainer.resume import Progress
from fluid.trainer.signals import Signals
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
      batch_feed: the name of a feed that has one row for each example; None if the program has none.
      loss_output: the position of the loss among the outputs.
    """

    member: Member
    step: AskableStep
    batch_feed: str | None
    loss_output: int

    def examples(self, feed: Mapping[str, Any]) -> int:
        """How many examples a feed has."""
        if type(feed) is RowFeed:
            return len(feed.rows)
        return 1 if self.batch_feed is None else int(feed[self.batch_feed].shape[0])


@dataclass
class Run:
    """What one call of `train` works with.

    Attributes:
      programs: what is trained: one program, or several in turn.
      progress: the position of training; the loop keeps it up to date.
      convert: makes a Turn, which program's and with which feed, of what is read and its number in the epoch.
      handlers: deliver every event.
      stopping: asked after each step whether training shall end.
      pausing: whether it shall then be possible to continue with the next minibatch, in this process.
      checkpoints: are told when something can be saved.
      signals: hold back Ctrl-C and SIGTERM until they can do no harm.
      agreement: has all processes take the same steps, where there are several.
      together: how many steps run in one call of the device.
      compile_ahead: begins to compile the step before the first minibatch is read, where its shapes are known.
      epoch_metrics: gives the scalars of the program over the epoch so far, without waiting for them.
    """

    programs: Sequence[ProgramRun]
    progress: Progress
    convert: Callable[[Any, int], Turn]
    handlers: Dispatcher
    stopping: Callable[[], bool]
    pausing: Callable[[], bool]
    checkpoints: CheckpointHooks
    signals: Signals
    agreement: Agreement
    together: Together
    compile_ahead: Callable[[], None]
    epoch_metrics: Callable[[], Results]


def runs_of(members: Sequence[Member], session: Session, handlers: Dispatcher) -> list[ProgramRun]:
    """The compiled training step of each program of a Trainer, with what handlers want to see of it.

    Raises:
      UnknownNameError: a handler wants to see what no program has.
    """
    fetched = handlers.fetches([member.program for member in members])
    runs = []
    for member, also in zip(members, fetched, strict=True):
        feeds = member.program.feeds
        step = AskableStep(session, member.program, Request(TRAIN, None, tuple(feeds), also=also))
        batch_feed = next((n for n, spec in feeds.items() if spec.shape[:1] == (None,)), None)
        runs.append(ProgramRun(member, step, batch_feed, member.program.loss_output))
    return runs


def train(run: Run, num_epochs: int) -> bool:
    """Run epochs of steps, tell the handlers, save checkpoints.

    Args:
      run: the step, the handlers, and whatever else this call of `train` has.
      num_epochs: how many passes over the reader, those included that were done before an interruption.

    Returns:
      Whether every loss was finite, so that nothing was said of one that was not.
    """
    progress = run.progress
    handlers = run.handlers
    losses = Losses(handlers.waits)
    error: BaseException | None = None
    try:
        with run.checkpoints:
            handlers.enter(BeginTrainEvent(num_epochs, progress.resuming))
            while progress.epoch < num_epochs and not run.stopping():
                handlers(BeginEpochEvent(progress.epoch, progress.step))
                event = _epoch(run, losses)
                if event.feeding:
                    log.info("epoch %d: %s", event.epoch, event.feeding)
                handlers(event)
                if event.completed:
                    progress.next_epoch()
                    run.checkpoints.after_epoch()
                run.signals.check()
            losses.wait_for_all()
    except BaseException as raised:
        error = raised
        if "RESOURCE_EXHAUSTED" in str(raised):
            raised.add_note("the device has no memory left for this step; feed smaller minibatches: batch_size=...")
        raise
    finally:
        handlers.leave(EndTrainEvent(progress.epoch, stopped=run.stopping(), error=error))
    return not losses.warned


def _epoch(run: Run, losses: Losses) -> EndEpochEvent:
    """Run the steps of one epoch, or of what an interruption has left of it; returns the event of its end."""
    progress = run.progress
    waits = run.handlers.waits
    begun = (time.perf_counter(), waits.data, _compiled(run))
    with run.signals.at_once:
        run.compile_ahead()
        batches = progress.start_pass(run.convert)
        waits.begin_pass(batches.seconds)
        batches.advance()
        waits.look(batches.seconds, losses.idle)
    try:
        ended = run.agreement.before_epoch(progress.epoch, batches)
        for batch in () if ended else batches:
            program = run.programs[batch.feed.program]
            results = _steps(run, program, batch, batches, losses)
            progress.last = run.agreement.after_step(progress.epoch, progress.step, batches)
            run.checkpoints.after_steps(results, program.member.name)
            run.signals.check()
            if run.stopping() or (progress.last and not batches.ended):
                break
            if losses.wait_for_half():
                waits.look(batches.seconds, losses.idle)
                run.together.mark(program.member.name, run.handlers.done, time.perf_counter())
    finally:
        if run.pausing():
            progress.keep_pass(batches)
        else:
            batches.close()
    return _end_of_epoch(run, *begun)


def _steps(
    run: Run, program: ProgramRun, first: Prefetched, batches: Prefetcher, losses: Losses
) -> Sequence[tuple[Results, Results]]:
    """Run the steps of one call of the device: one, or several whose events follow when all of them are under way.

    Args:
      run: what this call of `train` works with.
      program: whose step is next.
      first: its minibatch.
      batches: those behind it.
      losses: of the steps under way.

    Returns:
      The outputs of each, and by name what handlers want to see.
    """
    progress = run.progress
    epoch = progress.epoch
    begun = progress.step
    step = program.step
    paced = program.member.name not in run.together.one_by_one
    compiled = step.compiled if paced else 0
    feed = program.member.fed(first.feed.feed)
    asked = step.ask()
    room, wanted = _wanted(run, program, feed) if paced else (1, 1)
    run.handlers.in_flight = IN_FLIGHT if room == 1 else max(IN_FLIGHT, 2 * room)
    if run.handlers.hear(BeginStepEvent):
        run.handlers(BeginStepEvent(epoch, begun, feed, first.seconds, asked, program.member.name))
    found = [first]
    if wanted > 1 and not asked.names and not asked.values:
        found += _more(run, program, first, batches, wanted)
    if len(found) == 1:
        results: Sequence[tuple[Results, Results]] = [step(feed, asked)]
        losses.add(results[0][0][program.loss_output], epoch, begun)
    else:
        asked.over = True
        results = several = step.several([batch.feed.feed for batch in found], room)
        losses.add(several.stacked(program.loss_output), epoch, begun, len(found))
    for batch in found:
        progress.advance(batch)
    if paced and step.compiled > compiled:
        run.together.interrupt()
    quick = sum(batch.seconds for batch in found) < _SLOW and not progress.reads_once
    if quick:  # while the device works
        _read_ahead(run, batches, wanted)
        if len(found) > 1:
            _place_ahead(program, first.feed.program, batches, room)
    _tell(run, program, feed, found, results)
    if not quick:  # who waits for the end of this step need not wait for a slow reader as well
        _read_ahead(run, batches, wanted)
        run.handlers.waits.look(batches.seconds, losses.idle)
    return results


def _tell(
    run: Run,
    program: ProgramRun,
    feed: Mapping[str, Any],
    found: Sequence[Prefetched],
    results: Sequence[tuple[Results, Results]],
) -> None:
    """Tell handlers of the steps of one call, the beginning of the first excepted, of which they know already.

    Args:
      run: what this call of `train` works with.
      program: whose steps they were.
      feed: of the first.
      found: the minibatches of all.
      results: of all.
    """
    epoch = run.progress.epoch
    begun = run.progress.step - len(found)
    name = program.member.name
    begins = len(found) > 1 and run.handlers.hear(BeginStepEvent)
    for number, (batch, (metrics, fetched)) in enumerate(zip(found, results, strict=True)):
        if number:
            feed = batch.feed.feed
            if begins:
                over = program.step.ask(together=True)
                run.handlers(BeginStepEvent(epoch, begun + number, feed, batch.seconds, over, name))
        run.handlers(EndStepEvent(epoch, begun + number, metrics, fetched, program.examples(feed), name))


def _wanted(run: Run, program: ProgramRun, feed: Mapping[str, Any]) -> tuple[int, int]:
    """For how many steps one call has room, and how many are wanted in the next one."""
    room = run.together.room(program.member.program, feed, program.examples(feed))
    if room == 1:
        return 1, 1
    ahead = run.together.ahead(*run.handlers.steps_ahead())
    return room, int(max(1, min(room, ahead, run.checkpoints.steps_ahead())))


def _more(run: Run, program: ProgramRun, first: Prefetched, batches: Prefetcher, wanted: int) -> list[Prefetched]:
    """The minibatches behind the first that can go into one call with it, up to so many together."""
    _read_ahead(run, batches, wanted - 1)
    if run.stopping():
        return []
    if program.step.placed_ahead(first.feed.feed) >= wanted:
        return batches.take(wanted - 1)
    return batches.take(alike(first.feed, itertools.islice(batches.upcoming, wanted - 1)))


def _place_ahead(program: ProgramRun, number: int, batches: Prefetcher, room: int) -> None:
    """Put what the next call is fed with on the device, as far as the minibatches for it are there."""
    turns = list(itertools.islice(batches.upcoming, room))
    if turns and turns[0].program == number and (more := alike(turns[0], turns[1:])):
        program.step.place_ahead([turn.feed for turn in turns[: 1 + more]], room)


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
    return sum(program.step.compiled for program in run.programs)


def _read_ahead(run: Run, batches: Prefetcher, count: int) -> None:
    """Read the next minibatches, unless training ends here: then they would be lost to readers that are read once only.

    What follows a step does not wait for a reader that has nothing yet.
    """
    with run.signals.reading_ahead:
        for number in range(batches.ahead + 1, count + 1):
            if run.stopping() or run.signals.arrived is not None or not (run.progress.ready or run.agreement.needs_end):
                return
            batches.advance(number)
            if batches.ahead < number:
                return
