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
from fluid.trainer.checkpoint import NoCheckpoints
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
)
from fluid.trainer.handlers import Onion
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
      progress: where training is, kept up to date.
      convert: makes a feed of a minibatch.
      handlers: told of every event.
      stopping: asked after each step whether to end.
      checkpoints: told when something can be saved.
      signals: hold what interrupts training until it can do no harm.
    """

    step: BoundStep
    progress: Progress
    convert: Callable[[Any, int], Any]
    handlers: Onion
    stopping: Callable[[], bool]
    checkpoints: NoCheckpoints
    signals: Signals


def train(run: Run, num_epochs: int) -> None:
    """Run epochs of steps, tell the handlers, save checkpoints.

    Args:
      run: what there is.
      num_epochs: how many passes, those included that were done before.
    """
    progress, handlers, error = run.progress, run.handlers, None
    try:
        with run.checkpoints:
            handlers.enter(BeginTrainEvent(num_epochs))
            while progress.epoch < num_epochs and not run.stopping():
                handlers(BeginEpochEvent(progress.epoch, progress.step))
                compiled = run.step.compiled
                _epoch(run)
                completed, compiled = not run.stopping(), run.step.compiled - compiled
                event = EndEpochEvent(
                    progress.epoch, progress.step, completed, compiled, run.step.buckets.take_padding()
                )
                if event.feeding:
                    log.info("epoch %d: %s", event.epoch, event.feeding)
                handlers(event)
                if completed:
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


def _epoch(run: Run) -> None:
    progress, handlers, signals = run.progress, run.handlers, run.signals
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
            handlers(EndStepEvent(progress.epoch, progress.step - 1, metrics))
            run.checkpoints.after_step(metrics)
            signals.check()
            if run.stopping():
                break
            if len(under_way) > IN_FLIGHT:
                _wait_for_half(under_way)
    finally:
        batches.close()


def _wait_for_half(under_way: deque[Any]) -> None:
    """Wait for the older half of the steps at once: to be woken for each would take a CPU from the device each time."""
    while len(under_way) > IN_FLIGHT // 2 + 1:
        under_way.popleft()
    jax.block_until_ready(under_way.popleft())


def evaluate(step: BoundStep, batches: Iterable[Any]) -> list[Any]:
    """Combine the outputs of a program over all minibatches.

    Scalars are weighed by what each was a mean over, and added up in float64; other outputs are concatenated in order.

    Args:
      step: the compiled step of a weighed request.
      batches: with an attribute `feed` each.

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
    """Feed metrics with the values they read, one minibatch after another.

    Args:
      step: the compiled step of a request that fetches `names_of(metrics)`.
      batches: with an attribute `feed` each.
      metrics: by name; fresh ones are made of them.

    Returns:
      One result for each.
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
