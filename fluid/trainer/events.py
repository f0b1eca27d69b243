"""Events: what the training loop tells its handlers, in this order.

    BeginTrainEvent
      BeginEpochEvent            once per epoch
        BeginStepEvent           once per minibatch
        EndStepEvent
      EndEpochEvent
    EndTrainEvent                on every way out

After `trainer.stop()` the current step ends, then its epoch, then the training. Ctrl-C lets the current step end, and
leaves out the end of the epoch. An exception (in a handler or in the reader) leaves out the ends of the step and the
epoch, which did not end. EndTrainEvent carries the exception, and it is raised.

Between these come MeasuredEvents: handlers announce what they measured, such as the loss of a test, to all handlers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fluid import errors
from fluid.runtime import Results
from fluid.runtime.fetch import Fetch
from fluid.trainer.step_request import StepRequest

# It is said that training waits for data from this share of an epoch on, and for so many seconds at least.
_CONSIDERABLE = 0.1
_LONG = 1.0

K = TypeVar("K")


def _told_by_kind(kind: type[K]) -> type[K]:
    """Decorate a class of events: comparing an event with a class, or its name, is an error, since it is never true."""
    equal = kind.__eq__

    def __eq__(self: Any, other: object) -> bool:
        if isinstance(other, type | str):
            name = other if isinstance(other, str) else other.__name__
            raise errors.ArgumentTypeError(
                f"an event is compared with {other!r}, which it never equals; ask for its class: "
                f"isinstance(event, fluid.{name})"
            )
        return equal(self, other)

    kind.__eq__ = __eq__  # type: ignore[method-assign]
    return kind


@_told_by_kind
@dataclass(frozen=True, slots=True)
class BeginTrainEvent:
    """Training begins.

    Attributes:
      num_epochs: how many epochs `train` was asked for, those included that were done before an interruption.
      resumed: whether this continues a training that was interrupted.

    Example:
      >>> BeginTrainEvent(num_epochs=2)
      BeginTrainEvent(num_epochs=2)
    """

    num_epochs: int
    resumed: bool = field(default=False, repr=False, compare=False)


@_told_by_kind
@dataclass(frozen=True, slots=True)
class BeginEpochEvent:
    """One pass over the reader begins.

    Attributes:
      epoch: from 0 within a call of `train`; a call that continues an interrupted one counts on from where that was.
      first_step: its first step; not 0 when an epoch that was interrupted is continued.

    Example:
      >>> BeginEpochEvent(epoch=0)
      BeginEpochEvent(epoch=0, first_step=0)
    """

    epoch: int
    first_step: int = 0


@_told_by_kind
@dataclass(frozen=True, slots=True)
class BeginStepEvent:
    """A minibatch is ready and its step about to run.

    Attributes:
      epoch: as in BeginEpochEvent.
      step: from 0, within the epoch.
      feed: the minibatch by name of feed, as the step gets it.
      seconds: how long reading and converting it took.
      request: the requests of handlers for this step, by `fetch` and `override`.
      program: the name of the program that the step is of.

    Example:
      >>> BeginStepEvent(epoch=0, step=5)
      BeginStepEvent(epoch=0, step=5)
    """

    epoch: int
    step: int
    feed: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    seconds: float = field(default=0.0, repr=False, compare=False)
    request: StepRequest | None = field(default=None, repr=False, compare=False)
    program: str = field(default="", repr=False, compare=False)

    def fetch(self, names: Fetch) -> None:
        """Have this step return more values: by name in `event.fetched` of its EndStepEvent, on the device.

        The same values in many steps are one compilation. What every step shall return, a handler lists in
        `Handler.fetches`.

        Args:
          names: a name or several, as for `Session.run`: named values, globs, `fc_0.w_0@GRAD`, `grad_norm_0` ...

        Raises:
          UnknownNameError: the program has no such value.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="out"))
          >>> def on_event(event):
          ...     if isinstance(event, fluid.BeginStepEvent) and event.step == 1:
          ...         event.fetch("out.*@GRAD")
          ...     if isinstance(event, fluid.EndStepEvent):
          ...         print(event.fetched.keys())
          >>> reader = fluid.reader.arrays((np.ones((6, 2), "float32"),), batch_size=2)
          >>> trainer = fluid.train(program, reader, event_handler=on_event)
          []
          ['out.tmp_0@GRAD', 'out.tmp_1@GRAD', 'out.w_0@GRAD', 'out.b_0@GRAD']
          []
        """
        self._request().fetch(names)

    def override(self, values: Mapping[str, Any]) -> None:
        """Have this step go on with other values, as `Session.run` does with what is fed by name.

        Args:
          values: arrays by name of a feed, a named value, a parameter or a state; a scalar stands for an array of it.

        Raises:
          UnknownNameError: the program has no such value.
          ArgumentError: another handler has replaced it in this step.
        """
        self._request().override(values)

    def _request(self) -> StepRequest:
        if self.request is None:
            raise errors.ArgumentError(
                "this BeginStepEvent belongs to no step of a training; call fetch() and override() of the event that a "
                "handler of trainer.train(...) is given"
            )
        return self.request


@_told_by_kind
@dataclass(frozen=True, slots=True)
class EndStepEvent:
    """A step was handed to the device: its metrics can be read, and reading one waits for the device.

    Attributes:
      epoch: as in BeginEpochEvent.
      step: from 0, within the epoch.
      metrics: the program's outputs for this minibatch, in order and by name.
      fetched: the values that handlers have asked for, by `Handler.fetches` or `BeginStepEvent.fetch`, by name.
      examples: how many examples the minibatch has.
      program: the name of the program that the step is of, whose outputs the metrics are.

    Example:
      >>> EndStepEvent(epoch=0, step=5, metrics=Results([0.5])).metrics[0]
      0.5
    """

    epoch: int
    step: int
    metrics: Results = field(repr=False)
    fetched: Results = field(default=Results((), ()), repr=False)
    examples: int = field(default=1, repr=False, compare=False)
    program: str = field(default="", repr=False, compare=False)


@_told_by_kind
@dataclass(frozen=True, slots=True)
class EndEpochEvent:
    """One pass over the reader ended.

    Attributes:
      epoch: as in BeginEpochEvent.
      steps: how many steps it had.
      completed: False when `stop()` ended it before the reader did.
      compiled: how many times its steps made XLA compile.
      padding: the share of padding among the sequence steps that were fed, from 0 to 1; None without sequences.
      seconds: how long it took.
      data_wait: for how many of them training waited for minibatches, while the device had nothing to do.
      metrics: the scalars that the program returns, by name, over the steps of the epoch: means, weighted by the
        examples of each step; sums, maxima and so on where the program says so, see `layers.metric`. Of several
        programs they are called `generator/loss`, over the steps of each. They are computed when somebody reads one,
        which waits for the last steps; NaN when there was no step.

    Example:
      >>> EndEpochEvent(epoch=0, steps=10).completed
      True
    """

    epoch: int
    steps: int
    completed: bool = True
    compiled: int = field(default=0, repr=False, compare=False)
    padding: float | None = field(default=None, repr=False, compare=False)
    seconds: float = field(default=0.0, repr=False, compare=False)
    data_wait: float = field(default=0.0, repr=False, compare=False)
    metrics: Results = field(default_factory=lambda: Results([], []), repr=False, compare=False)

    @property
    def feeding(self) -> str:
        """Compilations, padding and waiting: "2 programs compiled, 12% padding, 40% of the time waiting for data".

        Empty when there were none. Waiting is left out below a tenth of the time, and below a second.
        """
        parts = []
        if self.compiled:
            parts.append(f"{self.compiled} {'program' if self.compiled == 1 else 'programs'} compiled")
        if self.padding is not None:
            parts.append(f"{self.padding:.0%} padding")
        if self.data_wait >= max(_LONG, _CONSIDERABLE * self.seconds):
            parts.append(f"{self.data_wait / max(self.seconds, self.data_wait):.0%} of the time waiting for data")
        return ", ".join(parts)


@_told_by_kind
@dataclass(frozen=True, slots=True)
class EndTrainEvent:
    """Training ended: after all epochs, by `stop()`, or by an exception.

    Attributes:
      epochs: how many epochs are completed, those included that were done before an interruption.
      stopped: whether `stop()` ended it.
      error: the exception that ended it and will be raised, or None.

    Example:
      >>> EndTrainEvent(epochs=10).error is None
      True
    """

    epochs: int
    stopped: bool = False
    error: BaseException | None = None


@_told_by_kind
@dataclass(frozen=True, slots=True)
class MeasuredEvent:
    """A handler measured something, see `Handler.announce`.

    Attributes:
      epoch: as in BeginEpochEvent.
      step: the last step that was done, from 0 within the epoch.
      metrics: scalars by name, such as `test_loss`.

    Example:
      >>> MeasuredEvent(epoch=0, step=9, metrics=Results([0.5], ["test_loss"])).metrics["test_loss"]
      0.5
    """

    epoch: int
    step: int
    metrics: Results


Event = (
    BeginTrainEvent | BeginEpochEvent | BeginStepEvent | EndStepEvent | EndEpochEvent | EndTrainEvent | MeasuredEvent
)
"""What a handler can be told."""

EventHandler = Callable[[Event], Any]
"""A function that is told of every event; what it returns is ignored."""
