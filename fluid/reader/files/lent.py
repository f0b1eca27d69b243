"""What is lent to threads of other libraries. Python does not end before they have let go of it.

pyarrow reads streams of Python in threads of its own. These let go of a stream, and of the blocks read from it, a
little later than the reading ends. To do so they take Python's lock, and a thread of C++ that asks for the lock while
Python ends takes the process down.
"""

import atexit
import threading
import time
import weakref
from typing import IO, Any

from fluid.reader import ahead

# For so many seconds the end of Python waits; it is microseconds unless the machine is overloaded.
_PATIENCE = 5.0

_lock = threading.Lock()
# What is lent, and what it was made of: that is destroyed here, since files may run Python code then.
_held: list[tuple["weakref.ref[Any]", Any]] = []


class Stream:
    """A stream to lend.

    When it or a block is destroyed, no Python code runs: the thread that does so keeps Python's lock until it is
    through, so that what is seen to be gone has been let go of.

    Args:
      stream: what is read.
    """

    closed = False

    def __init__(self, stream: IO[bytes]):
        self.seek = stream.seek
        self.tell = stream.tell
        self._read = stream.read
        _note(self, stream)

    def read(self, size: int = -1) -> "memoryview[int]":
        """The next bytes.

        Args:
          size: how many at most; all for -1.
        """
        block = memoryview(self._read(size))  # bytes have no weak references
        _note(block, None)
        return block


def _note(lent: Any, made_of: Any) -> None:
    with _lock:
        before = _held[:]
        _held[:] = [(held, of) for held, of in before if held() is not None]
        _held.append((weakref.ref(lent), made_of))
    del before  # destroyed only now, when the lock is free


@atexit.register
def _wait() -> None:
    ahead.end_all()  # they are the ones that lend
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(held() is not None for held, _ in _held):
        time.sleep(0.001)
