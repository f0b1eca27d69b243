"""Streams for threads of other libraries; Python exits only after these threads have released the streams.

pyarrow reads Python streams in its own threads. These threads release a stream, and the blocks read from the stream,
a little after the end of reading. To release an object, a thread takes Python's global lock (GIL). A C++ thread that
requests the lock while Python exits crashes the process.
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
# This list holds weak references to the streams, and to the blocks of bytes, that pyarrow's threads may still use.
# Beside each stream, the list holds the file that the stream reads. The list keeps the file alive, so that pyarrow's
# threads never destroy a file: closing a file may run Python code.
_held: list[tuple["weakref.ref[Any]", Any]] = []


class LentStream:
    """A stream that may be passed to a thread of another library.

    No Python code runs when this stream, or a block of bytes read from it, is destroyed. The thread that destroys the
    stream or the block therefore keeps Python's global lock (GIL) until the release is complete. So if a stream or
    block no longer exists, no thread is still busy with its release.
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
          size: the maximum number of bytes; -1 reads all bytes.
        """
        block = memoryview(self._read(size))  # a memoryview, because bytes objects do not support weak references
        _note(block, None)
        return block


def _note(view: Any, owner: Any) -> None:
    with _lock:
        before = _held[:]
        _held[:] = [(held, of) for held, of in before if held() is not None]
        _held.append((weakref.ref(view), owner))
    # `before` may have the last references to streams that pyarrow no longer uses. Destroy these streams here, when
    # `_lock` is no longer held.
    del before


@atexit.register
def _wait() -> None:
    ahead.end_all()  # end the threads of readers first, because they pass new streams to pyarrow
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(held() is not None for held, _ in _held):
        time.sleep(0.001)
