"""Handlers: objects and functions around the training loop that receive its events.

Handlers pass values to each other by `Handler.announce`, which sends a MeasuredEvent to all handlers, and never
directly. So the order of handlers does not change what is logged and monitored. Metrics stay on the device, and are
read only after the loop has waited for their step anyway.
"""

import inspect
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from fluid import errors
from fluid._util.known_names import check_attributes
from fluid._util.paths import PathLike
from fluid.core import TRAIN, Program, warn, warn_once
from fluid.core.explain import explained_handler
from fluid.distributed import group
from fluid.runtime import Results, check_fetch
from fluid.runtime.in_flight import IN_FLIGHT
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Event,
    EventHandler,
    MeasuredEvent,
)
from fluid.trainer.every import Every
from fluid.trainer.losses import Waits

log = logging.getLogger("fluid")

_METHODS: dict[type, str] = {
    BeginTrainEvent: "begin_train",
    BeginEpochEvent: "begin_epoch",
    BeginStepEvent: "begin_step",
    EndStepEvent: "end_step",
    EndEpochEvent: "end_epoch",
    EndTrainEvent: "end_train",
    MeasuredEvent: "measured",
}
# The classes of events that notify the last handler in the list first; other events notify the first handler first.
_OUTWARDS = (EndStepEvent, EndEpochEvent, EndTrainEvent, MeasuredEvent)
_RENAMED = {"Checkpoint": "CheckpointEvery"}  # checkpoints of earlier versions contain the old class name "Checkpoint"


