"""Handlers: rings around the training loop."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fluid import errors
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Event,
)

_METHODS: dict[type, str] = {
    BeginTrainEvent: "begin_train",
    BeginEpochEvent: "begin_epoch",
    BeginStepEvent: "begin_step",
    EndStepEvent: "end_step",
    EndEpochEvent: "end_epoch",
    EndTrainEvent: "end_train",
}
_ENDS = (EndStepEvent, EndEpochEvent, EndTrainEvent)


class Handler:
    """One ring of the onion: override the methods that matter. All do nothing by default.

    Begin events enter the rings in the order of `handlers=[...]`, end events leave in reverse, so that each wraps
    those after it; `event_handler=` is the innermost. `end_train` comes on every way out, once for each ring that
    `begin_train` entered.

    Example:
      >>> import fluid
      >>> class CountSteps(fluid.Handler):
      ...     count = 0
      ...     def end_step(self, event):
      ...         self.count += 1
    """

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Before the first epoch."""

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Before the first step of an epoch."""

    def begin_step(self, event: BeginStepEvent) -> None:
        """Before a step."""

    def end_step(self, event: EndStepEvent) -> None:
        """After a step."""

    def end_epoch(self, event: EndEpochEvent) -> None:
        """After the last step of an epoch."""

    def end_train(self, event: EndTrainEvent) -> None:
        """After everything, also after an error."""


class Onion:
    """Delivers events to handlers and to plain functions, inwards at begins and outwards at ends.

    Args:
      handlers: Handler objects or functions of one event, outermost first.

    Raises:
      ArgumentTypeError: one is neither, or cannot be called with one event.
    """

    def __init__(self, handlers: Sequence[Any]):
        self._rings = [_ring(h) for h in handlers]
        # A ring without a method for an event costs nothing when that event comes.
        self._order: dict[type, list[Callable[[Any], Any]]] = {
            e: [r[e] for r in (reversed(self._rings) if e in _ENDS else self._rings) if e in r] for e in _METHODS
        }
        self._entered = 0

    def __call__(self, event: Event) -> None:
        """Deliver one event to all rings."""
        for deliver in self._order[type(event)]:
            deliver(event)

    def enter(self, event: BeginTrainEvent) -> None:
        """Deliver the beginning, and count the rings that it reached."""
        self._entered = 0
        for ring in self._rings:
            self._entered += 1
            if BeginTrainEvent in ring:
                ring[BeginTrainEvent](event)

    def leave(self, event: EndTrainEvent) -> None:
        """Deliver the end to every ring that was entered; one that fails does not keep it from the others."""
        failures: list[Exception] = []
        for ring in reversed(self._rings[: self._entered]):
            try:
                if EndTrainEvent in ring:
                    ring[EndTrainEvent](event)
            except Exception as error:
                failures.append(error)
        if not failures:
            return
        if event.error is None:
            raise failures[0]
        for failure in failures:
            event.error.add_note(f"while a handler was told of this, it raised {failure!r}")


def _ring(handler: Any) -> dict[type, Callable[[Any], Any]]:
    if isinstance(handler, Handler):
        overridden = {e: m for e, m in _METHODS.items() if getattr(type(handler), m) is not getattr(Handler, m)}
        return {event: getattr(handler, method) for event, method in overridden.items()}
    if isinstance(handler, type) or not callable(handler):
        raise errors.ArgumentTypeError(
            f"a handler is a function of one event or a fluid.Handler object, found {handler!r}; "
            f"write event_handler=on_event, with def on_event(event): ..."
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some built-in callables have none
        return dict.fromkeys(_METHODS, handler)
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(handler, "__name__", type(handler).__name__)
        raise errors.ArgumentTypeError(
            f"the event handler {name}{signature} cannot be called with one event ({error}); "
            f"write def {name}(event): ..."
        ) from error
    return dict.fromkeys(_METHODS, handler)
