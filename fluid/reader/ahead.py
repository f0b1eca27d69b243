"""Read-ahead in threads: rows keep their order, exceptions reach the consumer, threads end with the pass over the data.

Worker threads take a ticket, read the next row, and put the row with its number into a queue. The consumer yields rows
in the order of their numbers, and puts one ticket back for each row. The number of tickets limits how many rows are
read ahead. Rows and tickets travel in `SimpleQueue`s, whose `put` may be called while Python destroys an object. An
iterator that its user drops can therefore stop its threads. The threads refer to the Ahead object only, so that they do
not keep that iterator alive.
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
# Closing a pass waits for its threads for at most `_PATIENCE` seconds, so that files are usually closed afterwards. A
# thread that spends more time in the user's reader ends when the reader returns.
_PATIENCE = 1.0


# This set holds the passes over readers whose threads still run. `end_all` ends the threads before Python exits: a
# thread that still runs code of another library would crash at the exit.
_running: "weakref.WeakSet[Ahead]" = weakref.WeakSet()


class Ahead:
    """A group of threads that read the rows of one pass ahead, and apply a function (the mapper) to each row.

    Args:
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
        """Start the threads that read rows ahead, unless they are started already."""
        if not self.started:
            self.started = True
            _running.add(self)
            for thread in self.threads:
                thread.start()

    def rows(self) -> Rows:
        """Yield the rows in order; start the threads at the first row, and end the threads after the last row."""
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
                # A StopIteration that the mapper raises would silently end the pass, so it is replaced by a
                # RuntimeError.
                if kind is _FAILED and isinstance(value, StopIteration):
                    raise RuntimeError("the mapper of reader.xmap raised StopIteration") from value
                if kind is _FAILED:
                    raise value
                self.tickets.put(True)
                yield value
        finally:
            # Release the rows in `value` and `held`, because the traceback of an exception would keep both variables
            # alive.
            del value
            held.clear()
            self.end()

    def end(self) -> None:
        """Stop the threads that read rows ahead in this pass over the data, and wait a short time until they end."""
        self.stop()
        _join(self.threads, _PATIENCE)

    def work(self) -> None:
        """Read rows and apply the mapper to them, one row for each ticket (permission to read); runs in each thread."""
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
        """Read the next row, and return its number, the text "row", and the row itself.

        At the end of the pass, the second value is "end" and the third is None. If the reader raises an exception, the
        second value is "failed" and the third is the exception. No row is read after that.
        """
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
        """Signal the end to all threads that read rows ahead; take no lock, and do not wait for the threads."""
        self.stopped = True
        for _ in self.threads:
            self.tickets.put(False)

    def leave(self) -> None:
        """Record that this thread has ended; the last thread to end closes the generator of the rows."""
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
        # Wake a consumer that waits for a row, because it may run in a thread of another pass over the data. The next
        # loop waits for the end of that thread.
        shared.done.put((None, _END, None))
    for shared in left:
        _join(shared.threads, shared.patience)


def _join(threads: list[threading.Thread], patience: float | None) -> None:
    if sys.is_finalizing():
        return
    for thread in threads:
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(patience)
