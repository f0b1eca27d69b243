"""The training loop and the evaluation loop, each readable from top to bottom."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from fluid.core import SequenceBatch
from fluid.metrics import MetricBase
from fluid.reader.prefetch import Prefetcher
from fluid.session import BoundStep
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
)
from fluid.trainer.handlers import Onion

# Steps that may be under way on the device before the loop waits for the oldest: enough to keep it busy, few enough
# that memory and the delay of an error stay small.
IN_FLIGHT = 4


def train(
    step: BoundStep,
    passes: Callable[[], Prefetcher],
    num_epochs: int,
    handlers: Onion,
    stopping: Callable[[], bool],
) -> None:
    """Run epochs of steps, and tell the handlers.

    Args:
      step: the compiled step.
      passes: starts a pass over the reader.
      num_epochs: how many passes.
      handlers: told of every event.
      stopping: asked after each step whether to end.
    """
    completed, error = 0, None
    try:
        handlers.enter(BeginTrainEvent(num_epochs))
        for epoch in range(num_epochs):
            if stopping():
                break
            handlers(BeginEpochEvent(epoch))
            steps = _epoch(step, passes(), epoch, handlers, stopping)
            stopped = stopping()
            handlers(EndEpochEvent(epoch, steps, completed=not stopped))
            completed += not stopped
    except BaseException as raised:
        error = raised
        raise
    finally:
        handlers.leave(EndTrainEvent(completed, stopped=stopping(), error=error))


def _epoch(
    step: BoundStep,
    batches: Prefetcher,
    epoch: int,
    handlers: Onion,
    stopping: Callable[[], bool],
) -> int:
    under_way: deque[Any] = deque()
    count = 0
    try:
        for batch in batches:
            handlers(BeginStepEvent(epoch, count))
            metrics = step(batch.feed)
            under_way.append(metrics[0])
            if not stopping():
                batches.advance()  # the next minibatch is read and converted while the device works
            handlers(EndStepEvent(epoch, count, metrics))
            count += 1
            if stopping():
                break
            if len(under_way) > IN_FLIGHT:
                jax.block_until_ready(under_way.popleft())
    finally:
        batches.close()
    return count


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
            if isinstance(self.parts[0], SequenceBatch):
                return SequenceBatch.from_rows([row for part in self.parts for row in part.rows()])
            return np.concatenate(self.parts)
        weight = math.fsum(self.weights)
        return np.float64(math.fsum(self.values) / weight if weight else math.nan)
