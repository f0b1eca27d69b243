"""What handlers ask of the step that is about to run: values to see, and values to put in the place of others."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.reader.columns import read_feed
from fluid.reader.resident import RowFeed
from fluid.session import Request, Results, Session, check_fetch
from fluid.session.fused import Fed, Picks, SeveralResults, Stack
from fluid.session.names import Fetch, as_array, check_feed, split_names


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


class _Placed(NamedTuple):
    """The feeds of steps that shall run in one call, where they are on the device.

    Attributes:
      feeds: of each step, as they were given.
      room: how many there may be.
      there: the same on the device; how many of them are meant is said with the call.
    """

    feeds: Sequence[Mapping[str, Any]]
    room: int
    there: Fed

    def begins_with(self, feeds: Sequence[Mapping[str, Any]], room: int) -> bool:
        """Whether these are the first of them, in an array of the same size."""
        return self.room == room and len(feeds) <= len(self.feeds) and all(map(operator.is_, feeds, self.feeds))


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
        self._ahead: _Placed | None = None
        self._counts: dict[int, Any] = {}  # on the device, by what they are
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
        """Begin to compile the step of which nothing is asked; see `BoundStep.compile_ahead`."""
        self._step.compile_ahead(feed)

    def ask(self, together: bool = False) -> Asked:
        """What handlers write into what they ask of the next step; nothing, of one that ran together with others."""
        return Asked(self._program, together)

    def place_ahead(self, feeds: Sequence[Mapping[str, Any]], room: int) -> None:
        """Put the feeds of the next steps on the device, while that works on others; see `several`."""
        self._ahead = self._placed(feeds, room)

    def placed_ahead(self, first: Mapping[str, Any]) -> int:
        """How many feeds are on the device for one call already, of which the first is this one."""
        return len(self._ahead.feeds) if self._ahead is not None and self._ahead.feeds[0] is first else 0

    def several(self, feeds: Sequence[Mapping[str, Any]], room: int) -> SeveralResults:
        """Run several steps in one call; returns the outputs of each, and by name what handlers want to see.

        Args:
          feeds: of each step, all of the same shapes.
          room: how many there may be in other calls, which need not compile anew then.
        """
        placed = self._ahead
        self._ahead = None
        if placed is None or not placed.begins_with(feeds, room):
            placed = self._placed(feeds, room)
        count = len(feeds)
        if count not in self._counts:
            self._counts[count] = self._session.layout.place(np.int32(count))
        return self._step.several(replace(placed.there, count=self._counts[count]), count)

    def _placed(self, feeds: Sequence[Mapping[str, Any]], room: int) -> _Placed:
        first = feeds[0]
        if not isinstance(first, RowFeed):
            return _Placed(feeds, room, self._session.layout.place(Stack.of(feeds, room)))
        rows = np.zeros((room, len(first.rows)), np.int32)
        for number, feed in enumerate(feeds):
            assert isinstance(feed, RowFeed)
            rows[number] = feed.rows
        return _Placed(feeds, room, Picks(first.columns, self._session.layout.place(rows), np.int32(len(feeds))))

    def __call__(self, feed: Mapping[str, Any], asked: Asked) -> tuple[Results, Results]:
        """Run one step; returns the outputs, and by name what handlers want to see."""
        asked.over = True
        feed = feed.arrays() if type(feed) is RowFeed else feed
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
