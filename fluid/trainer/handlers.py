"""Handlers: objects and functions around the training loop that are told of its events."""

import inspect
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from fluid import errors
from fluid.core import TRAIN, Program, warn, warn_once
from fluid.core.explain import handler_in_own_words
from fluid.distributed import group
from fluid.missing import check_attributes
from fluid.paths import PathLike
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
# These reach the innermost handler first, all other events the outermost one.
_OUTWARDS = (EndStepEvent, EndEpochEvent, EndTrainEvent, MeasuredEvent)
_RENAMED = {"Checkpoint": "CheckpointEvery"}  # class names in checkpoints of earlier versions


class Handler:
    """Is told of the events of a training: override the methods of those that matter; the others do nothing.

    Handlers are nested like the layers of an onion. A begin event passes through `handlers=[...]` from the first to the
    last, an end event and an announcement from the last to the first, so that each handler surrounds those after it;
    `event_handler=` is the innermost. `end_train` comes on every way out, once for each handler that `begin_train`
    reached.

    Attributes:
      trainer: the Trainer whose training this is, set before `begin_train`.
      first_process_only: of several processes that train together, whether the first one alone tells this handler of
        events: True for what writes files or to the screen. What changes the training, tests or saves is told in all of
        them.
      acts_on_measured: whether `measured` does more than to write values down, so that it has to come right after the
        step that was measured.
      for_members: whether it takes the events of a `fluid.Population`, in which each scalar is an array `[members]`.

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
    acts_on_measured = True
    for_members = True
    _file_of: PathLike | None = None  # the file that it alone writes
    _dispatcher: "Dispatcher"

    @property
    def done(self) -> int:
        """Steps done since the parameters were new: also those of earlier calls of `train` and before a resume."""
        return self._dispatcher.done

    def measures(self) -> Sequence[str]:
        """The names of the values that this handler announces; other handlers ask for them before the first step."""
        return ()

    def fetches(self) -> Sequence[str]:
        """The names of values of the training step that this handler wants to see in `event.fetched` of `end_step`.

        All that `Session.run` can fetch while training: named values, `fc_0.w_0@GRAD`, `grad_norm_0` ... They are
        computed in the step itself, and stay on the device until one is read. Asked for once, before the first step. Of
        several programs, each gives those that it has.
        """
        return ()

    def steps_ahead(self) -> float | None:
        """How many training steps may run from here before this handler has to be told of the last of them.

        With `Trainer(steps_per_dispatch=...)` several steps run in one call of the device, and are told of when all are
        under way: an event holds the values of its step, the trainer is that after the last step of the call. So a
        handler that looks at it, tests, saves or changes something in every hundredth step lets `100 - self.done % 100`
        steps run: a call ends there.

        Returns:
          At least 1, which lets each step run by itself; `math.inf` where the values of events are enough; None says
          nothing: "auto" runs step after step then. By default it is None for a handler with `begin_step` or
          `end_step`, and `math.inf` for others.
        """
        kind = type(self)
        hears_steps = kind.begin_step is not Handler.begin_step or kind.end_step is not Handler.end_step
        return None if hears_steps else math.inf

    def announce(self, epoch: int, step: int, values: Mapping[str, Any]) -> None:
        """Tell all handlers of measured values: they get a MeasuredEvent.

        Args:
          epoch: from 0.
          step: the last step that was done, from 0 within the epoch.
          values: scalars by name; those on the device may stay there.

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


Handlers = Handler | EventHandler | Sequence[Handler | EventHandler]
"""What `trainer.train(handlers=...)` takes: one, or several, the outermost first."""


