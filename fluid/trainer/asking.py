"""What handlers ask of the step that is about to run: values to see, and values to put in the place of others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.runtime import Request, Session, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.fetch import Fetch, check_feed, split_names
from fluid.runtime.results import StepResults


class Asked:
    """What is asked of one step; of most steps, nothing. Made by `AskableStep.ask`.

    Args:
      program: whose step it is.

    Attributes:
      names: of the values that it shall return.
      values: what takes the place of feeds and named values, by name.
      over: whether the step has run.
      together: whether it ran together with the one before, in one call of the device.
    """

    __slots__ = ("_program", "names", "over", "together", "values")

    def __init__(self, program: Program, together: bool = False):
        self._program = program
        self.names: tuple[str, ...] = ()
        self.values: dict[str, Any] = {}
        self.over = together
        self.together = together

    def fetch(self, names: Fetch) -> None:
        """Ask for values; see `BeginStepEvent.fetch`."""
        self._check_time("fetch")
        self.names = tuple(dict.fromkeys((*self.names, *check_fetch(self._program, names, TRAIN))))

    def override(self, values: Mapping[str, Any]) -> None:
        """Replace values; see `BeginStepEvent.override`."""
        self._check_time("override")
        values = check_feed(self._program, values)
        split_names(self._program, values)
        if twice := [name for name in values if name in self.values]:
            raise errors.ArgumentError(
                f"{twice[0]!r} is overridden twice in one step, found a second value for it, expected one: two "
                f"handlers want to replace it; leave one of them out"
            )
        self.values.update(values)

    def _check_time(self, method: str) -> None:
        if self.together:
            raise errors.ArgumentError(
                f"event.{method}() was called of a step that ran in one call with the one before, expected the first "
                f"step of a call: say in `def steps_ahead(self)` of a fluid.Handler how many steps may run before the "
                f"one that you ask something of, or train with fluid.Trainer(..., steps_per_dispatch=1)"
            )
        if self.over:
            raise errors.ArgumentError(
                f"event.{method}() was called after the step had begun, expected before: call it while BeginStepEvent "
                f"is handled, in begin_step(self, event) of a fluid.Handler"
            )


class AskableStep:
    """The compiled step of a training; a step of which something is asked is compiled by itself, once for each kind.

    Args:
      session: which holds the arrays.
      program: what is trained.
      request: what every step does.

    Attributes:
      buckets: to which sizes sequences are padded.
    """

    def __init__(self, session: Session, program: Program, request: Request):
        self._session = session
        self._program = program
        self._request = request
        self._step = bind(session.engine, program, request)
        self._others: dict[Request, Any] = {}
        self.buckets = self._step.buckets

    @property
    def loss_output(self) -> int:
        """The position of the loss among the outputs."""
        return self._step.loss_output

    @property
    def compiled(self) -> int:
        """How often the step was compiled so far."""
        return self._step.compiled + sum(other.compiled for other in self._others.values())

    def compile_ahead(self, feed: Mapping[str, Any]) -> None:
        """Begin to compile the step of which nothing is asked; see `CompiledStep.compile_ahead`."""
        self._step.compile_ahead(feed)

    def ask(self, together: bool = False) -> Asked:
        """What handlers write into what they ask of the next step; nothing, of one that ran together with others."""
        return Asked(self._program, together)

    def __call__(self, feed: Any, asked: Asked, count: int = 1) -> StepResults:
        """Run one step, or several in one call; return the outputs of each, and by name what handlers want to see.

        Args:
          feed: arrays by name; of several steps their Stack or Picks.
          asked: of the step; of several steps nothing.
          count: how many steps there are.
        """
        asked.over = True
        if count > 1:
            return self._step(feed, count=count)
        if not asked.names and not asked.values:
            return self._step(feed)
        given, replaced = split_names(self._program, asked.values)
        also = tuple(dict.fromkeys((*self._request.also, *asked.names)))
        request = replace(self._request, also=also, overrides=tuple(sorted(replaced)))
        step = self._others.setdefault(request, bind(self._session.engine, self._program, request))
        feeds, overrides = self._session.engine.take(
            self._program, asked.values, given, request.overrides, self.buckets
        )
        return step({**feed, **feeds}, overrides)
