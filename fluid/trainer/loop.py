"""The training loop, readable from top to bottom."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from fluid.session import BoundStep, Results
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
from fluid.trainer.resume import Progress
from fluid.trainer.signals import Signals

# Steps that may be under way on the device before the loop waits: enough to keep it busy, few enough that memory and
# the delay of an error stay small.
IN_FLIGHT = 8

log = logging.getLogger("fluid")


@dataclass
class Run:
    """What one call of `train` works with.

    Attributes:
      step: the compiled step.
      batch_feed: the name of a feed that has one row for each example; None if the program has none.
      progress: the position of training; the loop keeps it up to date.
      convert: makes a feed of a minibatch and its number in the epoch.
      handlers: deliver every event.
      stopping: asked after each step whether training shall end.
      checkpoints: are told when something can be saved.
      signals: hold back Ctrl-C and SIGTERM until they can do no harm.
      epoch_metrics: gives the scalars of the program over the epoch so far, without waiting for them.
    """

    step: BoundStep
    batch_feed: str | None
    progress: Progress
    convert: Callable[[Any, int], Any]
    handlers: Dispatcher
    stopping: Callable[[], bool]
    checkpoints: CheckpointHooks
    signals: Signals
    epoch_metrics: Callable[[], Results]


def train(run: Run, num_epochs: int) -> None:
    """Run epochs of steps, tell the handlers, save checkpoints.

    Args:
      run: the step, the handlers, and whatever else this call of `train` has.
      num_epochs: how many passes over the reader, those included that were done before an interruption.
    """
    progress = run.progress
    handlers = run.handlers
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
    except BaseException as raised:
        error = raised
        if "RESOURCE_EXHAUSTED" in str(raised):
            raised.add_note("the device has no memory left for this step; feed smaller minibatches: batch_size=...")
        raise
    finally:
        handlers.leave(EndTrainEvent(progress.epoch, stopped=run.stopping(), error=error))


def _epoch(run: Run) -> EndEpochEvent:
    """Run the steps of one epoch, or of what an interruption has left of it; returns the event of its end."""
    progress = run.progress
    handlers = run.handlers
    signals = run.signals
    compiled_before = run.step.compiled
    under_way: deque[Any] = deque()
    with signals.at_once:
        batches = progress.start_pass(run.convert)
        batches.advance()
    try:
        for batch in batches:
            handlers(BeginStepEvent(progress.epoch, progress.step, batch.feed, batch.seconds))
            metrics = run.step(batch.feed)
            under_way.append(metrics[0])
            progress.advance(batch)
            if not run.stopping() and signals.arrived is None:
                with signals.reading_ahead:  # while the device works
                    batches.advance()
            progress.last = batches.ended
            examples = 1 if run.batch_feed is None else batch.feed[run.batch_feed].shape[0]
            handlers(EndStepEvent(progress.epoch, progress.step - 1, metrics, examples))
            run.checkpoints.after_step(metrics)
            signals.check()
            if run.stopping():
                break
            if len(under_way) > IN_FLIGHT:
                _wait_for_half(under_way)
    finally:
        batches.close()
    return EndEpochEvent(
        progress.epoch,
        progress.step,
        completed=not run.stopping(),
        compiled=run.step.compiled - compiled_before,
        padding=run.step.buckets.take_padding(),
        metrics=run.epoch_metrics(),
    )


def _wait_for_half(under_way: deque[Any]) -> None:
    """Wait for the older half of the steps at once: waking up for each would take CPU time from the device."""
    while len(under_way) > IN_FLIGHT // 2 + 1:
        under_way.popleft()
    jax.block_until_ready(under_way.popleft())
