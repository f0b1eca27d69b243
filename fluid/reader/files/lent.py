"""Streams lent to threads of other libraries; Python exits only after these threads have released them.

pyarrow reads Python streams in its own threads. These threads release a stream, and the blocks read from the stream,
a little after the end of reading. To release an object, a thread takes Python's lock. A C++ thread that requests the
lock while Python exits crashes the process.
"""

import atexit
import threading
import time
import weakref
from typing import IO, Any

from fluid.reader import ahead

# The maximum wait at the exit of Python, in seconds; the wait takes microseconds unless the machine is overloaded.
_PATIENCE = 5.0

_lock = threading.Lock()
# Lent objects and their origins. Origins are destroyed here, because closing a file may run Python code.
_held: list[tuple["weakref.ref[Any]", Any]] = []


class Stream:
    """A stream to lend.

    No Python code runs when the stream or a block is destroyed. The destroying thread therefore keeps Python's lock
    to the end, so that an object that no longer exists is also released by the thread.

    Args:
      stream: the stream to read.
    """

    closed = False

    def __init__(self, stream: IO[bytes]):
        self.seek = stream.seek
        self.tell = stream.tell
        self._read = stream.read
        _note(self, stream)

    def read(self, size: int = -1) -> "memoryview[int]":
        """Read the next bytes.

        Args:
          size: the maximum number of bytes; all for -1.
        """
        block = memoryview(self._read(size))  # bytes objects do not support weak references
        _note(block, None)
        return block


def _note(lent: Any, made_of: Any) -> None:
    with _lock:
        before = _held[:]
        _held[:] = [(held, of) for held, of in before if held() is not None]
        _held.append((weakref.ref(lent), made_of))
    del before  # destroyed only now, after the lock is released


@atexit.register
def _wait() -> None:
    ahead.end_all()  # these threads lend streams
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(held() is not None for held, _ in _held):
        time.sleep(0.001)
