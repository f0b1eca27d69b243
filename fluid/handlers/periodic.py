"""Functions that are called every so often while training: `every` and `once`."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors
from fluid.trainer import BeginTrainEvent, EndEpochEvent, EndStepEvent, Handler
from fluid.trainer.evaluation.values import Every, Interval
from fluid.trainer.handlers import check_signature, warn_of_return

PeriodicFunction = Callable[[Any], Any]
"""What `every` and `once` take: a function of an EndStepEvent, or of an EndEpochEvent where they count epochs."""


def every(interval: Interval) -> Callable[[PeriodicFunction], Handler]:
    """Makes a handler of a function, which is called after every so many steps or epochs.

    Args:
      interval: a number of steps, or "epoch", "2 epochs" ... Steps are those of the Trainer, before a resume included.

    Returns:
      A decorator: it takes a function of one event, an EndStepEvent or, for epochs, an EndEpochEvent.

    Raises:
      ArgumentError: the interval makes no sense.
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
    """Makes a handler of a function, which is called once in each training: after so many steps or epochs.

    Args:
      interval: as for `every`; the function is called the first time that it is due, and not again when the training is
        interrupted and resumed.

    Returns:
      A decorator, as that of `every`.

    Raises:
      ArgumentError: the interval makes no sense.
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
    """Calls a function whenever it is due."""

    def __init__(self, function: PeriodicFunction, due: Every):
        self._function = function
        self._due = due

    def steps_ahead(self) -> float:
        """Up to the step after which it is due."""
        return self._due.steps_left(self.done)

    def end_step(self, event: EndStepEvent) -> None:
        """Call the function, if it is due."""
        if self._due.at_step(self.done):
            self._call(event)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Call the function, if it is due."""
        if self._due.at_epoch(event):
            self._call(event)

    def _call(self, event: EndStepEvent | EndEpochEvent) -> None:
        if (returned := self._function(event)) is not None:
            warn_of_return(self._function, returned)


class _Once(_Periodic):
    """Calls a function the first time that it is due."""

    def __init__(self, function: PeriodicFunction, due: Every):
        super().__init__(function, due)
        self._called = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Start afresh, unless an interrupted training continues."""
        if not event.resumed:
            self._called = False

    def steps_ahead(self) -> float:
        """Up to the step after which it is due; any number once the function was called."""
        return math.inf if self._called else super().steps_ahead()

    def state(self) -> dict[str, Any]:
        """Whether the function was called."""
        return {"called": self._called}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
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
