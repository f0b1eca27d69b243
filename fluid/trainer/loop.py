"""The training loop, readable from top to bottom."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid.core import TRAIN, warn
from fluid.reader.buckets import padding_of
from fluid.reader.prefetch import Prefetcher
from fluid.session import Request, Results, Session
from fluid.session.results import IN_FLIGHT
from fluid.trainer.asking import AskableStep
from fluid.trainer.checkpoint import CheckpointHooks
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
    """

    member: Member
    step: AskableStep
    batch_feed: str | None


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
        runs.append(ProgramRun(member, step, next((n for n, spec in feeds.items() if spec.shape[:1] == (None,)), None)))
    return runs


def train(run: Run, num_epochs: int) -> None:
    """Run epochs of steps, tell the handlers, save checkpoints.

    Args:
      run: the step, the handlers, and whatever else this call of `train` has.
      num_epochs: how many passes over the reader, those included that were done before an interruption.
    """
    progress = run.progress
    handlers = run.handlers
    losses = Losses()
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


def _epoch(run: Run, losses: "Losses") -> EndEpochEvent:
    """Run the steps of one epoch, or of what an interruption has left of it; returns the event of its end."""
    progress = run.progress
    handlers = run.handlers
    signals = run.signals
    compiled_before = _compiled(run)
    with signals.at_once:
        batches = progress.start_pass(run.convert)
        batches.advance()
    try:
        ended = run.agreement.before_epoch(progress.epoch, batches)
        for batch in () if ended else batches:
            turn: Turn = batch.feed
            program = run.programs[turn.program]
            name = program.member.name
            feed = program.member.fed(turn.feed)
            asked = program.step.ask()
            handlers(BeginStepEvent(progress.epoch, progress.step, feed, batch.seconds, asked, name))
            metrics, fetched = program.step(feed, asked)
            losses.add(metrics[program.step.loss_output], progress.epoch, progress.step)
            progress.advance(batch)
            quick = batch.seconds < _SLOW and not progress.reads_once
            if quick:  # while the device works
                _read_ahead(run, batches)
            examples = 1 if program.batch_feed is None else feed[program.batch_feed].shape[0]
            handlers(EndStepEvent(progress.epoch, progress.step - 1, metrics, fetched, examples, name))
            if not quick:  # who waits for the end of this step need not wait for a slow reader as well
                _read_ahead(run, batches)
            progress.last = run.agreement.after_step(progress.epoch, progress.step, batches)
            run.checkpoints.after_step(metrics, name)
            signals.check()
            if run.stopping() or (progress.last and not batches.ended):
                break
            losses.wait_for_half()
    finally:
        if run.pausing():
            progress.keep_pass(batches)
        else:
            batches.close()
    return _end_of_epoch(run, _compiled(run) - compiled_before)


def _end_of_epoch(run: Run, compiled: int) -> EndEpochEvent:
    """The event of the end of an epoch in which so many compilations happened."""
    return EndEpochEvent(
        run.progress.epoch,
        run.progress.step,
        completed=not run.stopping(),
        compiled=compiled,
        padding=padding_of([program.step.buckets for program in run.programs]),
        metrics=run.epoch_metrics(),
    )


def _compiled(run: Run) -> int:
    """How often the steps were compiled so far."""
    return sum(program.step.compiled for program in run.programs)


def _read_ahead(run: Run, batches: Prefetcher) -> None:
    """Read the next minibatch, unless training ends here: then it would be lost to readers that are read once only.

    What follows a step does not wait for a reader that has nothing yet.
    """
    if not run.stopping() and run.signals.arrived is None and (run.progress.ready or run.agreement.needs_end):
        with run.signals.reading_ahead:
            batches.advance()


class Losses:
    """The losses of the steps that the device still works on; waits for them, and warns when one is not finite.

    Example:
      >>> losses = Losses()
      >>> losses.add(jax.numpy.float32(0.5), epoch=0, step=0)
      >>> losses.wait_for_all()
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[Any, int, int]] = deque()
        self._warned = False

    def add(self, loss: Any, epoch: int, step: int) -> None:
        """Note the loss of a step that was started."""
        self._under_way.append((loss, epoch, step))

    def wait_for_half(self) -> None:
        """When too many steps are under way, wait for the older half at once.

        Waking up for each would take CPU time from the device. Only the loss that was waited for is looked at.
        """
        if len(self._under_way) > IN_FLIGHT:
            while len(self._under_way) > IN_FLIGHT // 2 + 1:
                self._under_way.popleft()
            self._settle(*self._under_way.popleft())

    def wait_for_all(self) -> None:
        """Wait for the last step."""
        if self._under_way:
            self._settle(*self._under_way[-1])
            self._under_way.clear()

    def _settle(self, loss: Any, epoch: int, step: int) -> None:
        jax.block_until_ready(loss)
        if not self._warned and not np.isfinite(loss).all():
            self._warned = True
            warn(_lost(np.ravel(loss), f"in step {step} of epoch {epoch}"))


def _lost(losses: np.ndarray, where: str) -> str:
    """What to say of a loss that is not finite, or of those of a population, one for each member."""
    lost = np.flatnonzero(~np.isfinite(losses))
    if len(losses) > 1:
        members = ", ".join(map(str, lost))
        return (
            f"the loss of member {members} is {losses[lost[0]]} {where}; what is not finite stays with it, and "
            f"the others go on. population.stop([{members}]) in a handler ends its training"
        )
    return (
        f"the loss is {losses[0]} {where}, so training computes with numbers "
        f"that are not finite; handlers=[fluid.handlers.TerminateOnNaN(report=True)] ends it at the step that "
        f"made the first one, and says which layer, line and rows it came from"
    )