def listed(handlers: Handlers) -> list[Handler | EventHandler]:
    """Handlers as a list, also a single one.

    Raises:
      ArgumentTypeError: it is neither a handler nor a sequence.

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
    """Delivers events to handlers and to plain functions.

    Args:
      handlers: Handler objects or functions of one event, outermost first.
      trainer: whose training they surround.

    Attributes:
      done: training steps done.
      in_flight: how many of these may be under way on the device still.
      acting: whether a handler acts on what another one announces.

    Raises:
      ArgumentTypeError: one is neither, or cannot be called with one event.
      ArgumentError: two handlers announce values of one name.

    Warns of methods whose names begin like those of events, and that no event calls.
    """

    def __init__(self, handlers: Sequence[Handler | EventHandler], trainer: Any = None):
        self._handlers = [handler for handler in handlers if isinstance(handler, Handler)]
        for handler in self._handlers:
            handler.trainer = trainer
            handler._dispatcher = self
        for kind in dict.fromkeys(map(type, self._handlers)):
            _check_names(kind)
        for handler in self._handlers:
            check_attributes(handler)
        # The methods of each handler by event; an event for which a handler has none costs it nothing.
        self._methods = [{} if _is_for_another(handler) else _methods_of(handler) for handler in handlers]
        self._order: dict[type, list[Callable[[Any], Any]]] = {
            kind: [methods[kind] for methods in self._in_order_of(kind) if kind in methods] for kind in _METHODS
        }
        _check_announced(self._handlers)
        _check_files(self._handlers)
        self._trainer = trainer
        self._entered = 0  # how many handlers the beginning has reached
        self.done = 0
        self.in_flight = IN_FLIGHT
        self.waits = Waits()
        self._silent = any(not isinstance(handler, Handler) for handler in handlers)
        self._told = [handler for handler in self._handlers if not _is_for_another(handler)]
        self.acting = any(h.acts_on_measured and type(h).measured is not Handler.measured for h in self._told)

    def __call__(self, event: Event) -> None:
        """Deliver one event to all handlers."""
        if type(event) is EndStepEvent:
            self.done += 1
        try:
            for deliver in self._order[type(event)]:
                if (returned := deliver(event)) is not None:
                    warn_of_return(deliver, returned)
        except Exception as error:
            _raise_in_own_words(error)

    def hear(self, kind: type) -> bool:
        """Whether a handler is told of such events."""
        return bool(self._order[kind])

    def enter(self, event: BeginTrainEvent) -> None:
        """Deliver the beginning, and count the handlers that it reached."""
        self._entered = 0
        self.done = 0 if self._trainer is None else int(self._trainer.session.scope.step)
        for methods in self._methods:
            self._entered += 1
            if BeginTrainEvent in methods:
                try:
                    methods[BeginTrainEvent](event)
                except Exception as error:
                    _raise_in_own_words(error)

    def leave(self, event: EndTrainEvent) -> None:
        """Deliver the end to every handler that the beginning reached; one that fails does not keep it from the others.

        Raises:
          Exception: the first one that a handler raised, unless the event holds the error that ended the training:
            that one gets a note then.
        """
        entered = self._methods[: self._entered]
        self._entered = 0
        failures: list[Exception] = []
        for methods in reversed(entered):
            try:
                if EndTrainEvent in methods:
                    methods[EndTrainEvent](event)
            except Exception as error:
                failures.append(handler_in_own_words(error) or error)
        if not failures:
            return
        if event.error is None:
            raise failures[0]
        for failure in failures:
            event.error.add_note(f"while a handler was told of this, it raised {failure!r}")

    def steps_ahead(self) -> tuple[float | None, float]:
        """How many steps may run before a handler has to be told of the last of them, see `Handler.steps_ahead`.

        Returns:
          That number, None where a handler says nothing; and what it is for those that say something.
        """
        said = [handler.steps_ahead() for handler in self._told]
        least = min((each for each in said if each is not None), default=math.inf)
        return None if self._silent or None in said else least, least

    def measures(self) -> list[str]:
        """The names of all values that handlers announce."""
        return [name for handler in self._handlers for name in handler.measures()]

    def fetches(self, programs: Sequence[Program]) -> list[tuple[str, ...]]:
        """For each program the names of all values of its training step that handlers want to see, each once.

        Raises:
          UnknownNameError: no program has such a value.
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
        """Return the states of the handlers in their order, for a training that continues."""
        return [{"handler": _qualified(handler), "state": handler.state()} for handler in self._told]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Pass each part of what `state` returned to the next handler of its class; log a state that none takes."""
        waiting = list(self._handlers)
        for position, entry in enumerate(states):
            handler = _taker(waiting, entry["handler"])
            if handler is not None:
                waiting = [other for other in waiting if other is not handler]
                handler.restore(entry["state"])
            elif entry["state"]:
                log.warning(
                    "the checkpoint has the state of the handler %s, number %d of %d, which no handler of this "
                    "training takes, so that it is lost; give the handlers of the training before, in their order: "
                    "trainer.train(..., handlers=[...])",
                    entry["handler"].rpartition(".")[2],
                    position + 1,
                    len(states),
                )

    def _in_order_of(self, kind: type) -> Iterable[dict[type, Callable[[Any], Any]]]:
        return reversed(self._methods) if kind in _OUTWARDS else self._methods


def _qualified(handler: Handler) -> str:
    """Return the name of a handler's class, with its module."""
    return f"{type(handler).__module__}.{type(handler).__qualname__}"


