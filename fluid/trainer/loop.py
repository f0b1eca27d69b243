"""The training loop and the evaluation loop, each readable from top to bottom."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid.core import NestedSequenceBatch, SequenceBatch, warn
from fluid.metrics import MetricBase
from fluid.reader.prefetch import Prefetcher
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
# Seconds that reading a minibatch may take for the loop to do it before it tells handlers of the end of a step.
_SLOW = 0.02

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
      pausing: whether it shall then be possible to continue with the next minibatch, in this process.
      checkpoints: are told when something can be saved.
      signals: hold back Ctrl-C and SIGTERM until they can do no harm.
    """

    step: BoundStep
    progress: Progress
    convert: Callable[[Any, int], Any]
    handlers: Dispatcher
    stopping: Callable[[], bool]
    pausing: Callable[[], bool]
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
    losses = Losses()
    error: BaseException | None = None
    try:
        with run.checkpoints:
            handlers.enter(BeginTrainEvent(num_epochs))
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
    compiled_before = run.step.compiled
    loss_output = run.step.loss_output
    with signals.at_once:
        batches = progress.start_pass(run.convert)
        batches.advance()
    try:
        for batch in batches:
            handlers(BeginStepEvent(progress.epoch, progress.step, batch.feed, batch.seconds))
            metrics, fetched = run.step.and_also(batch.feed)
            losses.add(metrics[loss_output], progress.epoch, progress.step)
            progress.advance(batch)
            quick = batch.seconds < _SLOW and not progress.reads_once
            if quick:  # while the device works
                _read_ahead(run, batches)
            handlers(EndStepEvent(progress.epoch, progress.step - 1, metrics, fetched))
            if not quick:  # who waits for the end of this step need not wait for a slow reader as well
                _read_ahead(run, batches)
            progress.last = batches.ended
            run.checkpoints.after_step(metrics)
            signals.check()
            if run.stopping():
                break
            losses.wait_for_half()
    finally:
        if run.pausing():
            progress.keep_pass(batches)
        else:
            batches.close()
    return EndEpochEvent(
        progress.epoch,
        progress.step,
        completed=not run.stopping(),
        compiled=run.step.compiled - compiled_before,
        padding=run.step.buckets.take_padding(),
    )


def _read_ahead(run: Run, batches: Prefetcher) -> None:
    """Read the next minibatch, unless training ends here: then it would be lost to readers that are read once only."""
    if not run.stopping() and run.signals.arrived is None:
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
            warn(
                f"the loss is {np.ravel(loss)[0]} in step {step} of epoch {epoch}, so training computes with numbers "
                f"that are not finite; handlers=[fluid.handlers.TerminateOnNaN(report=True)] ends it at the step that "
                f"made the first one, and says which layer, line and rows it came from"
            )


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
            metric.update(**{argument: jax.device_get(values[name]) for argument, name in metric.inputs.items()})
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
