"""The class Loop, which adds handlers and a progress bar to a custom training loop over a Session."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid.core import TRAIN, Program, fitting, warn, warn_once, whole_number
from fluid.metrics import Metrics
from fluid.reader.adapters import nonempty
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.reader.prefetch import Feed, Feeds
from fluid.runtime import Request, Results, Session, bind
from fluid.runtime.fetch import check_feed, split_names
from fluid.trainer.device_calls import StepRequest
from fluid.trainer.evaluation.evaluate import DatasetEvaluator
from fluid.trainer.evaluation.history import History, HistoryKeeper
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
)
from fluid.trainer.handlers import Dispatcher, Handlers, listed
from fluid.trainer.losses import Losses
from fluid.trainer.no_updates import NoUpdates
from fluid.trainer.parameters import HasParameters
from fluid.trainer.programs import ProgramFunction, ProgramInput, TrainingProgram, program_input_called
from fluid.trainer.progress import ProgressBar

log = logging.getLogger("fluid")


class Loop(HasParameters, KnownAttributes):
    """A custom training loop that notifies handlers of its steps, as a Trainer does, and shows a progress bar.

    `with loop:` surrounds the training, `for feed in loop:` iterates over its minibatches, epoch by epoch, and
    `loop.step(feed)` runs `session.step(feed)` and notifies handlers. Other work of the loop, such as a step of
    another program, notifies no handler. Handlers find the loop in their attribute `trainer`.

    To resume the loop exactly, including its handlers, pass it in the argument `state_of` of a `fluid.Checkpoint`.

    Args:
      session: the session that the loop trains.
      feeds: the minibatches of an epoch: a result of `fluid.reader.prefetch`, or any iterable that can be iterated once
        for each epoch, or a function that returns an iterable.
      num_epochs: the number of epochs, including epochs before an interruption.
      program: the program whose steps notify handlers: a name, a function or a Program; optional if there is only one.
      handlers: as for `Trainer.train`; functions of one event are accepted too.
      progress: True shows a progress bar, False does not, None shows it on a terminal and in a notebook.

    Attributes:
      session: the Session.
      program: the Program.
      epoch: the number of epochs that have ended.
      stopping: True after `stop` was called, so that the loop ends after the current minibatch.

    Raises:
      ArgumentError: the program minimizes no loss, or `num_epochs` is not a number of epochs.
      ArgumentTypeError: an entry of `handlers` is not a handler.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.SGD(0.1).minimize(loss)
      ...     return {"loss": loss}
      >>> session = fluid.Session(program)
      >>> feeds = fluid.reader.prefetch(fluid.reader.arrays(np.ones((8, 2), "float32"), batch_size=4), session)
      >>> stopping = fluid.handlers.EarlyStopping("loss", mode="max")  # its loss cannot grow
      >>> with fluid.Loop(session, feeds, num_epochs=100, handlers=[stopping]) as loop:
      ...     for feed in loop:
      ...         loss, = loop.step(feed)
      >>> loop.epoch, list(loop.history)
      (4, ['epoch', 'step', 'loss'])
    """

    @fitting("fluid.Loop")
    def __init__(
        self,
        session: Session,
        feeds: Iterable[Any] | Callable[[], Iterable[Any]],
        num_epochs: int = 1,
        program: str | Callable[[], Any] | Program | None = None,
        handlers: Handlers = (),
        progress: bool | None = None,
    ):
        self.session = session
        self.program = session.engine.find(program)
        self.programs = {self.program.name: self.program}
        self._only = ProgramInput(TrainingProgram(self.program.function), self.program, session)
        if not self.program.minimizes:
            raise errors.ArgumentError(
                f"Loop: the program {self.program.name} minimises nothing, expected optimizer.minimize(loss) in it; of "
                f"several programs, name the one whose steps handlers shall be told of: Loop(session, ..., program=...)"
            )
        self._feeds = feeds
        self._num_epochs = whole_number("Loop", "num_epochs", num_epochs, least=0)
        notified = listed(handlers)
        if not any(isinstance(handler, ProgressBar) for handler in notified):
            notified.insert(0, ProgressBar(show=progress))
        self._bars = [handler for handler in notified if isinstance(handler, ProgressBar)]
        self._keeper = HistoryKeeper()
        self._tell = Dispatcher([self._keeper, NoUpdates(), *notified], self)
        self._evaluator = DatasetEvaluator(session)
        (also,) = self._tell.fetches([self.program])
        feeds = tuple(self.program.feeds)
        request = Request(TRAIN, None, feeds, parts=self.program.has_rests, also=also)
        self._step = bind(session.engine, self.program, request)
        rows = [name for name, spec in self.program.feeds.items() if spec.shape[:1] == (None,)]
        self._batch_feed = next(iter(rows), None)
        self._losses = Losses(self._tell.waits)
        self._shown: contextlib.ExitStack | None = None
        self._passes = 0  # the number of ended epochs; unused if `feeds` is a Feeds object, which counts epochs itself
        self._steps = 0  # the number of steps done in this epoch
        self._reading = False  # True while `__iter__` yields the minibatches of an epoch
        self._saved: Mapping[str, Any] | None = None
        self.stopping = False

    @property
    def epoch(self) -> int:
        """The number of epochs that have ended."""
        return self._feeds.epoch if isinstance(self._feeds, Feeds) else self._passes

    @property
    def history(self) -> History:
        """The measurements of the custom training loop so far, as a History, which `Trainer.train` also returns."""
        return self._keeper.history

    def __enter__(self) -> Loop:
        saved = self._saved
        self._saved = None
        self.stopping = False
        self._reading = False
        if saved is not None:
            self._tell.restore(saved["handlers"])
        with contextlib.ExitStack() as stack:
            for bar in self._bars:
                stack.enter_context(bar.listening())
            self._shown = stack.pop_all()
        try:
            self._tell.enter(BeginTrainEvent(self._num_epochs, saved is not None))
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        if saved is not None:
            self._tell.done = saved["done"]
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        assert self._shown is not None
        shown = self._shown
        self._shown = None
        with shown:
            if error is None:
                self._losses.wait_for_all()
            self._tell.leave(EndTrainEvent(self.epoch, self.stopping, error))
        if error is None and self._reading and not self.stopping:
            warn(
                "the fluid.Loop was left in the middle of an epoch, by break or return, so that no handler was told of "
                "the end of that epoch, and the history lacks it; write loop.stop() instead of break"
            )

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the minibatches of all epochs, until the last epoch ends or `stop` is called.

        Raises:
          ReaderError: raised by the iterator: an epoch has no minibatch, for example because `feeds` is an exhausted
              iterator.
        """
        self._check_entered()
        if self.epoch >= self._num_epochs > 0:
            log.warning(
                "nothing to train: %d epochs are done, of a loop that is continued or a reader that was read before, "
                "and num_epochs=%d counts them. A new reader begins with epoch 0",
                self.epoch,
                self._num_epochs,
            )
        while self.epoch < self._num_epochs and not self.stopping:
            yield from self._one_pass()

    def step(self, feed: Mapping[str, Any]) -> Results:
        """Train one step, and notify handlers before and after the step.

        Args:
          feed: as for `Session.step`, with all feeds of the program.

        Returns:
          Results: the outputs of the program, on the device.

        Raises:
          FeedError, UnknownNameError: as from `Session.step`.
          ArgumentError: the call is not inside `with loop:` and `for feed in loop:`.
        """
        self._check_entered()
        request = StepRequest(self.program)
        arrays = self._arrays(feed)
        if not self._reading:
            raise errors.ArgumentError(
                "loop.step was called outside of an epoch of the loop, expected for each minibatch of the loop itself: "
                "with fluid.Loop(session, feeds) as loop: for feed in loop: loop.step(feed)"
            )
        epoch = self.epoch
        self._tell(BeginStepEvent(epoch, self._steps, arrays, request=request, program=self.program.name))
        ((metrics, fetched, parts),) = request.run(self._step, arrays)
        if isinstance(feed, Feed):  # while the device computes this step, read the next minibatch
            feed.advance()
        self._losses.add([metrics[self.program.loss_output]], epoch, self._steps)
        self._steps += 1
        examples = 1 if self._batch_feed is None else arrays[self._batch_feed].shape[0]
        self._tell(EndStepEvent(epoch, self._steps - 1, metrics, fetched, examples, self.program.name, parts))
        self._losses.wait_for_half()
        return metrics

    def stop(self) -> None:
        """End the training loop, and the epoch, after the current minibatch.

        If this minibatch is the last one of a result of `fluid.reader.prefetch`, or of a list, the epoch is complete.
        """
        self.stopping = True

    def test(self, reader: ReaderLike, feed_order: FeedOrder = None, metrics: Metrics | None = None) -> Results:
        """Evaluate the program over one pass of a reader, in test mode; see `Trainer.test`."""
        return self._evaluate(reader, feed_order, metrics or {})

    def save_checkpoint(self) -> None:
        """Raise CheckpointError: in a custom loop, handlers cannot request checkpoints.

        Raises:
          CheckpointError: always.
        """
        raise errors.CheckpointError(
            "a loop of your own saves by itself, expected no handler that asks for checkpoints: "
            "with fluid.Checkpoint(session, 'checkpoints', [feeds, loop]) as checkpoint: ... checkpoint.after_step()"
        )

    def state(self) -> dict[str, Any]:
        """Return the states of the handlers and the numbers of trained epochs and steps, as JSON for `restore`."""
        return {
            "handlers": self._tell.state(),
            "done": self._tell.done,
            "epochs": self._passes,
            "steps": self._steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the progress of this training loop from a result of the method `state`.

        The numbers of epochs and steps are restored immediately. The handlers are restored at the beginning of the next
        `with loop:` block.
        """
        self._saved = state
        self._passes = state["epochs"]
        self._steps = state["steps"]

    def _evaluate(
        self,
        reader: ReaderLike,
        order: FeedOrder,
        metrics: Metrics,
        program: str | ProgramFunction | None = None,
        rows: bool = True,
    ) -> Results:
        return self._evaluator.test(self._input(program, "test"), reader, order, metrics, rows)

    def _input(self, program: str | ProgramFunction | None, method: str) -> ProgramInput:
        return program_input_called(program, [self._only], method)

    def _one_pass(self) -> Iterator[Any]:
        """Yield the minibatches of one epoch, or the rest of an interrupted one; notify handlers of start and end."""
        compiled = self.session.compilations.of_training
        epoch = self.epoch
        self._tell(BeginEpochEvent(epoch, self._steps))
        feeds = self._feeds() if callable(self._feeds) else iter(self._feeds)
        feed = None
        # an epoch must have a minibatch; only an interrupted epoch that continues may have none left
        if not self._steps:
            feeds = nonempty(iter(feeds), self._feeds)
        done = self._tell.done
        self._reading = completed = True
        for feed in feeds:
            yield feed
            if self.stopping and not self._at_end():
                completed = False
                break
        self._reading = False
        steps = self._steps
        if feed is not None and self._tell.done == done and completed:
            warn_once(
                self,
                "step",
                lambda: (
                    "an epoch of a fluid.Loop has ended without a loop.step(feed), so that no handler was told of its "
                    "steps, and its history is empty; write loop.step(feed) instead of session.step(feed)"
                ),
            )
        if completed:
            self._steps = 0
            self._passes += 1
        metrics = self._keeper.epoch_metrics()
        done = self.session.compilations.of_training - compiled
        self._tell(EndEpochEvent(epoch, steps, completed=completed, compiled=done, metrics=metrics))

    def _at_end(self) -> bool:
        """Return whether the epoch has no further minibatch; False if only its end can show this.

        `fluid.reader.prefetch` reads one minibatch ahead for this, and keeps the minibatch. Other iterables might lose
        it.
        """
        if isinstance(self._feeds, Feeds):
            return self._feeds.at_end
        return isinstance(self._feeds, Sized) and self._steps == len(self._feeds)

    def _arrays(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a minibatch to arrays on the device, by feed name."""
        if isinstance(feed, Feed) and feed.program is self.program:
            return feed.arrays
        given, replaced = split_names(self.program, check_feed(self.program, feed))
        if replaced or len(given) < len(self.program.feeds):
            missing = [name for name in self.program.feeds if name not in given]
            raise errors.FeedError(
                f"loop.step(feed): found {', '.join(map(repr, feed)) or 'nothing'}, expected every feed of the program "
                f"{self.program.name} and no other value{': missing ' if missing else ''}"
                f"{', '.join(map(repr, missing))}; a handler replaces values by event.override({{name: array}})"
            )
        arrays, _ = self.session.engine.take(self.program, feed, given, (), self._step.buckets)
        return arrays

    def _check_entered(self) -> None:
        if self._shown is None:
            raise errors.ArgumentError(
                "the loop has not begun, or is over; expected it inside: with fluid.Loop(session, feeds) as loop: "
                "for feed in loop: loop.step(feed)"
            )