def _taker(handlers: Sequence[Handler], name: str) -> Handler | None:
    """Return the first handler of a class; None if there is none.

    A class that has moved to another module, or the name of a class alone, as in earlier versions, counts by its name.

    Args:
      handlers: the handlers that have no state yet, in their order.
      name: from `_qualified`.
    """
    simple = name.rpartition(".")[2]
    names = (simple, _RENAMED.get(simple))
    same = (handler for handler in handlers if _qualified(handler) == name)
    return next(same, next((handler for handler in handlers if type(handler).__name__ in names), None))


def _is_for_another(handler: Handler | EventHandler) -> bool:
    """Whether another process has the events of a handler."""
    return isinstance(handler, Handler) and handler.first_process_only and not group().is_first


def _methods_of(handler: Handler | EventHandler) -> dict[type, Callable[[Any], Any]]:
    """What to call for each kind of event: the methods that a Handler overrides; a function for all of them."""
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
        raise errors.ArgumentTypeError(
            f"a handler is a function of one event or a fluid.Handler object, found {handler!r}; write {write}"
        )
    check_signature(handler, f"the event handler {getattr(handler, '__name__', type(handler).__name__)}", "(event)")
    return dict.fromkeys(_METHODS, handler)


def warn_of_return(function: Callable[..., Any], returned: Any) -> None:
    """Warn, once for each handler, of a result that looks as if it were meant to end the training, and does not.

    Args:
      function: a handler, or a method of one.
      returned: its result, of any kind. A lambda has no choice but to return one, so it may return anything.
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
    """Refuse a function that cannot be called with one event.

    Args:
      function: of the user.
      what: it is, for the message.
      wanted: the arguments that it should have, as in "(event)".

    Raises:
      ArgumentTypeError: it cannot.
    """
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


def _raise_in_own_words(error: Exception) -> NoReturn:
    """Raise the error of a handler again, or a clearer error that explains it."""
    explained = handler_in_own_words(error)
    if isinstance(error, StopIteration):
        error.add_note("raised by a handler; to end training there, call trainer.stop() and return")
    if explained is None:
        raise error
    raise explained from None


def _fetched(program: Program, name: str) -> tuple[str, ...]:
    """What a name stands for in one of several programs; nothing where that has no such value."""
    try:
        return check_fetch(program, [name], TRAIN)
    except errors.UnknownNameError:
        return ()


def _check_announced(handlers: Sequence[Handler]) -> None:
    """Refuse two handlers that announce values of one name: who follows it would take both for the same."""
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
    """Refuse two handlers that write one file: each would replace what the other has written."""
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
    """Warn of methods that look as if they were meant to be called with events, and never will be."""
    bases = kind.__mro__[: kind.__mro__.index(Handler)]
    own = {name for base in bases for name, value in vars(base).items() if callable(value)} - set(vars(Handler))
    for name in sorted(own):
        if name.startswith(("begin_", "end_", "on_")) or name.endswith(("_begin", "_end", "_start")):
            warn(
                f"{kind.__name__} has a method {name!r}, which no event calls; events call "
                f"{', '.join(_METHODS.values())}. Rename it, to _{name} if it is a method of your own"
            )
