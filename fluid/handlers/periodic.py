"""Periodic handlers: the decorators `every` and `once`, which call a function after a number of steps or epochs."""

from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors
from fluid.trainer import BeginTrainEvent, EndEpochEvent, EndStepEvent, Handler
from fluid.trainer.every import Every, Interval
from fluid.trainer.handlers import check_signature, warn_of_return

PeriodicFunction = Callable[[Any], Any]
"""The type of the functions that `every` and `once` decorate.

The argument of the function is an EndStepEvent, or an EndEpochEvent if the interval is in epochs."""


def every(interval: Interval) -> Callable[[PeriodicFunction], Handler]:
    """Convert a function to a handler that calls the function after every interval of steps or epochs.

    Args:
      interval: a number of steps, or "epoch", "2 epochs" ... The count of steps includes the steps before a resume.

    Returns:
      A decorator for a function of one event: an EndStepEvent, or an EndEpochEvent if the interval is in epochs.

    Raises:
      ArgumentError: the interval is invalid.
      ArgumentTypeError: the function cannot be called with one event.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=2)
      >>> @fluid.handlers.every(3)
      ... def show(event):
      ...     print(f"epoch {event.epoch}, step {event.step}")
      >>> trainer = fluid.train(program, reader, num_epochs=2, handlers=[show])
      epoch 0, step 2
      epoch 1, step 1
    """
    return _maker("every", interval, _Periodic)


def once(interval: Interval) -> Callable[[PeriodicFunction], Handler]:
    """Convert a function to a handler that calls the function once in each training, after a number of steps or epochs.

    Args:
      interval: a number of steps, or "epoch", "2 epochs" ... The function is called after the first interval, and not
        again after a resume.

    Returns:
      A decorator for a function of one event: an EndStepEvent, or an EndEpochEvent if the interval is in epochs.

    Raises:
      ArgumentError: the interval is invalid.
      ArgumentTypeError: the function cannot be called with one event.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=2)
      >>> @fluid.handlers.once("2 epochs")
      ... def lower(event):
      ...     lower.trainer.learning_rate /= 10
      >>> trainer = fluid.train(program, reader, optimizer=fluid.optimizer.SGD(0.5), num_epochs=5, handlers=[lower])
      >>> trainer.learning_rate
      0.05
    """
    return _maker("once", interval, _Once)


class _Periodic(Handler):
    """A handler that calls a function after each interval of steps or epochs; `every` creates it."""

    def __init__(self, function: PeriodicFunction, due: Every):
        self._function = function
        self._every = due

    def end_step(self, event: EndStepEvent) -> None:
        if self._every.at_step(self.done):
            self._call(event)

    def end_epoch(self, event: EndEpochEvent) -> None:
        if self._every.at_epoch(event):
            self._call(event)

    def _call(self, event: EndStepEvent | EndEpochEvent) -> None:
        if (returned := self._function(event)) is not None:
            warn_of_return(self._function, returned)


class _Once(_Periodic):
    """A handler that calls a function once, after the first interval of steps or epochs; `once` creates it."""

    def __init__(self, function: PeriodicFunction, due: Every):
        super().__init__(function, due)
        self._called = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        if not event.resumed:
            self._called = False

    def state(self) -> dict[str, Any]:
        return {"called": self._called}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._called = state["called"]

    def _call(self, event: EndStepEvent | EndEpochEvent) -> None:
        if not self._called:
            self._called = True
            super()._call(event)


def _maker(name: str, interval: Interval, kind: type[_Periodic]) -> Callable[[PeriodicFunction], Handler]:
    try:
        due = Every(interval, name)
    except errors.ArgumentError:
        raise errors.ArgumentError(
            f"fluid.handlers.{name}({interval!r}): expected a number of steps, or one of epochs; "
            f'write {name}(100)(function), {name}("epoch")(function) or {name}("2 epochs")(function)'
        ) from None

    def make(function: PeriodicFunction) -> Handler:
        if not callable(function):
            raise errors.ArgumentTypeError(
                f"fluid.handlers.{name}({interval!r}) takes a function of one event, found {function!r}"
            )
        check_signature(function, f"the function {getattr(function, '__name__', function)}", "(event)")
        return kind(function, due)

    return make
