"""Tests during training, and the handlers that `Trainer.train` adds to the handlers of the user."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fluid import errors
from fluid.core import Program, fitting
from fluid.metrics import Metrics, names_of
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Results
from fluid.trainer.checkpoint import Checkpoints
from fluid.trainer.evaluation.evaluate import request_of
from fluid.trainer.evaluation.history import History, HistoryKeeper
from fluid.trainer.evaluation.means import output_names, scalar_outputs, value_name
from fluid.trainer.evaluation.monitor import AUTO, SaveBest, direction
from fluid.trainer.events import BeginTrainEvent, EndEpochEvent, EndStepEvent, EventHandler
from fluid.trainer.every import Every, Interval
from fluid.trainer.handlers import Handler
from fluid.trainer.no_updates import NoUpdates
from fluid.trainer.programs import ProgramFunction

if TYPE_CHECKING:
    from fluid.optimizer.averages import Average

RestoreBest = bool | str | tuple[str, str]
"""The type of `train(restore_best=)`: True, False, the name of a value, or a pair of a name and "min" or "max"."""


@fitting("fluid.handlers.TestEvery")
class TestEvery(Handler):
    """A handler that tests at regular intervals, and reports the numbers of the results as `test_loss` and so on.

    The numbers are the scalars that the program returns, and the numbers of the metrics.

    Args:
      reader: as in `Trainer.test`.
      every: the interval: a number of steps, or "epoch", "2 epochs" ...
      metrics: as in `Trainer.test`. A metric with `parts` reports one number for each part, such as `test_chunks_f1`
        for `{"chunks": ChunkEvaluator().of(...)}`.
      feed_order: as in `Trainer.test`.
      name: the prefix of the names of the values.
      program: the program to test, if there are several; its values are then named like `test_generator/loss`.
      average: an average of the parameters that the program or its optimizer computes, such as an
        ExponentialMovingAverage. Tests use the average; handlers that save the best parameters save the average.

    Raises:
      ArgumentError: two numbers would have one name. From `train`: the program and its optimizer do not compute
        the average, a metric has the name of an output, or a metric returns more or fewer numbers than its `parts`.
      ArgumentTypeError: an entry is not a metric, or has no inputs.
      UnknownNameError: from `train`: a metric reads a value that the program does not have.

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

    __test__ = False  # pytest collects classes whose names begin with Test; this attribute excludes TestEvery

    def __init__(
        self,
        reader: ReaderLike,
        every: Interval = "epoch",
        metrics: Metrics | None = None,
        feed_order: FeedOrder = None,
        name: str = "test",
        average: Average | None = None,
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
        """Return the names of the reported values: the program's scalars, then the numbers of the metrics."""
        return [name for names in self._names().values() for name in names]

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Raise an error if the program lacks a value for a metric, or does not compute the requested average."""
        request_of(self._tested, self._metrics)
        if self._average is not None:
            self._average.values(self.trainer)

    def end_step(self, event: EndStepEvent) -> None:
        """Run a test if the interval is in steps and ends with the current step."""
        if self._every.at_step(self.done):
            self._test(event.epoch, event.step)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Run a test if the interval is in epochs and ends with the current epoch."""
        if self._every.at_epoch(event):
            self._test(event.epoch, event.steps - 1)

    def _test(self, epoch: int, step: int) -> None:
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
        """Return the numbers in one result of a test as a list of scalars, in an array.

        In a population (several trainings at once), each number is an array `[members]`.
        """
        members = self.trainer.session.engine.members
        return np.ravel(leaf) if members is None else np.reshape(leaf, (members, -1)).T

    def _names(self) -> dict[int, list[str]]:
        """Return a dict from the index of each result of a test to the names under which its numbers are reported."""
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
        return self.trainer._input(self._program, "test").program


class Tests(NamedTuple):
    """The arguments of one call of `train` that configure its tests.

    Attributes:
      reader: the reader of test data, or a dict of readers by program name; None for no tests.
      every: the interval of the tests.
      metrics: the metrics to compute in addition to the outputs of the program.
      feed_order: as in `Trainer.train`.
    """

    reader: ReaderLike | Mapping[str, ReaderLike] | None
    every: Interval
    metrics: Metrics | None
    feed_order: FeedOrder


class Validation:
    """The tests, the History and the best parameters of a Trainer; a resumed training continues all of them."""

    def __init__(self, trainer: Any, checkpoints: Checkpoints | None):
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._best: _BestOfCall | None = None
        self.keeper = HistoryKeeper()

    @property
    def history(self) -> History:
        """The history of the last call of `train`."""
        return self.keeper.history

    def around(
        self, handlers: Sequence[Handler | EventHandler], tests: Tests, best: RestoreBest
    ) -> Sequence[Handler | EventHandler]:
        """Return all handlers of a call of `train`: handlers of the Trainer before and after the handlers of the user.

        Raises:
          ArgumentError: an argument is invalid, or needs another argument.
        """
        if tests.reader is None and tests.metrics is not None:
            raise errors.ArgumentError(
                "train(metrics=...) needs what to test on: train(..., test_reader=test_reader, metrics=...)"
            )
        inner: list[Handler] = []
        if best:
            inner.append(self._best_of(best))
        inner += self._tests(tests)
        if self._checkpoints is not None:
            inner += self._checkpoints.handlers()
        return [self.keeper, NoUpdates(), *handlers, *inner]

    def _tests(self, tests: Tests) -> list[Handler]:
        """Return one TestEvery for each program with a reader of test data; an empty list without such a reader."""
        several = len(self._trainer.programs) > 1
        if several and isinstance(tests.reader, Mapping):
            if tests.metrics is not None:
                raise errors.ArgumentError(
                    "train(test_reader={...}, metrics=...): which program the metrics are of is not said; write "
                    "handlers=[fluid.handlers.TestEvery(reader, metrics=..., program=...)]"
                )
            return [TestEvery(reader, tests.every, program=name) for name, reader in tests.reader.items()]
        if tests.reader is None:
            return []
        return [TestEvery(tests.reader, tests.every, tests.metrics, tests.feed_order)]

    def _best_of(self, best: RestoreBest) -> _BestOfCall:
        """Return the handler that restores the best parameters after training.

        Consecutive calls of `train` that name one value share one handler. So a call that continues an interrupted call
        also keeps the best value of the interrupted call.
        """
        programs = list(self._trainer.programs)
        if best is True and len(programs) > 1:
            raise errors.ArgumentError(
                f"train(restore_best=True): there are the test losses of several programs; name one, as in "
                f'restore_best="test_{programs[0]}/loss"'
            )
        if best is True:
            best = (f"test_{output_names(self._trainer.program)[0]}", "min")
        monitor, mode = _pair(best)
        if self._best is None or not self._best.follows(monitor, mode):
            folder = None if self._checkpoints is None else self._checkpoints.folder
            if folder is not None and not folder.is_local:
                raise errors.ArgumentError(
                    f"train(restore_best=...) keeps its parameters beside the checkpoints, expected that these lie in "
                    f"a folder and not in {folder.name!r}; keep the best checkpoint instead: fluid.CheckpointConfig("
                    f'{folder.name!r}, keep_best=("{monitor}", "{mode}")), and trainer.restore("best")'
                )
            path = None if folder is None else folder.path / "best.params"
            self._best = _BestOfCall(path, monitor, mode, restore=True)
        return self._best


class _BestOfCall(SaveBest):
    """A handler that restores the best parameters of one call of `train`, also if the call was resumed."""

    asked_by = "train(restore_best=...)"

    def begin_train(self, event: BeginTrainEvent) -> None:
        if not event.resumed:
            self._forget()
        super().begin_train(event)

    def follows(self, monitor: str, mode: str) -> bool:
        return self.monitor == monitor and self._mode == mode


def _pair(best: Any) -> tuple[str, str]:
    """Check the argument `restore_best`; return the name of the value to follow, and "min" or "max"."""
    monitor, mode = best if isinstance(best, tuple) and len(best) == 2 else (best, AUTO)
    if not isinstance(monitor, str) or mode not in ("min", "max", AUTO):
        raise errors.ArgumentError(
            f"train(restore_best={best!r}): expected True for the test loss, the name of a value, or a name and which "
            f'way is better: restore_best=("test_accuracy", "max")'
        )
    return monitor, direction(monitor, mode, lambda mode: f"train(restore_best={(monitor, mode)!r})")


def _numbers_of(metrics: Metrics) -> list[list[str]]:
    return [[f"{name}_{part}" for part in metric.parts] or [name] for name, metric in metrics.items()]


def _checked(metrics: Metrics) -> Metrics:
    """Check the types and names of the metrics; return the metrics as a dict."""
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
    from fluid.optimizer.averages import Average  # imported only when needed, because few tests use an average

    if not isinstance(average, Average):
        raise errors.ArgumentTypeError(
            f"TestEvery(average={average!r}): expected an average of the parameters, as in "
            f"average=fluid.optimizer.ExponentialMovingAverage(0.999), which tracks the optimizer"
        )
