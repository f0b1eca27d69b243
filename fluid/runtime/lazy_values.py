"""Lazy values: a feed of a program, and the values that are computed from the feed when they are requested."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluid import errors
from fluid._util.globs import is_glob
from fluid.core import TEST, Program, Scope
from fluid.runtime.compiled_step import bind
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import Fetch, check_feed, check_fetch, split_names
from fluid.runtime.request import Request, checked_mode
from fluid.runtime.results import Results
from fluid.runtime.seeds import Draw


@dataclass(eq=False)
class Fed:
    """The input arrays of one run of a program, and a cache of the values computed from them.

    A value is computed when it is first requested, and cached while the parameters and states are unchanged.

    Attributes:
      program: the program.
      mode: "train" or "test"; neither changes parameters or states.
      feeds: the input arrays, by name: checked, padded and on the device.
      overrides: arrays that replace other values of the program, by name.
      draw: the random key of all values, see `Engine.draw`; None for the key of the next training step.
    """

    program: Program
    mode: str
    feeds: Mapping[str, Any]
    overrides: Mapping[str, Any]
    draw: Draw | None
    _kept: dict[str, Any] = field(default_factory=dict, init=False)
    # The arrays of the session from which the cached values were computed. If the session has other arrays, the cached
    # values are dropped.
    _arrays: dict[str, Any] = field(default_factory=dict, init=False)

    def value(self, fetch: Fetch, engine: Engine) -> Any:
        """Return one value of the program, or Results of several values; see `Session.value`."""
        names = check_fetch(self.program, fetch)
        with engine.scope.lock:
            self._forget_old(engine.scope)
            if missing := tuple(name for name in names if name not in self._kept):
                request = Request(self.mode, missing, tuple(self.feeds), tuple(self.overrides), updates=False)
                values = bind(engine, self.program, request)(self.feeds, self.overrides, self.draw).values
                self._kept.update(zip(missing, values, strict=True))
        found = [self._kept[name] for name in names]
        return found[0] if isinstance(fetch, str) and not is_glob(fetch) else Results(found, names)

    def _forget_old(self, scope: Scope) -> None:
        """Drop the cached values if a training step, a load or an assignment has replaced an array of the session."""
        now = {**scope.arrays, "@step": scope.step, "@root": scope.root}
        # The old arrays are compared by `is`, not by a stored `id`: Python reuses the `id` of a freed array for a new
        # array.
        if now.keys() != self._arrays.keys() or any(now[name] is not known for name, known in self._arrays.items()):
            self._kept.clear()
            self._arrays = now


class ValuesOnDemand:
    """A mixin of Session: `feed` sets the inputs of a program, and `value` computes single values when requested.

    Attributes:
      engine: the engine that runs the programs.
    """

    engine: Engine
    _check_open: Callable[[], None]
    _drawn: Callable[..., Draw | None]
    _fed: Fed | None = None

    def feed(
        self,
        feed: Mapping[str, Any],
        program: str | Callable[[], Any] | Program | None = None,
        mode: str = TEST,
        *,
        seed: int | None = None,
    ) -> None:
        """Set the input arrays of a program, so that `value` can read its values one by one. Nothing is computed yet.

        All values of one feed are computed from one set of random numbers.

        Args:
          feed: arrays by name, as for `Session.run`.
          program: the name of a program, its function or a Program, as for `Session.run`.
          mode: "test"; or "train" for the values of a training step, with its random numbers. Neither mode trains.
          seed: seed of the random numbers in test mode, as for `Session.run`.

        Raises:
          FeedError: the data does not match the feeds. The previous feed stays in use.
          UnknownNameError: no program, feed or value has a requested name. The previous feed stays in use.
        """
        self._check_open()
        found = self.engine.find(program)
        checked = check_feed(found, feed)
        given, replaced = split_names(found, checked)
        taken = self.engine.take(found, checked, given, replaced, self.engine.buckets(found))
        draw = self._drawn(found, checked_mode(mode), seed, "session.feed")
        self._fed = Fed(found, mode, *taken, draw)

    def value(self, fetch: Fetch) -> Any:
        """Return a value of the last fed program; compute the value if it is not cached.

        Only the part of the program that the value needs is computed, and only the feeds of this part are required.
        The value is cached until the next `feed`, or until parameters change, for example by a training step.

        Args:
          fetch: a name, several names, or globs, as for `Session.run`.

        Returns:
          The value of the name, on the device; Results of several names, or of a glob.

        Raises:
          ArgumentError: nothing was fed.
          UnknownNameError: the program has no such value.
          FeedError: a feed that the value depends on was not given.

        Example:
          >>> import fluid
          >>> def program():
          ...     return fluid.layers.scale(fluid.layers.data("x", shape=[2]), 2.0, name="twice")
          >>> session = fluid.Session(program)
          >>> session.feed({"x": [[1, 2]]})
          >>> session.value("twice").tolist(), session.value(["x", "twice*"]).keys()
          ([[2.0, 4.0]], ['x', 'twice.tmp_0'])
        """
        self._check_open()
        if self._fed is None:
            raise errors.ArgumentError(
                f"session.value({fetch!r}): found nothing that was fed, expected a feed to compute the value from; "
                f"first session.feed({{name: array}}), or all at once: session.run(feed={{name: array}}, fetch=[...])"
            )
        return self._fed.value(fetch, self.engine)
