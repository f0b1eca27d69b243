"""Events: the messages of the training loop to its handlers, in this order.

    BeginTrainEvent
      BeginEpochEvent            once per epoch
        BeginStepEvent           once per minibatch
        EndStepEvent
      EndEpochEvent
    EndTrainEvent                always, also after an error

After `trainer.stop()` the current step ends, then its epoch, then the training. After Ctrl-C the current step ends, but
there is no EndEpochEvent. After an exception in a handler or in the reader, there is no EndStepEvent and no
EndEpochEvent. EndTrainEvent holds the exception, which is then raised.

A MeasuredEvent can come between any two of these events: a handler reports measured values, such as a test loss, to all
handlers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fluid import errors
from fluid.runtime import Results
from fluid.runtime.fetch import Fetch
from fluid.trainer.device_calls import StepRequest

# `EndEpochEvent.feeding` mentions the waiting time for data only if it is at least this fraction of the duration of the
# epoch. The waiting time must also be at least `_LONG` seconds.
_CONSIDERABLE = 0.1
_LONG = 1.0

K = TypeVar("K")


def _notified_by_kind(kind: type[K]) -> type[K]:
    """Decorate an event class so that `event == EndStepEvent` and `event == "EndStepEvent"` raise an error.

    These comparisons would never be true: the user means `isinstance(event, EndStepEvent)`.
    """
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


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class BeginTrainEvent:
    """The event at the start of training.

    Attributes:
      num_epochs: the requested number of epochs, including the epochs before an interruption.
      resumed: True if this call continues an interrupted training.

    Example:
      >>> BeginTrainEvent(num_epochs=2)
      BeginTrainEvent(num_epochs=2)
    """

    num_epochs: int
    resumed: bool = field(default=False, repr=False, compare=False)


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class BeginEpochEvent:
    """The event at the start of an epoch, which is one pass over the reader.

    Attributes:
      epoch: the index of the epoch, from 0 in a call of `train`; a call that continues an interrupted call continues
        the count.
      first_step: the index of the first step; above 0 if an interrupted epoch continues.

    Example:
      >>> BeginEpochEvent(epoch=0)
      BeginEpochEvent(epoch=0, first_step=0)
    """

    epoch: int
    first_step: int = 0


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class BeginStepEvent:
    """The event before a training step, when its minibatch is already read.

    Attributes:
      epoch: the index of the epoch, from 0, as in BeginEpochEvent.
      step: the index of the step within the epoch, from 0.
      feed: the minibatch by feed name, as passed to the step.
      seconds: the time for reading and converting the minibatch, in seconds.
      request: the requests of handlers for this step, by `fetch` and `override`.
      program: the name of the program that the step trains.

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
        """Fetch more values from this training step, by name or glob pattern.

        The EndStepEvent of the step returns the values in its attribute `fetched`, on the device. Each new set of names
        requires a compilation. To fetch values in every step, use `Handler.fetches`.

        Args:
          names: a name or several, as for `Session.run`: named values, globs, `fc_0.w_0@GRAD`, `grad_norm_0` ...

        Raises:
          UnknownNameError: the program has no value of this name.

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
        """Replace values in this training step only, as `Session.run` does with values that are fed by name.

        Args:
          values: arrays by name of a feed, a named value, a parameter or a state; a scalar fills the whole array.

        Raises:
          UnknownNameError: the program has no value of this name.
          ArgumentError: another handler has replaced the value in this step.
        """
        self._request().override(values)

    def _request(self) -> StepRequest:
        if self.request is None:
            raise errors.ArgumentError(
                "this BeginStepEvent belongs to no step of a training; call fetch() and override() of the event that a "
                "handler of trainer.train(...) is given"
            )
        return self.request


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class EndStepEvent:
    """The event after a training step was dispatched to the device; reading one of the metrics waits for the device.

    Attributes:
      epoch: the index of the epoch, from 0, as in BeginEpochEvent.
      step: the index of the step within the epoch, from 0.
      metrics: the outputs of the program for this minibatch, in order and by name.
      fetched: the values that handlers have requested, by `Handler.fetches` or `BeginStepEvent.fetch`, by name.
      examples: the number of examples in the minibatch.
      program: the name of the program of this step and of `metrics`.
      parts: for the means over an epoch: what each of the metrics needs beside its value and the number of examples,
        such as another weight; empty if no metric needs more.

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
    parts: Sequence[Any] = field(default=(), repr=False, compare=False)


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class EndEpochEvent:
    """The event at the end of an epoch, which is one pass over the reader.

    Attributes:
      epoch: the index of the epoch, from 0, as in BeginEpochEvent.
      steps: the number of steps in the epoch.
      completed: False if `stop()` ended the epoch before its last minibatch.
      compiled: the number of compilations of training steps during the epoch.
      padding: the fraction of padding among the sequence steps that were fed, from 0 to 1; None without sequences.
      seconds: the duration of the epoch, in seconds.
      data_wait: the time, in seconds, that training waited for minibatches while the device was idle.
      metrics: the scalars that the program returns, by name, over the steps of the epoch: means, weighted by the
        examples of each step; sums, maxima and so on if the program declares them by `layers.metric`. With several
        programs the names are like `generator/loss`, over the steps of each program. The first access computes all
        values and waits for the last steps; without steps, values are NaN.

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
        """A summary such as "2 programs compiled, 12% padding, 40% of the time waiting for data".

        Parts that do not apply are left out. The waiting time is left out if it is less than a tenth of the epoch, or
        less than a second.
        """
        parts = []
        if self.compiled:
            parts.append(f"{self.compiled} {'program' if self.compiled == 1 else 'programs'} compiled")
        if self.padding is not None:
            parts.append(f"{self.padding:.0%} padding")
        if self.data_wait >= max(_LONG, _CONSIDERABLE * self.seconds):
            parts.append(f"{self.data_wait / max(self.seconds, self.data_wait):.0%} of the time waiting for data")
        return ", ".join(parts)


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class EndTrainEvent:
    """The event at the end of training: after all epochs, by `stop()`, or by an exception.

    Attributes:
      epochs: the number of completed epochs, including the epochs before an interruption.
      stopped: True if `stop()` ended the training.
      error: the exception that ended the training and will be raised; None if training ended without an exception.

    Example:
      >>> EndTrainEvent(epochs=10).error is None
      True
    """

    epochs: int
    stopped: bool = False
    error: BaseException | None = None


@_notified_by_kind
@dataclass(frozen=True, slots=True)
class MeasuredEvent:
    """The event after a handler has reported measured values by `Handler.announce`.

    Attributes:
      epoch: the index of the epoch, from 0, as in BeginEpochEvent.
      step: the index of the last step done within the epoch, from 0.
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
"""The type of any event that a handler receives."""

EventHandler = Callable[[Event], Any]
"""The type of a function that receives every event; its result is ignored."""
