"""A handler that tests while training goes on."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.handlers.values import Every, Interval, scalar_outputs
from fluid.metrics import MetricBase, names_of
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.trainer import EndEpochEvent, EndStepEvent, Handler


class TestEvery(Handler):
    """Tests at regular intervals, and announces the numbers of the result as `test_loss` and so on.

    Args:
      reader: as in `Trainer.test`.
      every: a number of steps, or "epoch", "2 epochs" ...
      metrics: as in `Trainer.test`. Those with `parts` announce one number for each, such as `test_chunks_f1` of
        `{"chunks": ChunkEvaluator().of(...)}`.
      feed_order: as in `Trainer.test`.
      name: stands before the names of the values.

    Raises:
      ArgumentError: two numbers would have one name; or, from `train`, a metric gives more or fewer numbers than its
        `parts` name.
      ArgumentTypeError: something is no metric, or was not told what to read.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> testing = fluid.handlers.TestEvery(reader, every=2)
      >>> trainer = fluid.train(program, reader, handlers=[testing])
      >>> testing.measures()
      ['test_loss']
    """

    __test__ = False  # pytest takes classes of such a name for tests

    def __init__(
        self,
        reader: ReaderLike,
        every: Interval = "epoch",
        metrics: Mapping[str, MetricBase] | None = None,
        feed_order: FeedOrder = None,
        name: str = "test",
    ):
        self._reader = reader
        self._every = Every(every, "TestEvery")
        self._metrics = None if metrics is None else _checked(metrics)
        self._feed_order = feed_order
        self._name = name

    def measures(self) -> list[str]:
        """The names of the program's scalars, or of the numbers of the metrics."""
        return [name for names in self._names().values() for name in names]

    def end_step(self, event: EndStepEvent) -> None:
        """Test, if it is due."""
        if self._every.at_step(self.done):
            self._test(event.epoch, event.step)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Test, if it is due."""
        if self._every.at_epoch(event):
            self._test(event.epoch, event.steps - 1)

    def _test(self, epoch: int, step: int) -> None:
        results = self.trainer.test(self._reader, self._feed_order, self._metrics)
        values: dict[str, Any] = {}
        for place, names in self._names().items():
            numbers = [n for leaf in jax.tree.leaves(results[place]) for n in np.ravel(leaf)]
            if len(numbers) != len(names):
                raise errors.ArgumentError(
                    f"TestEvery: a metric gave {len(numbers)} numbers, expected {len(names)}: {', '.join(names)}. Its "
                    f'class names the numbers that eval returns, as in parts = ("precision", "recall")'
                )
            values.update(zip(names, numbers, strict=True))
        self.announce(epoch, step, values)

    def _names(self) -> dict[int, list[str]]:
        """The names of the numbers of each result of a test, by the place of the result."""
        if self._metrics is None:
            return {place: [f"{self._name}_{name}"] for name, place in scalar_outputs(self.trainer.program).items()}
        names = _numbers_of(self._metrics)
        return {place: [f"{self._name}_{number}" for number in numbers] for place, numbers in enumerate(names)}


def _numbers_of(metrics: Mapping[str, MetricBase]) -> list[list[str]]:
    """The names of the numbers that each metric gives."""
    return [[f"{name}_{part}" for part in metric.parts] or [name] for name, metric in metrics.items()]


def _checked(metrics: Mapping[str, MetricBase]) -> Mapping[str, MetricBase]:
    """The metrics, if all of them can be used and announced."""
    names_of(metrics)
    numbers = [number for numbers in _numbers_of(metrics) for number in numbers]
    twice = [number for number in numbers if numbers.count(number) > 1]
    if twice:
        raise errors.ArgumentError(
            f"TestEvery would announce two numbers as {twice[0]!r}; give the metrics names of their own, as in "
            f'fluid.metrics.Precision("first")'
        )
    return metrics
