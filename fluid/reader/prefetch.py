"""Reading minibatches ahead, without a thread.

JAX returns from a step as soon as it is dispatched, while the device still works. The loop uses that time itself: right
after dispatching step k it calls `advance()`, which reads minibatch k+1, converts it and starts its transfer. Reading
overlaps with the work of the device, and the reader still runs in the caller's thread: its exceptions are raised there,
there is nothing to stop or to lock, and readers may use thread-local state. A reader that waits for disks or networks
longer than a step takes can read further ahead in a thread: `fluid.reader.buffered`.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from fluid.core import Program
from fluid.reader.adapters import Minibatches, minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.buckets import Buckets
from fluid.reader.feeder import Feeder, FeedOrder


class Prefetched(NamedTuple):
    """One converted minibatch.

    Attributes:
      feed: what `convert` returned.
      state: position of the reader right after this minibatch, or None.
      seconds: how long reading and converting it took.

    Example:
      >>> Prefetched(feed={}, state=None).seconds
      0.0
    """

    feed: Any
    state: dict[str, Any] | None
    seconds: float = 0.0


class Prefetcher(Iterator[Prefetched]):
    """Converted minibatches, of which the next ones are read when the caller has time for it.

    An exception of the reader or of `convert` is kept, and the same object is raised when its minibatch is due.
    KeyboardInterrupt and SystemExit pass through at once; a minibatch that was read already is not lost.

    Args:
      minibatches: one pass of a reader.
      convert: called with `(minibatch, batch_index)`, such as `feeder.feed`; returns a feed.
      state: called right after a minibatch was read, such as `reader.state`.
      first: index of the first minibatch, for a pass that is continued.

    Attributes:
      seconds: how long reading and converting has taken so far.

    Example:
      >>> import numpy as np
      >>> ahead = Prefetcher(iter([[1, 2], [3]]), lambda minibatch, index: {"x": np.array(minibatch)})
      >>> for item in ahead:
      ...     ahead.advance()  # after the step on item.feed was dispatched
      ...     print(item.feed["x"])
      [1 2]
      [3]
    """

    def __init__(
        self,
        minibatches: Iterable[Any],
        convert: Callable[[Any, int], Any],
        state: Callable[[], dict[str, Any] | None] | None = None,
        first: int = 0,
    ):
        self._iterator = iter(minibatches)
        self._convert = convert
        self._state = state
        self._index = first
        self.seconds = 0.0
        self._read: tuple[Any, dict[str, Any] | None] | None = None
        self._ready: deque[Prefetched | BaseException] = deque()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the reader has ended and every minibatch was given."""
        return self._ended and not self._ready

    @property
    def ahead(self) -> int:
        """How many minibatches were read and not given yet."""
        return len(self._ready)

    @property
    def upcoming(self) -> Iterator[Any]:
        """What was made of the next minibatches, of those that are there already and could be made."""
        return (ready.feed for ready in self._ready if isinstance(ready, Prefetched))

    def advance(self, count: int = 1) -> None:
        """Read and convert the next minibatch, unless so many were read ahead already; raises interrupts only.

        Nothing is read behind a minibatch that could not be read or converted.
        """
        if self._ended or len(self._ready) >= count or (self._ready and not isinstance(self._ready[-1], Prefetched)):
            return
        begun = time.perf_counter()
        try:
            if self._read is None:
                try:
                    minibatch = next(self._iterator)
                except StopIteration:
                    self._ended = True
                    return
                self._read = (minibatch, None if self._state is None else self._state())
            minibatch, state = self._read
            feed = self._convert(minibatch, self._index)
            seconds = time.perf_counter() - begun
            self.seconds += seconds
            self._ready.append(Prefetched(feed, state, seconds))
        except Exception as error:
            self._ready.append(error)
        self._read = None
        self._index += 1

    def __next__(self) -> Prefetched:
        self.advance()
        if not self._ready:
            raise StopIteration
        ready = self._ready.popleft()
        if isinstance(ready, Prefetched):
            return ready
        try:
            if isinstance(ready, StopIteration):  # of `convert`; it would end the pass quietly
                raise RuntimeError("StopIteration was raised while a minibatch was converted") from ready
            raise ready
        finally:
            del ready  # its traceback holds this frame

    def take(self, count: int) -> list[Prefetched]:
        """The next minibatches, as many as were seen among `upcoming`."""
        return [self._ready.popleft() for _ in range(count)]  # type: ignore[misc]

    def close(self) -> None:
        """End the pass: `finally` blocks of readers run, threads end, and nothing more is given."""
        self._ended = True
        self._read = None
        self._ready.clear()
        if hasattr(self._iterator, "close"):
            self._iterator.close()


