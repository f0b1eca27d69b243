"""The training loop and the evaluation loop, each readable from top to bottom."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid.core import NestedSequenceBatch, SequenceBatch
from fluid.metrics import MetricBase
from fluid.session import BoundStep
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
      progress: the position of training; the loop keeps it up to date.
      convert: makes a feed of a minibatch and its number in the epoch.
      handlers: deliver every event.
      stopping: asked after each step whether training shall end.
      checkpoints: are told when something can be saved.
      signals: hold back Ctrl-C and SIGTERM until they can do no harm.
    """

    step: BoundStep
    progress: Progress
    convert: Callable[[Any, int], Any]
    handlers: Dispatcher
    stopping: Callable[[], bool]
    checkpoints: CheckpointHooks
    signals: Signals


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
            handlers.enter(BeginTrainEvent(num_epochs))
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
            metrics, fetched = run.step.and_also(batch.feed)
            under_way.append(metrics[0])
            progress.advance(batch)
            if not run.stopping() and signals.arrived is None:
                with signals.reading_ahead:  # while the device works
                    batches.advance()
            progress.last = batches.ended
            handlers(EndStepEvent(progress.epoch, progress.step - 1, metrics, fetched))
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
    )


def _wait_for_half(under_way: deque[Any]) -> None:
    """Wait for the older half of the steps at once: waking up for each would take CPU time from the device."""
    while len(under_way) > IN_FLIGHT // 2 + 1:
        under_way.popleft()
    jax.block_until_ready(under_way.popleft())


def evaluate(step: BoundStep, batches: Iterable[Any]) -> list[Any]:
    """Combine the outputs of a program over all minibatches.

    The mean of a scalar is weighted by the number of elements that each minibatch's value was a mean over, and summed
    in float64; other outputs are concatenated in order.

    Args:
      step: the compiled step of a request with `weighted=True`.
      batches: converted minibatches, each with an attribute `feed`.

    Returns:
      One NumPy array for each output.
    """
    totals: list[_Total] = []
    under_way: deque[Any] = deque()

    def collect() -> None:
        outputs, weights = under_way.popleft()
        if not totals:
            totals.extend(_Total() for _ in outputs)
        for total, value, weight in zip(totals, outputs, weights, strict=True):
            total.add(value, weight)

    for batch in batches:
        under_way.append(step.raw(batch.feed))
        if len(under_way) > IN_FLIGHT:
            collect()
    while under_way:
        collect()
    return [total.result() for total in totals]


def measure(step: BoundStep, batches: Iterable[Any], metrics: Mapping[str, MetricBase]) -> list[Any]:
    """Feed metrics with the values that they read, one minibatch after another.

    Args:
      step: the compiled step of a request that fetches `names_of(metrics)`.
      batches: converted minibatches, each with an attribute `feed`.
      metrics: by name; copies of them are used, so that they stay as they are.

    Returns:
      The result of each metric.
    """
    fresh = [metric.of(**metric.inputs) for metric in metrics.values()]
    for batch in batches:
        values = step(batch.feed)
        for metric in fresh:
            metric.update(**{argument: np.asarray(values[name]) for argument, name in metric.inputs.items()})
    return [metric.eval() for metric in fresh]


class _Total:
    """The running combination of one output."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.weights: list[float] = []
        self.parts: list[Any] = []

    def add(self, value: Any, weight: Any) -> None:
        if weight is None:
            self.parts.append(jax.device_get(value))
        else:
            self.weights.append(float(weight))
            self.values.append(float(value) * self.weights[-1])

    def result(self) -> Any:
        if self.parts:
            if isinstance(self.parts[0], SequenceBatch | NestedSequenceBatch):
                return type(self.parts[0]).from_rows([row for part in self.parts for row in part.rows()])
            return np.concatenate(self.parts)
        weight = math.fsum(self.weights)
        return np.float64(math.fsum(self.values) / weight if weight else math.nan)
