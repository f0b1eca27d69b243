"""Handlers: rings around the training loop."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.session import Results
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Event,
    MeasuredEvent,
)

_METHODS: dict[type, str] = {
    BeginTrainEvent: "begin_train",
    BeginEpochEvent: "begin_epoch",
    BeginStepEvent: "begin_step",
    EndStepEvent: "end_step",
    EndEpochEvent: "end_epoch",
    EndTrainEvent: "end_train",
    MeasuredEvent: "measured",
}
_ENDS = (EndStepEvent, EndEpochEvent, EndTrainEvent, MeasuredEvent)
# How alike a method must be to one of these to be taken for a misspelling of it.
_ALIKE = 0.8


class Handler:
    """One ring of the onion: override the methods that matter. All do nothing by default.

    Begin events enter the rings in the order of `handlers=[...]`, end events leave in reverse, so that each wraps
    those after it; `event_handler=` is the innermost. `end_train` comes on every way out, once for each ring that
    `begin_train` entered.

    Attributes:
      trainer: the Trainer whose training this is, set before `begin_train`.

    Example:
      >>> import fluid
      >>> class CountSteps(fluid.Handler):
      ...     count = 0
      ...     def end_step(self, event):
      ...         self.count += 1
    """

    trainer: Any = None
    _onion: "Onion"

    @property
    def done(self) -> int:
        """Steps done since the parameters were new: also those of earlier calls of `train` and before a resume."""
        return self._onion.done

    def measures(self) -> Sequence[str]:
        """The names of the values that this handler announces, asked before training begins."""
        return ()

    def announce(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Tell all handlers of measured values: they get a MeasuredEvent.

        Args:
          epoch: from 0.
          step: the last step that was done, from 0 within the epoch.
          values: scalars by name; those on the device may stay there.

        Raises:
          ArgumentError: `measures()` does not list one of the names.
        """
        unknown = [name for name in values if name not in self.measures()]
        if unknown:
            kind = type(self).__name__
            raise errors.ArgumentError(
                f"{kind} announces {unknown[0]!r}, which {kind}.measures() does not list; "
                f"def measures(self): return {[*self.measures(), *unknown]}"
            )
        self._onion(MeasuredEvent(epoch, step, Results(list(values.values()), list(values))))

    def state(self) -> dict[str, Any]:
        """What a resumed training needs of this handler, as JSON; kept in every checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned, before `begin_train`."""

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

    def measured(self, event: MeasuredEvent) -> None:
        """After a handler announced values, such as those of a test."""


class Onion:
    """Delivers events to handlers and to plain functions, inwards at begins and outwards at ends.

    Args:
      handlers: Handler objects or functions of one event, outermost first.
      trainer: whose training they surround.

    Attributes:
      done: training steps done.

    Raises:
      ArgumentTypeError: one is neither, cannot be called with one event, or has a method that no event calls.
    """

    def __init__(self, handlers: Sequence[Any], trainer: Any = None):
        self._rings = [_ring(h) for h in handlers]
        self._handlers = [h for h in handlers if isinstance(h, Handler)]
        for handler in self._handlers:
            handler.trainer, handler._onion = trainer, self
        self._trainer = trainer
        self.done = 0
        # A ring without a method for an event costs nothing when that event comes.
        self._order: dict[type, list[Callable[[Any], Any]]] = {
            e: [r[e] for r in (reversed(self._rings) if e in _ENDS else self._rings) if e in r] for e in _METHODS
        }
        self._entered = 0

    def __call__(self, event: Event) -> None:
        """Deliver one event to all rings."""
        if type(event) is EndStepEvent:
            self.done += 1
        for deliver in self._order[type(event)]:
            deliver(event)

    def enter(self, event: BeginTrainEvent) -> None:
        """Deliver the beginning, and count the rings that it reached."""
        self._entered = 0
        self.done = 0 if self._trainer is None else int(self._trainer.session.scope.step)
        for ring in self._rings:
            self._entered += 1
            if BeginTrainEvent in ring:
                ring[BeginTrainEvent](event)

    def measures(self) -> list[str]:
        """The names of all values that handlers announce."""
        return [name for handler in self._handlers for name in handler.measures()]

    def state(self) -> list[dict[str, Any]]:
        """What a resumed training needs of the handlers, in their order."""
        return [{"handler": type(h).__name__, "state": h.state()} for h in self._handlers]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Hand back what `state` returned, to the first handler of the same class that has none yet."""
        waiting = list(self._handlers)
        for entry in states:
            handler = next((h for h in waiting if type(h).__name__ == entry["handler"]), None)
            if handler is not None:
                waiting.remove(handler)
                handler.restore(entry["state"])

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
        _check_names(type(handler))
        overridden = {e: m for e, m in _METHODS.items() if getattr(type(handler), m) is not getattr(Handler, m)}
        ring = {event: getattr(handler, method) for event, method in overridden.items()}
        for method in ring.values():
            _check_signature(method, f"the method {type(handler).__name__}.{method.__name__}", "(self, event)")
        return ring
    if isinstance(handler, type) or not callable(handler):
        raise errors.ArgumentTypeError(
            f"a handler is a function of one event or a fluid.Handler object, found {handler!r}; "
            f"write event_handler=on_event, with def on_event(event): ..."
        )
    _check_signature(handler, f"the event handler {getattr(handler, '__name__', type(handler).__name__)}", "(event)")
    return dict.fromkeys(_METHODS, handler)


def _check_signature(function: Callable[..., Any], what: str, wanted: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise errors.ArgumentTypeError(
            f"{what}{signature} cannot be called with one event ({error}); write def {name}{wanted}: ..."
        ) from error


def _check_names(kind: type) -> None:
    """Complain of methods that look as if they were meant to be called with events, and never would be."""
    own = {n for base in kind.__mro__[: kind.__mro__.index(Handler)] for n, v in vars(base).items() if callable(v)}
    for name in sorted(own - set(vars(Handler))):
        meant = max(_METHODS.values(), key=lambda method: _likeness(name, method))
        prefix = name.startswith(("begin_", "end_", "on_"))
        if not name.startswith("_") and (prefix or _likeness(name, meant) >= _ALIKE):
            raise errors.ArgumentTypeError(
                f"{kind.__name__} has a method {name!r}, which no event calls. Did you mean {meant!r}? The methods of "
                f"a handler are {', '.join(_METHODS.values())}; begin the name of any other with an underscore"
            )


def _likeness(name: str, method: str) -> float:
    """How much a name looks like a method: from 0 to 1, whatever the order of its words."""
    words = sorted(name.removeprefix("on_").split("_"))
    straight = difflib.SequenceMatcher(None, name.removeprefix("on_"), method).ratio()
    return max(straight, difflib.SequenceMatcher(None, words, sorted(method.split("_"))).ratio())
