"""Read-ahead in threads: rows keep their order, exceptions reach the consumer, and all threads end with the pass.

Worker threads take a ticket, read the next row, and put the row with its number into a queue. The consumer yields rows
in the order of their numbers, and returns a ticket for each row. Both queues are `SimpleQueue`s, whose `put` is safe
while an object is destroyed: an abandoned iterator stops its threads at that time. The threads refer to the queues
only, so that they do not keep the iterator alive.
"""

import atexit
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from fluid.reader.base import Rows

_ROW = "row"
_END = "end"
_FAILED = "failed"
# `close` waits for the threads for this number of seconds, so that files are closed when `close` returns. A thread
# that is longer in the user's code ends when that code returns.
_PATIENCE = 1.0


# The running passes. They end before Python does, because a thread inside another library would crash then.
_running: "weakref.WeakSet[Ahead]" = weakref.WeakSet()


class Ahead:
    """The threads that read (and map) the rows of one pass ahead, and their shared state.

    Args:
      open_rows: called once, in a thread.
      size: the maximum number of rows ahead of the consumer.
      mapper: applied to each row, in the threads.
      count: the number of threads.
      patience: seconds for which the exit of Python waits for a thread that still reads a row; None waits without
        limit. C++ libraries that call Python from a thread need None.
    """

    def __init__(
        self,
        open_rows: Callable[[], Rows],
        size: int,
        mapper: Callable[[Any], Any] | None = None,
        count: int = 1,
        patience: float | None = _PATIENCE,
    ):
        self.open_rows = open_rows
        self.mapper = mapper
        self.patience = patience
        self.done: queue.SimpleQueue[tuple[int | None, str, Any]] = queue.SimpleQueue()
        self.tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.reading: Rows | None = None
        self.taken = 0
        self.active = count
        self.started = False
        self.stopped = False
        for _ in range(size):
            self.tickets.put(True)
        self.threads = [threading.Thread(target=self.work, name=f"fluid-reader-{i}", daemon=True) for i in range(count)]

    def start(self) -> None:
        """Start the threads, unless they are started already."""
        if not self.started:
            self.started = True
            _running.add(self)
            for thread in self.threads:
                thread.start()

    def rows(self) -> Rows:
        """Yield the rows; the threads start with the first row, if not started already, and end with the last row."""
        held: dict[int, tuple[str, Any]] = {}
        value: Any = None
        try:
            self.start()
            for number in itertools.count():
                while number not in held:
                    arrived, kind, value = self.done.get()
                    if arrived is None:
                        return
                    held[arrived] = kind, value
                kind, value = held.pop(number)
                if kind is _END:
                    return
                if kind is _FAILED and isinstance(value, StopIteration):  # would end the pass silently
                    raise RuntimeError("the mapper of reader.xmap raised StopIteration") from value
                if kind is _FAILED:
                    raise value
                self.tickets.put(True)
                yield value
        finally:
            # The traceback of an exception keeps this frame and its variables alive.
            del value
            held.clear()
            self.end()

    def end(self) -> None:
        """End the threads."""
        self.stop()
        _join(self.threads, _PATIENCE)

    def work(self) -> None:
        """Read and map rows while there are tickets; runs in each thread."""
        try:
            while self.tickets.get() and not self.stopped:
                number, kind, value = self.take()
                if kind is _ROW and self.mapper is not None:
                    try:
                        value = self.mapper(value)
                    except BaseException as error:
                        kind = _FAILED
                        value = error
                self.done.put((number, kind, value))
                del value
        finally:
            self.leave()

    def take(self) -> tuple[int, str, Any]:
        """Read one row; the end and an exception are numbered like rows, and end the reading."""
        with self.lock:
            number = self.taken
            self.taken += 1
            if self.stopped:
                return number, _END, None
            try:
                if self.reading is None:
                    self.reading = self.open_rows()
                return number, _ROW, next(self.reading)
            except StopIteration:
                self.stop()
                return number, _END, None
            except BaseException as error:
                self.stop()
                return number, _FAILED, error

    def stop(self) -> None:
        """Signal all threads to end; needs no lock and never waits."""
        self.stopped = True
        for _ in self.threads:
            self.tickets.put(False)

    def leave(self) -> None:
        """Close the rows if this thread is the last thread, because no other thread can read them then."""
        with self.lock:
            self.active -= 1
            last = self.active == 0
        if last and self.reading is not None:
            self.reading.close()


@atexit.register
def end_all() -> None:
    """End the threads of unfinished passes at the exit of Python."""
    left = list(_running)
    for shared in left:
        shared.stop()
        shared.done.put((None, _END, None))  # the thread that waits for a row may belong to another pass
    for shared in left:
        _join(shared.threads, shared.patience)


def _join(threads: list[threading.Thread], patience: float | None) -> None:
    if sys.is_finalizing():
        return
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(patience)
