"""The input pipeline: convert minibatches of one or several programs to Batches, read ahead without a thread.

JAX returns from a step as soon as the step is dispatched, while the device still works. The training loop uses this
time: after dispatching step k it calls `read_ahead()`, which reads minibatch k+1, converts it and starts to copy it to
the device. Reading thus overlaps with the work of the device, while the reader still runs in the caller's thread. The
exceptions of the reader are raised there, no thread must be stopped or locked, and readers may use thread-local state.
A reader that waits for disks or networks longer than a step takes can read further ahead in a thread:
`fluid.reader.buffered`.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from fluid import errors
from fluid.reader.converter import Converter
from fluid.reader.on_device import RowFeed, alike, stacked


class Position(NamedTuple):
    """The position of a pass over a reader, from which training can continue.

    Attributes:
      reader: the state of the reader, as JSON.
      padding: the state of the Buckets, which choose the padded sizes of sequences, as JSON; None without sequences.
    """

    reader: Any
    padding: Any


class Batch(NamedTuple):
    """A minibatch for one program, on the device; or several minibatches that one compiled call trains on.

    Attributes:
      feed: arrays by name `[batch, ...]`; for several minibatches StackedFeeds or Picks of `fluid.reader.on_device`.
      program: index of the program.
      count: number of minibatches.
      examples: number of examples in each minibatch.
      before: position of the reader before the last minibatch of this Batch, with the state of the padding at that
        time. Training that continues there reads this minibatch again. None if the pipeline keeps no positions.
      after: position of the reader after the last minibatch of this Batch; None if the pipeline keeps no positions.
      seconds: time spent reading and converting the minibatches, in seconds.
      minibatches: one Batch for each minibatch if there are several, else empty.
    """

    feed: Any
    program: int = 0
    count: int = 1  # type: ignore[assignment]  # tuples have a method with this name
    examples: int = 1
    before: Position | None = None
    after: Position | None = None
    seconds: float = 0.0
    minibatches: tuple["Batch", ...] = ()

    @property
    def each(self) -> tuple["Batch", ...]:
        """The minibatches of this Batch, each as a separate Batch; only this Batch if it is a single minibatch."""
        return self.minibatches or (self,)

    @property
    def nbytes(self) -> int:
        """The number of bytes of `feed` that are copied from the host; 0 for rows of a data set on the device."""
        if type(self.feed) is RowFeed:
            return 0
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(dict(self.feed)))


class MinibatchSource(Protocol):
    """An interface for a source of minibatches; each call starts a new pass (iteration) over the data.

    With several programs, a pass yields pairs `(index of a program, minibatch)` instead of minibatches.
    """

    @property
    def reads_once(self) -> bool:
        """True if the user passed an iterator as reader, which can be read only once."""

    @property
    def ready(self) -> bool:
        """True if the next minibatch can be read now."""

    def __call__(self) -> Iterator[Any]:
        """Start the next pass over the minibatches."""

    def state(self) -> dict[str, Any]:
        """Return the position in the data after the last yielded minibatch, as JSON for `restore`."""

    def restore(self, state: Mapping[str, Any]) -> Any:
        """Make the next pass over the data continue exactly after a position that the method `state` has returned."""


class InputPipeline:
    """A pipeline from minibatches to Batches on the device, for training, tests, predictions and custom loops.

    Attributes:
      source: the source of the minibatches.
      keeps_positions: True if each Batch records the position of the reader.

    Example:
      >>> import fluid, numpy as np
      >>> from fluid.reader.adapters import minibatches
      >>> session = fluid.Session(lambda: fluid.layers.scale(fluid.layers.data("x", shape=[2])))
      >>> (program,) = session.programs.values()
      >>> convert = Converter(session.engine, program.feeds)
      >>> pipeline = InputPipeline(minibatches(fluid.reader.arrays(np.ones((3, 2)), batch_size=2)), [convert])
      >>> for batch in pipeline.start():
      ...     print(batch.examples, batch.feed["x"].shape)
      2 (2, 2)
      1 (1, 2)
    """

    def __init__(
        self,
        source: MinibatchSource,
        converters: Sequence[Converter],
        check: Callable[[], None] | None = None,
        keeps_positions: bool = False,
    ):
        self.source = source
        self.keeps_positions = keeps_positions
        self._converters = converters
        self._check = check
        self._ragged = any(converter.is_ragged for converter in converters)

    def start(self) -> "Batches":
        """Start the next pass over the data, or continue an interrupted pass whose position was restored."""
        return Batches(self, self.source())

    def position(self, reader: Any = None) -> Position:
        """Return the position after the last minibatch that was read, with the state of the padding (see `Buckets`)."""
        padding = None
        if self._ragged:
            states = [converter.feeder.buckets.state() for converter in self._converters]
            padding = states[0] if len(states) == 1 else states
        return Position(self.source.state() if reader is None else reader, padding)

    def restore_padding(self, state: Any) -> None:
        """Restore the state of the Buckets, which choose padded sizes, from `Position.padding`; do nothing for None.

        Raises:
          ArgumentError: the state has another number of programs than this pipeline.
        """
        if not self._ragged or state is None:
            return
        states = [state] if isinstance(state, Mapping) else state
        if len(states) != len(self._converters):
            raise errors.ArgumentError(
                f"restore needs the sizes of {len(self._converters)} programs, found those of {len(states)}"
            )
        for converter, its in zip(self._converters, states, strict=True):
            converter.feeder.buckets.restore(its)

    def convert(self, item: Any, index: int) -> tuple[Any, int, int]:
        """Convert an item of the source to a feed, the index of its program, and the number of its examples.

        Raises:
          FeedError: data does not fit.
        """
        if self._check is not None:
            self._check()
        program, minibatch = item if len(self._converters) > 1 else (0, item)
        converter = self._converters[program]
        feed = converter(minibatch, index)
        return feed, program, converter.examples(feed)

    def place(self, value: Any) -> Any:
        """Put a tree of arrays on the device."""
        return self._converters[0].place(value)


class Batches(Iterator[Batch]):
    """An iterator over the Batches of one pass of an InputPipeline, which reads ahead when `read_ahead` is called.

    An exception of the reader or of a Converter is stored, and raised when its minibatch is due. KeyboardInterrupt and
    SystemExit are raised at once; a minibatch that was already read is not lost.

    Args:
      items: the minibatches that the source of the pipeline yields; with several programs, pairs
        `(program, minibatch)`.

    Attributes:
      seconds: the time spent reading and converting so far.
    """

    def __init__(self, pipeline: InputPipeline, items: Iterator[Any]):
        self.seconds = 0.0
        self._pipeline = pipeline
        self._items = items
        # `_before` and `_after` are the positions of the reader before and after the last minibatch that was read.
        self._before = self._after = pipeline.position() if pipeline.keeps_positions else None
        # `_index` is the index of the next minibatch to convert, counted within the pass over the data.
        self._index = 0 if self._after is None else int(self._after.reader["given"])
        # `_read`: a tuple with the minibatch that was read last; None if this minibatch is converted already.
        self._read: tuple[Any] | None = None
        self._ready: deque[Batch | BaseException] = deque()
        self._ended = False

    @property
    def ended(self) -> bool:
        """True if the reader has ended and every minibatch was returned."""
        return self._ended and not self._ready

    @property
    def waiting(self) -> int:
        """The number of minibatches that are read ahead and not yet returned."""
        return len(self._ready)

    @property
    def upcoming(self) -> Batch | None:
        """The next minibatch, if it is already read and converted without an error; else None."""
        first = self._ready[0] if self._ready else None
        return first if isinstance(first, Batch) else None

    def read_ahead(self, count: int = 1) -> None:
        """Read and convert one more minibatch, unless `count` minibatches are read already.

        An error is stored and raised when its minibatch is due, and reading stops until then. KeyboardInterrupt and
        SystemExit are raised at once.
        """
        if self._ended or len(self._ready) >= count or (self._ready and not isinstance(self._ready[-1], Batch)):
            return
        begun = time.perf_counter()
        try:
            if self._read is None:
                try:
                    self._read = (next(self._items),)
                except StopIteration:
                    self._ended = True
                    return
                self._move()
            feed, program, examples = self._pipeline.convert(self._read[0], self._index)
            if self._after is not None and self._after.padding is not None:
                self._after = self._pipeline.position(self._after.reader)
            seconds = time.perf_counter() - begun
            self.seconds += seconds
            self._ready.append(Batch(feed, program, 1, examples, self._before, self._after, seconds))
        except Exception as error:
            self._ready.append(error)
        self._read = None
        self._index += 1

    def peek(self) -> Batch | None:
        """Return the next minibatch without removing it from the queue; None at the end of the data.

        Raises:
          Exception: the minibatch could not be read or converted.
        """
        if not self._ready:
            self.read_ahead()
            if not self._ready:
                return None
        ready = self._ready[0]
        if isinstance(ready, Batch):
            return ready
        self._ready.popleft()
        try:
            # A StopIteration that a Converter has raised would silently end a `for` loop.
            if isinstance(ready, StopIteration):
                raise RuntimeError("StopIteration was raised while a minibatch was converted") from ready
            raise ready
        finally:
            # The traceback of the exception refers to the variables of this function. Without this line, the exception
            # and its traceback would keep each other alive.
            del ready

    def take(self, limit: int = 1, capacity: int = 1) -> Batch:
        """Return the next minibatch, and with it the minibatches read ahead that can run in the same compiled call.

        Minibatches can run in one call if they have one program and equal shapes. Call `peek` first, because a
        minibatch must be ready.

        Args:
          capacity: the number of minibatches for which the stacked arrays have space. Calls with equal capacity and
            different numbers of minibatches share one compilation.
        """
        minibatches = self._alike(limit)
        for _ in minibatches:
            self._ready.popleft()
        last = minibatches[-1]
        if len(minibatches) == 1:
            return last._replace(feed=last.feed.arrays()) if type(last.feed) is RowFeed else last
        seconds = sum(batch.seconds for batch in minibatches)
        feed = stacked([batch.feed for batch in minibatches], capacity, self._pipeline.place)
        return last._replace(feed=feed, count=len(minibatches), seconds=seconds, minibatches=minibatches)

    def __next__(self) -> Batch:
        if self.peek() is None:
            raise StopIteration
        return self.take()

    def close(self) -> None:
        """End the pass over the data: run `finally` blocks of readers, end threads, and return no more minibatches."""
        self._ended = True
        self._read = None
        self._ready.clear()
        if hasattr(self._items, "close"):
            self._items.close()

    def _move(self) -> None:
        """Record the positions of the reader before and after the minibatch that was just read."""
        if self._after is not None:
            now = self._pipeline.position()
            self._before = self._after if now.padding is None else Position(self._after.reader, now.padding)
            self._after = now

    def _alike(self, limit: int) -> tuple[Batch, ...]:
        """Return the next minibatches, at most `limit`, that are already read and can run in one compiled call."""
        first = self._ready[0]
        assert isinstance(first, Batch)
        if limit == 1:
            return (first,)
        waiting = (b for b in itertools.islice(self._ready, 1, limit))
        same = itertools.takewhile(lambda b: isinstance(b, Batch) and b.program == first.program, waiting)
        found: list[Any] = list(same)
        return (first, *found[: alike(first.feed, (batch.feed for batch in found))])
