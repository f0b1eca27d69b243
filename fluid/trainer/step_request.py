"""StepRequest: the values that handlers fetch from the next step, and the values that they replace in this step.

Most steps have no request and share one CompiledStep. Each other set of fetched and replaced names is compiled once,
as a separate `Request`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.runtime import CompiledStep, bind, check_fetch
from fluid.runtime.fetch import Fetch, check_feed, split_names
from fluid.runtime.results import StepResults


class StepRequest:
    """The requests of handlers for one step; most steps have none.

    Args:
      program: the program that the step trains.
      in_call: True if the step runs after another step in one call of the device; `fetch` and `override` then raise an
        error.

    Attributes:
      names: names of the values that the step returns beside the outputs of the program.
      values: the new values that handlers have set in this step, by name of a feed, named value, parameter or state.
    """

    __slots__ = ("_in_call", "_over", "_program", "names", "values")

    def __init__(self, program: Program, in_call: bool = False):
        self._program = program
        self._in_call = in_call
        self._over = False
        self.names: tuple[str, ...] = ()
        self.values: dict[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        """True if no handler requests or replaces a value in this step."""
        return not self.names and not self.values

    def fetch(self, names: Fetch) -> None:
        """Request values of the step by name or glob, as `BeginStepEvent.fetch` does."""
        self._check_time("fetch")
        self.names = tuple(dict.fromkeys((*self.names, *check_fetch(self._program, names, TRAIN))))

    def override(self, values: Mapping[str, Any]) -> None:
        """Replace values of the step by name, as `BeginStepEvent.override` does."""
        self._check_time("override")
        values = check_feed(self._program, values)
        split_names(self._program, values)
        if twice := [name for name in values if name in self.values]:
            raise errors.ArgumentError(
                f"{twice[0]!r} is overridden twice in one step, found a second value for it, expected one: two "
                f"handlers want to replace it; leave one of them out"
            )
        self.values.update(values)

    def run(self, step: CompiledStep, feed: Any, count: int = 1) -> StepResults:
        """Run the step. With requests, run a variant of the step, which is compiled once for each set of names.

        Args:
          step: the compiled step without requests.
          feed: arrays by name; for several steps per call, a Stack or Picks of minibatches, without requests.
          count: the number of steps to run in this call, 1 by default.
        """
        self._over = True
        if count > 1:
            return step(feed, count=count)
        if self.is_empty:
            return step(feed)
        given, replaced = split_names(self._program, self.values)
        also = tuple(dict.fromkeys((*step.request.also, *self.names)))
        request = replace(step.request, also=also, overrides=tuple(sorted(replaced)))
        feeds, overrides = step.engine.take(self._program, self.values, given, request.overrides, step.buckets)
        return bind(step.engine, self._program, request)({**feed, **feeds}, overrides)

    def _check_time(self, method: str) -> None:
        if self._in_call:
            raise errors.ArgumentError(
                f"event.{method}() was called of a step that ran in one call with the one before, expected the first "
                f"step of a call: say in `def steps_ahead(self)` of a fluid.Handler how many steps may run before the "
                f"one that you ask something of, or train with fluid.Trainer(..., steps_per_dispatch=1)"
            )
        if self._over:
            raise errors.ArgumentError(
                f"event.{method}() was called after the step had begun, expected before: call it while BeginStepEvent "
                f"is handled, in begin_step(self, event) of a fluid.Handler"
            )
