"""Validation: the handlers that `Trainer.train` adds to those of the user."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluid import errors
from fluid.metrics import Metrics
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.trainer.checkpoint import Checkpoints
from fluid.trainer.evaluation.direction import AUTO, direction
from fluid.trainer.evaluation.history import History, HistoryKeeper
from fluid.trainer.evaluation.monitor import SaveBest
from fluid.trainer.evaluation.testing import TestEvery
from fluid.trainer.evaluation.values import Interval, output_names
from fluid.trainer.events import BeginTrainEvent, EventHandler
from fluid.trainer.handlers import Handler
from fluid.trainer.no_updates import NoUpdates

RestoreBest = bool | str | tuple[str, str]
"""The argument `restore_best=`: whether; or the name of a value that says which way is better; or name and mode."""


class Tests(NamedTuple):
    """What one call of `train` says of tests.

    Attributes:
      reader: what is tested on, or one for each program that is tested, by its name; None for no tests.
      every: how often.
      metrics: besides the outputs of the program.
      feed_order: as in `Trainer.train`.
    """

    reader: ReaderLike | Mapping[str, ReaderLike] | None
    every: Interval
    metrics: Metrics | None
    feed_order: FeedOrder


class Validation:
    """What a Trainer measures by itself while it trains. It is kept over an interruption.

    Args:
      trainer: the Trainer.
      checkpoints: of the trainer, if it has some; the best parameters are kept in their folder, else in memory.
    """

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
        """The handlers of a call of `train`, with those that are added to them.

        Args:
          handlers: the user's, outermost first; a plain function is the innermost.
          tests: what shall be tested.
          best: the argument `restore_best`.

        Raises:
          ArgumentError: an argument is of no use without another one, or makes no sense.
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
        """The handlers that test: one for each program that has a reader."""
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

    def _best_of(self, best: RestoreBest) -> "_BestOfCall":
        """The handler that goes back to the best parameters; that of the call before, if that wanted the same."""
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
    """Goes back to the best parameters of one call of `train`, also when that is interrupted and continued."""

    asked_by = "train(restore_best=...)"

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Forget what an earlier call has measured."""
        if not event.resumed:
            self._forget()
        super().begin_train(event)

    def follows(self, monitor: str, mode: str) -> bool:
        """Whether this is about such a value."""
        return self.monitor == monitor and self._mode == mode


def _pair(best: Any) -> tuple[str, str]:
    """Check `restore_best`; return the name of the value, and "min" or "max"."""
    monitor, mode = best if isinstance(best, tuple) and len(best) == 2 else (best, AUTO)
    if not isinstance(monitor, str) or mode not in ("min", "max", AUTO):
        raise errors.ArgumentError(
            f"train(restore_best={best!r}): expected True for the test loss, the name of a value, or a name and which "
            f'way is better: restore_best=("test_accuracy", "max")'
        )
    return monitor, direction(monitor, mode, lambda mode: f"train(restore_best={(monitor, mode)!r})")
