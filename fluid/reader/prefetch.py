"""Minibatches as feeds of a Session, read ahead, for a loop of one's own."""

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
    """The engine of a Session, as `prefetch` uses it."""

    def find(self, program: Any = None) -> Program:
        """Return a program by its name, its function or itself."""

    def buckets(self, program: Program) -> Buckets:
        """Return new Buckets, which pad the sequences of a program."""


class Fed(Protocol):
    """The Session that is fed."""

    @property
    def engine(self) -> _Engine:
        """The inside of the Session."""


class Feed(Mapping[str, Any]):
    """A minibatch as the feed of a program: checked, padded and on the device.

    It cannot be changed; `{**feed, "noise": noise}` is another one.

    Args:
      arrays: by name of feed.
      program: the Program that it was converted for.
      advance: reads the next minibatch.

    Attributes:
      arrays: the same.
      program: the same.
      advance: the same.

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
    """The minibatches of a reader as feeds of a session, in passes. Made by `prefetch`.

    Args:
      pipeline: of one program.
      program: that is fed.
    """

    def __init__(self, pipeline: InputPipeline, program: Program):
        self._pipeline = pipeline
        self._program = program
        self._position: Position = pipeline.position()
        self._open: Batches | None = None

    @property
    def epoch(self) -> int:
        """The number of the pass that is under way, or of the next one: how many passes have ended."""
        return int(self._position.reader["epoch"])

    def __call__(self) -> Iterator[Feed]:
        """Start the next pass; after `restore`, the rest of the pass that was interrupted."""
        if self._open is not None:
            self._open.close()
        self._open = self._pipeline.start()
        self._position = self._pipeline.position()
        return self._given(self._open)

    def __iter__(self) -> Iterator[Feed]:
        return self()

    def state(self) -> dict[str, Any]:
        """The position behind the feed that was given last, as JSON, whatever was read ahead; for `restore`."""
        return {"reader": self._position.reader, "sizes": self._position.padding}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue exactly behind a position.

        Args:
          state: what `state()` of such feeds of a reader with the same parts returned.

        Raises:
          ArgumentError: that is no position, or the position in another reader.
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


def prefetch(reader: ReaderLike, session: Fed, program: Any = None, feed_order: FeedOrder = None) -> Feeds:
    """Read minibatches ahead, for a loop of your own: as feeds of a session, checked, padded and on the device.

    The next minibatch is read while the device works: by `session.step(feed)` and `session.run(program, feed)`, as soon
    as they have started theirs, without a thread. A reader that waits for disks or networks longer than a step takes
    goes through `fluid.reader.buffered` before.

    Args:
      reader: as for `Trainer.train`.
      session: the Session that shall be fed.
      program: which of its programs: its name, its function or itself; may be left out when there is one.
      feed_order: as for `Trainer.train`.

    Returns:
      Feeds, of which each `for feed in feeds:` is one pass. `feeds.epoch` counts the passes that have ended; `state()`
      and `restore()` keep the position, as those of a Reader do, behind the feed that was given last.

    Raises:
      ArgumentTypeError: that is no reader.
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