class Handler:
    """The base class of handlers of training events: override the methods of the events to handle.

    Handlers are nested like context managers. Begin events go through `handlers=[...]` from the first handler to the
    last; end events and measured values go from the last to the first. So each handler surrounds all later handlers;
    the function `event_handler=` is the innermost. `end_train` is always called, also after an error, once for each
    handler whose `begin_train` was called.

    Attributes:
      trainer: the Trainer that runs the training, set before `begin_train`.
      first_process_only: True if, in a multi-process training, only the first process calls this handler: for handlers
        that write files or print. All processes must call a handler that tests, saves, or changes the training.
      for_members: True if the handler accepts the events of a `fluid.Population` (several trainings at once), in which
        each scalar is an array `[members]`.

    Example:
      >>> import fluid, numpy as np
      >>> class CountSteps(fluid.Handler):
      ...     count = 0
      ...     def end_step(self, event):
      ...         self.count += 1
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> counting = CountSteps()
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> trainer = fluid.train(program, reader, num_epochs=3, handlers=[counting])
      >>> counting.count
      6
    """

    trainer: Any = None
    first_process_only = False
    for_members = True
    _every: Any = None  # the Every of this handler; a device call with several steps ends where its interval ends
    _file_of: PathLike | None = None  # the path of the file that this handler writes; no other handler may write it
    _notified_by: "Dispatcher | None" = None  # the Dispatcher of the last training, set before `begin_train`

    @property
    def _dispatcher(self) -> "Dispatcher":
        """The Dispatcher of the last training."""
        if self._notified_by is None:
            kind = type(self).__name__
            raise errors.ArgumentError(
                f"{kind}: found a handler of no training, expected `done` and `announce` in the methods that events "
                f"call, or after a training: trainer.train(reader, handlers=[handler])"
            )
        return self._notified_by

    @property
    def done(self) -> int:
        """The number of completed training steps, including steps of earlier `train` calls and before a resume."""
        return self._dispatcher.done

    def measures(self) -> Sequence[str]:
        """Return the names of the values that this handler reports; other handlers read the names before step 0."""
        return ()

    def fetches(self) -> Sequence[str]:
        """Return the names of the values of the training step that `end_step` receives in `event.fetched`.

        The names are as for `Session.run` in training: named values, `fc_0.w_0@GRAD`, `grad_norm_0` ... The values stay
        on the device until they are read. The training loop calls this method once, before the first step. With several
        programs, each program fetches the names that it has.
        """
        return ()

    def announce(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Report measured values to all handlers by a MeasuredEvent.

        Args:
          epoch: the index of the epoch, from 0.
          step: the index of the last step done within the epoch, from 0.
          values: scalars by name; scalars may be on the device.

        Raises:
          ArgumentError: `measures()` does not list one of the names.
        """
        listed = self.measures()
        unknown = [name for name in values if name not in listed]
        if unknown:
            kind = type(self).__name__
            raise errors.ArgumentError(
                f"{kind} announces {unknown[0]!r}, which {kind}.measures() does not list; "
                f"def measures(self): return {[*listed, *unknown]}"
            )
        self._dispatcher(MeasuredEvent(epoch, step, Results(list(values.values()), list(values))))

    def state(self) -> dict[str, Any]:
        """Return the state of this handler as JSON, which each checkpoint stores for a resumed training."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of the method `state`; a resumed training calls `restore` before `begin_train`."""

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Handle the start of training, before the first epoch."""

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Handle the start of an epoch, before its first step."""

    def begin_step(self, event: BeginStepEvent) -> None:
        """Handle the start of a training step."""

    def end_step(self, event: EndStepEvent) -> None:
        """Handle the end of a training step."""

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Handle the end of an epoch, after its last step."""

    def end_train(self, event: EndTrainEvent) -> None:
        """Handle the end of training, also after an error."""

    def measured(self, event: MeasuredEvent) -> None:
        """Handle values that a handler has reported, such as the results of a test."""


Handlers = Handler | EventHandler | Sequence[Handler | EventHandler]
"""The type of `trainer.train(handlers=...)`: one handler, or several, the outermost first."""


def listed(handlers: Handlers) -> list[Handler | EventHandler]:
    """Return one or several handlers as a list.

    Raises:
      ArgumentTypeError: `handlers` is neither a handler nor a sequence.

    Example:
      >>> listed(print), listed([print, print]) == [print, print]
      ([<built-in function print>], True)
    """
    if isinstance(handlers, Handler) or callable(handlers):
        return [handlers]
    if isinstance(handlers, str) or not isinstance(handlers, Iterable):
        raise errors.ArgumentTypeError(
            f"handlers={handlers!r}: expected fluid.Handler objects or functions of one event: "
            f"handlers=[fluid.handlers.TestEvery(test_reader)]"
        )
    return list(handlers)


class Dispatcher:
    """A dispatcher that delivers events to handlers and to plain functions.

    The constructor warns of handler methods whose names look like event methods, but that no event calls.

    Attributes:
      done: the number of training steps done.
      in_flight: the maximum number of these steps that may still be in flight on the device.
      waits: a Waits object: the seconds that the training has waited for data and for the device.

    Raises:
      ArgumentTypeError: an entry is not a handler, or cannot be called with one event.
      ArgumentError: two handlers report values of one name.
    """

    def __init__(self, handlers: Sequence[Handler | EventHandler], trainer: Any = None):
        self._handlers = [handler for handler in handlers if isinstance(handler, Handler)]
        for handler in self._handlers:
            handler.trainer = trainer
            handler._notified_by = self
        for kind in dict.fromkeys(map(type, self._handlers)):
            _check_names(kind)
        for handler in self._handlers:
            check_attributes(handler)
        # For each handler: its methods by class of event. An event that the handler ignores has no entry, and costs no
        # call.
        self._methods = [{} if _is_for_another(handler) else _methods_of(handler) for handler in handlers]
        self._order: dict[type, list[Callable[[Any], Any]]] = {
            kind: [methods[kind] for methods in self._in_order_of(kind) if kind in methods] for kind in _METHODS
        }
        _check_announced(self._handlers)
        _check_files(self._handlers)
        self._trainer = trainer
        self._entered = 0  # the number of handlers that have received the BeginTrainEvent
        self.done = 0
        self.in_flight = IN_FLIGHT
        self.waits = Waits()
        self._notified = [handler for handler in self._handlers if not _is_for_another(handler)]
        # A handler of a user may have another attribute of this name.
        self._intervals = [h._every for h in self._notified if isinstance(h._every, Every)]

    def __call__(self, event: Event) -> None:
        """Deliver one event to all handlers."""
        if type(event) is EndStepEvent:
            self.done += 1
        try:
            for deliver in self._order[type(event)]:
                if (returned := deliver(event)) is not None:
                    warn_of_return(deliver, returned)
        except Exception as error:
            _raise_explained(error)

    def hear(self, kind: type) -> bool:
        """Return whether any handler receives events of the class `kind`."""
        return bool(self._order[kind])

    def enter(self, event: BeginTrainEvent) -> None:
        """Deliver the BeginTrainEvent to all handlers, and count the handlers that have received it."""
        self._entered = 0
        self.done = 0 if self._trainer is None else int(self._trainer.session.scope.step)
        for methods in self._methods:
            self._entered += 1
            if BeginTrainEvent in methods:
                try:
                    methods[BeginTrainEvent](event)
                except Exception as error:
                    _raise_explained(error)

    def leave(self, event: EndTrainEvent) -> None:
        """Deliver the EndTrainEvent to each handler that received the BeginTrainEvent, also after a handler has failed.

        Raises:
          Exception: the first exception of a handler. If the event already holds an error, nothing is raised here, and
            the exceptions of handlers become notes of this error (`add_note`).
        """
        entered = self._methods[: self._entered]
        self._entered = 0
        failures: list[Exception] = []
        for methods in reversed(entered):
            try:
                if EndTrainEvent in methods:
                    methods[EndTrainEvent](event)
            except Exception as error:
                failures.append(explained_handler(error) or error)
        if not failures:
            return
        if event.error is None:
            raise failures[0]
        for failure in failures:
            event.error.add_note(f"while a handler was told of this, it raised {failure!r}")

    def steps_left(self) -> float:
        """Return the number of training steps until the first interval `every=` of a handler ends; else infinity."""
        return min((interval.steps_left(self.done) for interval in self._intervals), default=math.inf)

    def measures(self) -> list[str]:
        """Return the names of all values that handlers report."""
        return [name for handler in self._handlers for name in handler.measures()]

    def fetches(self, programs: Sequence[Program]) -> list[tuple[str, ...]]:
        """Return, for each program, the unique names of the values that handlers fetch from its training step.

        Raises:
          UnknownNameError: no program has a value of this name.
        """
        names = [name for handler in self._handlers for name in handler.fetches()]
        if len(programs) == 1:
            return [tuple(dict.fromkeys(check_fetch(programs[0], names, TRAIN)))]
        found = [[_fetched(program, name) for name in names] for program in programs]
        for i, name in enumerate(names):
            if not any(each[i] for each in found):
                check_fetch(programs[0], [name], TRAIN)
        return [tuple(dict.fromkeys(n for some in each for n in some)) for each in found]

    def state(self) -> list[dict[str, Any]]:
        """Return the class name and the state of each handler, in order, as JSON for `restore`."""
        return [{"handler": _qualified(handler), "state": handler.state()} for handler in self._notified]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore each saved state in the next handler of the class that saved the state.

        First, handlers are matched by module and class name. Then the remaining states and handlers are matched by the
        class name alone: the class may have moved to another module, and earlier versions saved only the class name. A
        state that matches no handler is logged.
        """
        waiting = list(self._handlers)
        takers = [_take(waiting, [entry["handler"]], _qualified) for entry in states]
        for position, (entry, handler) in enumerate(zip(states, takers, strict=True)):
            simple = entry["handler"].rpartition(".")[2]
            if handler is None:
                handler = _take(waiting, [simple, _RENAMED.get(simple)], lambda each: type(each).__name__)
            if handler is not None:
                handler.restore(entry["state"])
            elif entry["state"]:
                log.warning(
                    "the checkpoint has the state of the handler %s, number %d of %d, which no handler of this "
                    "training takes, so that it is lost; give the handlers of the training before, in their order: "
                    "trainer.train(..., handlers=[...])",
                    simple,
                    position + 1,
                    len(states),
                )

    def _in_order_of(self, kind: type) -> Iterable[dict[type, Callable[[Any], Any]]]:
        return reversed(self._methods) if kind in _OUTWARDS else self._methods


def _qualified(handler: Handler) -> str:
    return f"{type(handler).__module__}.{type(handler).__qualname__}"


def _take(waiting: list[Handler], names: Sequence[str | None], name_of: Callable[[Handler], str]) -> Handler | None:
    index = next((i for i, handler in enumerate(waiting) if name_of(handler) in names), None)
    return None if index is None else waiting.pop(index)


def _is_for_another(handler: Handler | EventHandler) -> bool:
    return isinstance(handler, Handler) and handler.first_process_only and not group().is_first


def _methods_of(handler: Handler | EventHandler) -> dict[type, Callable[[Any], Any]]:
    """Return the functions that handle events, by event class: overridden methods, or one function for all events."""
    if isinstance(handler, Handler):
        kind = type(handler)
        names = {event: name for event, name in _METHODS.items() if getattr(kind, name) is not getattr(Handler, name)}
        methods = {event: getattr(handler, name) for event, name in names.items()}
        for method in methods.values():
            check_signature(method, f"the method {kind.__name__}.{method.__name__}", "(self, event)")
        return methods
    if isinstance(handler, type) or not callable(handler):
        write = "event_handler=on_event, with def on_event(event): ..."
        if isinstance(handler, type) and issubclass(handler, Handler):
            write = f"handlers=[{handler.__name__}(...)], an object of the class"
        elif isinstance(handler, list | tuple):
            write = "handlers=[...] for several"
        raise errors.ArgumentTypeError(
            f"a handler is a function of one event or a fluid.Handler object, found {handler!r}; write {write}"
        )
    check_signature(handler, f"the event handler {getattr(handler, '__name__', type(handler).__name__)}", "(event)")
    return dict.fromkeys(_METHODS, handler)


def warn_of_return(function: Callable[..., Any], returned: Any) -> None:
    """Warn, once for each function, if a handler returns True, False or -1, which has no effect.

    A user may return one of these values to end training, but only `trainer.stop()` does this. Other results cause no
    warning.
    """
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if (
        code is None
        or code.co_name == "<lambda>"
        or not (isinstance(returned, bool) or (isinstance(returned, int) and returned == -1))
    ):
        return
    warn_once(
        function,
        "returned",
        lambda: (
            f"{function.__qualname__} at {os.path.basename(code.co_filename)}:{code.co_firstlineno} returned "
            f"{returned!r} for an event, and what a handler returns has no effect: trainer.stop() ends a training, in "
            f"a method self.trainer.stop()"
        ),
    )


def check_signature(function: Callable[..., Any], what: str, wanted: str) -> None:
    """Raise ArgumentTypeError for a function that cannot be called with one event.

    Raises:
      ArgumentTypeError: the function cannot be called with one event.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables have no signature that Python can read
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise errors.ArgumentTypeError(
            f"{what}{signature} cannot be called with one event ({error}); write def {name}{wanted}: ..."
        ) from error


def _raise_explained(error: Exception) -> NoReturn:
    """Raise the exception of a handler again; if its cause is a known mistake, raise a clearer exception instead."""
    explained = explained_handler(error)
    if isinstance(error, StopIteration):
        error.add_note("raised by a handler; to end training there, call trainer.stop() and return")
    if explained is None:
        raise error
    raise explained from None


def _fetched(program: Program, name: str) -> tuple[str, ...]:
    """Return the names of a program's values that match a name or glob pattern; an empty tuple without a match."""
    try:
        return check_fetch(program, [name], TRAIN)
    except errors.UnknownNameError:
        return ()


def _check_announced(handlers: Sequence[Handler]) -> None:
    """Raise ArgumentError if two handlers report values with the same name, which would be ambiguous."""
    owners: dict[str, str] = {}
    for handler in handlers:
        kind = type(handler).__name__
        for name in dict.fromkeys(handler.measures()):
            if name in owners:
                raise errors.ArgumentError(
                    f"{owners[name]} and {kind} both announce {name!r}; give one another name, as in "
                    f'fluid.handlers.TestEvery(reader, name="train"), or leave one out'
                )
            owners[name] = kind


def _check_files(handlers: Sequence[Handler]) -> None:
    """Raise ArgumentError if two handlers write to one file, because each would overwrite the content of the other."""
    owners: dict[str, str] = {}
    for handler in handlers:
        kind = type(handler).__name__
        if handler._file_of is None:
            continue
        path = os.path.abspath(handler._file_of)
        if path in owners:
            raise errors.ArgumentError(
                f"{owners[path]} and {kind} both write {str(handler._file_of)!r}, so that each would replace what the "
                f"other has written; give one another file"
            )
        owners[path] = kind


def _check_names(kind: type) -> None:
    """Warn of methods in a Handler class whose names resemble event methods, but that no event calls."""
    bases = kind.__mro__[: kind.__mro__.index(Handler)]
    own = {name for base in bases for name, value in vars(base).items() if callable(value)} - set(vars(Handler))
    for name in sorted(own):
        if name.startswith(("begin_", "end_", "on_")) or name.endswith(("_begin", "_end", "_start")):
            warn(
                f"{kind.__name__} has a method {name!r}, which no event calls; events call "
                f"{', '.join(_METHODS.values())}. Rename it, to _{name} if it is a method of your own"
            )
