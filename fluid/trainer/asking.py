"""What handlers ask of the step that is about to run: values to see, and values to put in the place of others."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.reader.columns import read_feed
from fluid.session import Request, Results, Session, check_fetch
from fluid.session.names import Fetch, as_array, check_feed, split_names


class Asked:
    """What is asked of one step; of most steps, nothing. Made by `AskableStep.ask`.

    Args:
      program: whose step it is.

    Attributes:
      names: of the values that it shall return.
      values: what takes the place of feeds and named values, by name.
      over: whether the step has run.
    """

    __slots__ = ("_program", "names", "over", "values")

    def __init__(self, program: Program):
        self._program = program
        self.names: tuple[str, ...] = ()
        self.values: dict[str, Any] = {}
        self.over = False

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
        self._step = session.bind(program, request)
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

    def ask(self) -> Asked:
        """What handlers write into what they ask of the next step."""
        return Asked(self._program)

    def __call__(self, feed: Mapping[str, Any], asked: Asked) -> tuple[Results, Results]:
        """Run one step; returns the outputs, and by name what handlers want to see."""
        asked.over = True
        if not asked.names and not asked.values:
            return self._step.and_also(feed)
        given, replaced = split_names(self._program, asked.values)
        also = tuple(dict.fromkeys((*self._request.also, *asked.names)))
        request = replace(self._request, also=also, overrides=tuple(sorted(replaced)))
        step = self._others.setdefault(request, self._session.bind(self._program, request))
        specs = self._program.feeds
        feeds = self.buckets.pad({n: read_feed(specs[n], asked.values[n]) for n in given})
        overrides = {n: as_array(asked.values[n]) for n in request.overrides}
        return step.and_also({**feed, **self._session.take(feeds)}, self._session.take(overrides))
