"""A handler that tests while training goes on."""

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fluid import errors
from fluid.core import Program, fitting
from fluid.metrics import Metrics, names_of
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Results
from fluid.trainer.evaluation.evaluate import request_of
from fluid.trainer.evaluation.values import Every, Interval, output_names, scalar_outputs, value_name
from fluid.trainer.events import BeginTrainEvent, EndEpochEvent, EndStepEvent
from fluid.trainer.handlers import Handler
from fluid.trainer.programs import ProgramFunction

if TYPE_CHECKING:
    from fluid.optimizer.averages import Average


@fitting("fluid.handlers.TestEvery")
class TestEvery(Handler):
    """Tests at regular intervals, and announces the numbers of the result as `test_loss` and so on.

    These are the scalars that the program returns, and the numbers of the metrics.

    Args:
      reader: as in `Trainer.test`.
      every: a number of steps, or "epoch", "2 epochs" ...
      metrics: as in `Trainer.test`. Those with `parts` announce one number for each, such as `test_chunks_f1` of
        `{"chunks": ChunkEvaluator().of(...)}`.
      feed_order: as in `Trainer.test`.
      name: stands before the names of the values.
      program: which of several programs is tested; its values are announced as `test_generator/loss` then.
      average: an average of the parameters that the program or its optimizer keeps, such as an
        ExponentialMovingAverage: it is tested, and what other handlers save of it is the average too.

    Raises:
      ArgumentError: two numbers would have one name; or, from `train`, nothing keeps the average, a metric has the name
        of an output, or it gives more or fewer numbers than its `parts` name.
      ArgumentTypeError: something is no metric, or was not told what to read.
      UnknownNameError: from `train`: a metric reads what the program does not have.

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
        metrics: Metrics | None = None,
        feed_order: FeedOrder = None,
        name: str = "test",
        average: "Average | None" = None,
        program: str | ProgramFunction | None = None,
    ):
        if average is not None:
            _check_is_average(average)
        self._reader = reader
        self._every = Every(every, "TestEvery")
        self._metrics = _checked(metrics or {})
        self._feed_order = feed_order
        self._name = name
        self._average = average
        self._program = program

    def measures(self) -> list[str]:
        """The names of the program's scalars, and of the numbers of the metrics."""
        return [name for names in self._names().values() for name in names]

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Refuse metrics and averages that the program has not."""
        request_of(self._tested, self._metrics)
        if self._average is not None:
            self._average.values(self.trainer)

    def steps_ahead(self) -> float:
        """Up to the step after which it is due."""
        return self._every.steps_left(self.done)

    def end_step(self, event: EndStepEvent) -> None:
        """Test, if it is due."""
        if self._every.at_step(self.done):
            self._test(event.epoch, event.step)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Test, if it is due."""
        if self._every.at_epoch(event):
            self._test(event.epoch, event.steps - 1)

    def _test(self, epoch: int, step: int) -> None:
        """Test, and announce the result while the parameters are those that were tested."""
        with contextlib.nullcontext() if self._average is None else self._average.apply(self.trainer):
            results = self.trainer._evaluate(self._reader, self._feed_order, self._metrics, self._program, rows=False)
            self.announce(epoch, step, self._numbers(results))

    def _numbers(self, results: Results) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for place, names in self._names().items():
            numbers = [n for leaf in jax.tree.leaves(results[place]) for n in self._each(leaf)]
            if len(numbers) != len(names):
                raise errors.ArgumentError(
                    f"TestEvery: a metric gave {len(numbers)} numbers, expected {len(names)}: {', '.join(names)}. Its "
                    f'class names the numbers that eval returns, as in parts = ("precision", "recall")'
                )
            values.update(zip(names, numbers, strict=True))
        return values

    def _each(self, leaf: Any) -> np.ndarray:
        """The numbers of one value of a test; in a population each is an array `[members]`."""
        members = self.trainer.session.engine.members
        return np.ravel(leaf) if members is None else np.reshape(leaf, (members, -1)).T

    def _names(self) -> dict[int, list[str]]:
        """The names of the numbers of each result of a test, by the place of the result."""
        program = self._tested
        first = len(output_names(program))
        measured = {first + i: numbers for i, numbers in enumerate(_numbers_of(self._metrics))}
        named = {place: [name] for name, place in scalar_outputs(program).items()} | measured
        every = self.trainer.programs
        return {
            place: [f"{self._name}_{value_name(every, program.name, name)}" for name in names]
            for place, names in named.items()
        }

    @property
    def _tested(self) -> Program:
        """The program that is tested."""
        return self.trainer._member(self._program, "test").program


def _numbers_of(metrics: Metrics) -> list[list[str]]:
    """The names of the numbers that each metric gives."""
    return [[f"{name}_{part}" for part in metric.parts] or [name] for name, metric in metrics.items()]


def _checked(metrics: Metrics) -> Metrics:
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


def _check_is_average(average: Any) -> None:
    from fluid.optimizer.averages import Average  # few tests need it

    if not isinstance(average, Average):
        raise errors.ArgumentTypeError(
            f"TestEvery(average={average!r}): expected an average of the parameters, as in "
            f"average=fluid.optimizer.ExponentialMovingAverage(0.999), which tracks the optimizer"
        )
