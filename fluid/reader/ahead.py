"""Reading ahead in threads, so that nothing is lost: not the order, not an exception, and no thread stays behind.

Workers take a ticket, read the next row, and put it, numbered, into a queue; the consumer sorts by number and hands a
ticket back for each row that it receives. Both queues are `SimpleQueue`s, whose `put` may be called while an object is
being destroyed: that is when a forgotten iterator tells its threads to end. Threads know the queues, not the iterator.
"""

import itertools
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from fluid.reader.base import Rows

_ROW, _END, _FAILED = "row", "end", "failed"
# How long a pass that is given up waits for its threads, so that files are closed when `close` returns. A thread that
# hangs in the user's own code longer than that ends as soon as that code returns.
_PATIENCE = 1.0


class _Workers:
    """The threads of one pass and what they share."""

    def __init__(self, open_rows: Callable[[], Rows], size: int, mapper: Callable[[Any], Any] | None, count: int):
        self.open_rows, self.mapper = open_rows, mapper
        self.done: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
        self.tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.rows: Rows | None = None
        self.taken, self.active, self.stopped = 0, count, False
        for _ in range(size):
            self.tickets.put(True)
        self.threads = [threading.Thread(target=self.work, name=f"fluid-reader-{i}", daemon=True) for i in range(count)]

    def work(self) -> None:
        """What each thread does."""
        try:
            while self.tickets.get() and not self.stopped:
                number, kind, value = self.take()
                if kind is _ROW and self.mapper is not None:
                    try:
                        value = self.mapper(value)
                    except BaseException as error:
                        kind, value = _FAILED, error
                self.done.put((number, kind, value))
                del value
        finally:
            self.leave()

    def take(self) -> tuple[int, str, Any]:
        """Read one row; the end and an exception are numbered like rows, and nothing is read after them."""
        with self.lock:
            number, self.taken = self.taken, self.taken + 1
            if self.stopped:
                return number, _END, None
            try:
                if self.rows is None:
                    self.rows = self.open_rows()
                return number, _ROW, next(self.rows)
            except StopIteration:
                self.stop()
                return number, _END, None
            except BaseException as error:
                self.stop()
                return number, _FAILED, error

    def stop(self) -> None:
        """Tell all threads to end. Needs no lock and never waits."""
        self.stopped = True
        for _ in self.threads:
            self.tickets.put(False)

    def leave(self) -> None:
        """The last thread to end closes the rows: no other one can be reading them."""
        with self.lock:
            self.active -= 1
            last = self.active == 0
        if last and self.rows is not None:
            self.rows.close()


def read_ahead(
    open_rows: Callable[[], Rows], size: int, mapper: Callable[[Any], Any] | None = None, workers: int = 1
) -> Rows:
    """The rows of a reader, read (and mapped) ahead of need by threads.

    Args:
      open_rows: called in a thread, once.
      size: how many rows may be ahead of the consumer.
      mapper: applied to each row, in the threads.
      workers: number of threads.
    """
    shared = _Workers(open_rows, size, mapper, workers)
    held: dict[int, tuple[str, Any]] = {}
    value: Any = None
    try:
        for thread in shared.threads:
            thread.start()
        for number in itertools.count():
            while number not in held:
                arrived, *rest = shared.done.get()
                held[arrived] = rest[0], rest[1]
            kind, value = held.pop(number)
            if kind is _END:
                return
            if kind is _FAILED:
                raise _not_the_end(value)
            shared.tickets.put(True)
            yield value
    finally:
        # An exception's traceback holds this frame: what the frame holds would live as long as the exception.
        del value
        held.clear()
        shared.stop()
        _join(shared.threads)


def _not_the_end(error: BaseException) -> BaseException:
    if isinstance(error, StopIteration):  # raised by a mapper; in an iterator it would mean that all is well
        stopped = RuntimeError("the mapper of reader.xmap raised StopIteration")
        stopped.__cause__ = error
        return stopped
    return error


def _join(threads: list[threading.Thread]) -> None:
    if sys.is_finalizing():
        return
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