class Converts(Protocol):
    """What `prefetch` needs of a Session."""

    def find(self, program: Any = None) -> Program:
        """A program by its name, its function or itself."""

    def buckets(self, program: Program) -> Buckets:
        """What pads the sequences of a program."""

    def convert(self, feeder: Feeder, minibatch: Any, index: int) -> dict[str, Any]:
        """A feed on the device of a minibatch and its number."""


class Feed(Mapping[str, Any]):
    """A minibatch as the feed of a program: checked, padded and on the device.

    It cannot be changed; `{**feed, "noise": noise}` is another one.

    Args:
      arrays: by name of feed.
      program: the Program that it was converted for.
      sizes: the state of the buckets behind it.
      advance: reads the next minibatch.

    Attributes:
      arrays: the same.
      program: the same.
      sizes: the same.
      advance: the same.

    Example:
      >>> dict(Feed({"x": 1}, None, None, advance=lambda: None))
      {'x': 1}
    """

    __slots__ = ("advance", "arrays", "program", "sizes")

    def __init__(self, arrays: dict[str, Any], program: Program | None, sizes: Any, advance: Callable[[], None]):
        self.arrays = arrays
        self.program = program
        self.sizes = sizes
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
      source: passes over minibatches.
      program: that is fed.
      feeder: makes feeds of them.
      convert: makes a feed on the device of a minibatch and its number.
    """

    def __init__(
        self,
        source: Minibatches,
        program: Program,
        feeder: Feeder,
        convert: Callable[[Any, int], dict[str, Any]],
    ):
        self._source = source
        self._program = program
        self._feeder = feeder
        self._convert = convert
        self._ragged = any(spec.lod_level for spec in feeder.specs.values())
        self._position: dict[str, Any] = self._now()
        self._open: Prefetcher | None = None

    @property
    def epoch(self) -> int:
        """The number of the pass that is under way, or of the next one: how many passes have ended."""
        return int(self._position["reader"]["epoch"])

    def __call__(self) -> Iterator[Feed]:
        """Start the next pass; after `restore`, the rest of the pass that was interrupted."""
        if self._open is not None:
            self._open.close()
        rows = self._source()
        self._position = self._now()
        first = int(self._position["reader"]["given"])
        batches = Prefetcher(rows, self._feed, self._source.state, first)
        self._open = batches
        return self._given(batches)

    def __iter__(self) -> Iterator[Feed]:
        return self()

    def state(self) -> dict[str, Any]:
        """The position behind the feed that was given last, as JSON, whatever was read ahead; for `restore`."""
        return self._position

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue exactly behind a position.

        Args:
          state: what `state()` of such feeds of a reader with the same parts returned.

        Raises:
          ArgumentError: that is no position, or the position in another reader.
        """
        self._source.restore(state["reader"])
        if self._ragged and state["sizes"] is not None:
            self._feeder.buckets.restore(state["sizes"])
        self._position = dict(state)

    def _feed(self, minibatch: Any, index: int) -> Feed:
        arrays = self._convert(minibatch, index)
        assert self._open is not None
        return Feed(arrays, self._program, self._sizes(), self._open.advance)

    def _given(self, batches: Prefetcher) -> Iterator[Feed]:
        with contextlib.closing(batches):
            for batch in batches:
                self._position = {"reader": batch.state, "sizes": batch.feed.sizes}
                yield batch.feed
            self._position = self._now()

    def _now(self) -> dict[str, Any]:
        return {"reader": self._source.state(), "sizes": self._sizes()}

    def _sizes(self) -> Any:
        return self._feeder.buckets.state() if self._ragged else None


def prefetch(reader: ReaderLike, session: Converts, program: Any = None, feed_order: FeedOrder = None) -> Feeds:
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
    found = session.find(program)
    feeder = Feeder(found.feeds, feed_order, buckets=session.buckets(found))
    return Feeds(minibatches(reader), found, feeder, lambda minibatch, index: session.convert(feeder, minibatch, index))
