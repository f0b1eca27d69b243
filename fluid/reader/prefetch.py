"""Reading one minibatch ahead, without a thread.

JAX returns from a step as soon as it is dispatched, while the device still works. The loop uses that time itself: right
after dispatching step k it calls `advance()`, which reads minibatch k+1, converts it and starts its transfer. Reading
overlaps with the work of the device, and the reader still runs in the caller's thread: its exceptions are raised there,
there is nothing to stop or to lock, and readers may use thread-local state. A reader that waits for disks or networks
longer than a step takes can read further ahead in a thread: `fluid.reader.buffered`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


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
    """Converted minibatches, of which the next one is read when the caller has time for it.

    An exception of the reader or of `convert` is kept, and the same object is raised when its minibatch is due.
    KeyboardInterrupt and SystemExit pass through at once; a minibatch that was read already is not lost.

    Args:
      minibatches: one pass of a reader.
      convert: called with `(minibatch, batch_index)`, such as `feeder.feed`; returns a feed.
      state: called right after a minibatch was read, such as `reader.state`.
      first: index of the first minibatch, for a pass that is continued.

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
        self._read: tuple[Any, dict[str, Any] | None] | None = None
        self._ready: Prefetched | BaseException | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the reader has ended and every minibatch was given."""
        return self._ended and self._ready is None

    def advance(self) -> None:
        """Read and convert the next minibatch, if that has not been done; raises interrupts only."""
        if self._ready is not None or self._ended:
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
            self._ready = Prefetched(feed, state, time.perf_counter() - begun)
        except Exception as error:
            self._ready = error
        self._read = None
        self._index += 1

    def __next__(self) -> Prefetched:
        self.advance()
        ready = self._ready
        self._ready = None
        if ready is None:
            raise StopIteration
        if isinstance(ready, Prefetched):
            return ready
        try:
            if isinstance(ready, StopIteration):  # of `convert`; it would end the pass quietly
                raise RuntimeError("StopIteration was raised while a minibatch was converted") from ready
            raise ready
        finally:
            del ready  # its traceback holds this frame

    def close(self) -> None:
        """End the pass: `finally` blocks of readers run, threads end, and nothing more is given."""
        self._ended = True
        self._read = None
        self._ready = None
        if hasattr(self._iterator, "close"):
            self._iterator.close()
