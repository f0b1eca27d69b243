"""Prefetching: read minibatches ahead as feeds of a Session, for a custom loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fluid.core import Program
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.buckets import Buckets
from fluid.reader.converter import Converter, Destination
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import Batches, InputPipeline, Position


class _Engine(Destination, Protocol):
    """The interface of a Session's engine (the object that runs its programs) that `prefetch` uses."""

    def find(self, program: Any = None) -> Program:
        """Return a program by its name, its function or the Program itself."""

    def buckets(self, program: Program) -> Buckets:
        """Return new Buckets, which pad the sequences of a program."""


class FeedReceiver(Protocol):
    """The interface of a Session that `prefetch` uses."""

    @property
    def engine(self) -> _Engine:
        """The engine of the Session: the object that runs its programs."""


class Feed(Mapping[str, Any]):
    """A minibatch as the feed of a program: checked, padded and on the device.

    A Feed cannot be changed; `{**feed, "noise": noise}` creates a changed dict.

    Attributes:
      arrays: the arrays by feed name.
      program: the Program of the feed.
      advance: a function that reads the next minibatch ahead.

    Example:
      >>> dict(Feed({"x": 1}, None, advance=lambda: None))
      {'x': 1}
    """

    __slots__ = ("advance", "arrays", "program")

    def __init__(self, arrays: dict[str, Any], program: Program | None, advance: Callable[[], None]):
        self.arrays = arrays
        self.program = program
        self.advance = advance

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class Feeds:
    """An iterable of the minibatches of a reader, converted to feeds of a session; `prefetch` returns it.

    Each loop over this object is one pass over the data.
    """

    def __init__(self, pipeline: InputPipeline, program: Program):
        self._pipeline = pipeline
        self._program = program
        self._position: Position = pipeline.position()
        self._open: Batches | None = None

    @property
    def epoch(self) -> int:
        """The number of passes over the data that have ended; the current or next pass also has this number."""
        return int(self._position.reader["epoch"])

    @property
    def at_end(self) -> bool:
        """True if the current pass has no further feed; reads the next feed ahead to know this."""
        return self._open is not None and self._open.peek() is None

    def __call__(self) -> Iterator[Feed]:
        """Start the next pass; after `restore`, the rest of the interrupted pass."""
        if self._open is not None:
            self._open.close()
        self._open = self._pipeline.start()
        self._position = self._pipeline.position()
        return self._given(self._open)

    def __iter__(self) -> Iterator[Feed]:
        return self()

    def state(self) -> dict[str, Any]:
        """Return the position after the last yielded feed, as JSON for `restore`; feeds read ahead do not count."""
        return {"reader": self._position.reader, "sizes": self._position.padding}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue exactly after a position.

        Raises:
          ArgumentError: `state` is not a position, or is a position of another reader.
        """
        self._pipeline.source.restore(state["reader"])
        self._pipeline.restore_padding(state["sizes"])
        self._position = Position(state["reader"], state["sizes"])

    def _given(self, batches: Batches) -> Iterator[Feed]:
        with contextlib.closing(batches):
            for batch in batches:
                assert batch.after is not None
                self._position = batch.after
                yield Feed(batch.feed, self._program, batches.read_ahead)
            self._position = self._pipeline.position()


def prefetch(reader: ReaderLike, session: FeedReceiver, program: Any = None, feed_order: FeedOrder = None) -> Feeds:
    """Read minibatches ahead for a custom loop, as feeds of a session: checked, padded and on the device.

    The next minibatch is read while the device works: `session.step(feed)` and `session.run(program, feed)` read it,
    without a thread, as soon as they have started their own work. Wrap a reader that waits for disks or networks longer
    than a step takes in `fluid.reader.buffered`.

    Args:
      reader: as for `Trainer.train`.
      session: the Session that receives the feeds.
      program: the program: its name, its function or the Program itself; optional if the session has one program.
      feed_order: as for `Trainer.train`.

    Returns:
      Feeds, of which each `for feed in feeds:` is one pass. `feeds.epoch` counts the passes that have ended. `state()`
      and `restore()` keep the position after the last yielded feed, like the methods of a Reader.

    Raises:
      ArgumentTypeError: `reader` is not a reader.
      UnknownNameError: the session has no such program.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.SGD(0.1).minimize(loss)
      ...     return loss
      >>> session = fluid.Session(program)
      >>> feeds = fluid.reader.prefetch(fluid.reader.arrays(np.ones((8, 2), "float32"), batch_size=4), session)
      >>> while feeds.epoch < 3:
      ...     for feed in feeds:
      ...         loss, = session.step(feed)
      >>> int(session.scope.step), feeds.epoch
      (6, 3)
    """
    engine = session.engine
    found = engine.find(program)
    convert = Converter(engine, found.feeds, feed_order, engine.buckets(found))
    return Feeds(InputPipeline(minibatches(reader), [convert], keeps_positions=True), found)
