"""Worker: the code that a worker process of `reader.xmap` runs; it imports the standard library only.

A process starts with this file, not with the package `fluid`. A mapper that does not use JAX then runs in a process
that does not import JAX, and the process starts ten times as fast.
"""

import contextlib
import itertools
import mmap
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

# The module name under which this file runs in a worker process.
NAME = "__fluid_worker__"
# Objects whose arrays have at least `_LARGE` bytes in total go through shared memory. A pipe needs a system call for
# every 200 kB or so, and the other process must be scheduled in between.
_LARGE = 1 << 16
_HAS_SHARED_MEMORY = hasattr(os, "memfd_create") and reduction.HAVE_SEND_HANDLE

Message = tuple[bytes, Sequence[Any]]


class Channel:
    """A channel that sends objects to another process and receives objects from it; the two sides send in turn.

    Arrays are pickled apart from the objects that hold them, and large arrays go through shared memory. The shared
    memory has no file name, so that no file can remain: the other process receives its file descriptor, and the memory
    is freed when both processes end, however they end. The sender overwrites the memory for each object; the receiver
    therefore copies it at once.
    """

    def __init__(self, connection: Connection):
        self._connection = connection
        self._mine: mmap.mmap | None = None
        self._theirs: mmap.mmap | None = None

    def send(self, value: Any) -> None:
        """Send an object; if it cannot be pickled, raise an error before any data is sent."""
        parts: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=parts.append)
        views = [part.raw() for part in parts]
        sizes = [view.nbytes for view in views]
        shared = _HAS_SHARED_MEMORY and sum(sizes) >= _LARGE
        descriptor = None
        if shared:
            descriptor = self._grow(sum(sizes))
            _copy(views, _split(self._mine, sizes))
        self._connection.send_bytes(pickle.dumps((pickled, sizes, shared, descriptor is not None)))
        if descriptor is not None:
            reduction.send_handle(self._connection, descriptor, None)
            os.close(descriptor)
        if not shared:
            for view in views:
                self._connection.send_bytes(view)

    def receive(self) -> Message:
        """Wait for an object, and return it still pickled; `loaded` unpickles it.

        Raises:
          EOFError, OSError: the other process has closed its end, or has died.
        """
        pickled, sizes, shared, new = pickle.loads(self._connection.recv_bytes())
        if new:
            descriptor = reduction.recv_handle(self._connection)
            self._theirs = mmap.mmap(descriptor, 0)
            os.close(descriptor)
        if not shared:
            return pickled, [bytearray(self._connection.recv_bytes()) for _ in sizes]
        parts = [bytearray(size) for size in sizes]
        _copy(_split(self._theirs, sizes), parts)
        return pickled, parts

    def close(self) -> None:
        """Close the connection, so that the other process expects no more objects."""
        self._connection.close()

    def _grow(self, size: int) -> int | None:
        """Create new shared memory if the current one is smaller than `size` bytes.

        Return the file descriptor of the new memory; None if the current memory is large enough.
        """
        if self._mine is not None and len(self._mine) >= size:
            return None
        # Round the size of the shared memory up to a power of two; unused pages take no memory until they are written.
        capacity = 1 << (size - 1).bit_length()
        descriptor = os.memfd_create("fluid-reader")
        os.ftruncate(descriptor, capacity)
        self._mine = mmap.mmap(descriptor, capacity)
        return descriptor


def loaded(message: Message) -> Any:
    """Unpickle a message from another process, a result of `Channel.receive`; arrays in the object are writable."""
    pickled, parts = message
    return pickle.loads(pickled, buffers=parts)


def _split(memory: Any, sizes: Sequence[int]) -> list[memoryview]:
    view = memoryview(memory)
    return [view[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _copy(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    import numpy as np  # the arrays come from NumPy, so it is imported already; it copies without holding Python's lock

    for source, target in zip(sources, targets, strict=True):
        np.frombuffer(target, np.uint8)[:] = np.frombuffer(source, np.uint8)


def serve(connection: Connection, pickled: bytes) -> None:
    """Call a function with received arguments, and send its result or exception, until the connection ends."""
    # Ctrl-C reaches every process of a terminal. It is ignored, because only the parent process decides when this
    # process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_off_accelerators()
    channel = Channel(connection)
    function: Any = None
    while True:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            return
        try:
            function = function or pickle.loads(pickled)
            answer = (True, function(*loaded(message)), "")
        except BaseException as error:
            answer = _failure(error)
        try:
            channel.send(answer)
        except OSError:
            return
        except BaseException as error:  # pickle raises if it cannot serialize the result
            channel.send(_failure(error))
        del message, answer


def _failure(error: BaseException) -> tuple[bool, BaseException | None, str]:
    """Return the message to send to the parent process for an exception: False, the exception, its traceback as text.

    None takes the place of an exception that cannot be pickled.
    """
    # Leave out the first frame of the traceback, because it belongs to `serve`, which caught `error`.
    frames = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    with contextlib.suppress(Exception):
        return False, pickle.loads(pickle.dumps(error)), text
    return False, None, text


def _keep_off_accelerators() -> None:
    """Run JAX functions on the CPU, because the accelerator belongs to the training process."""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    else:
        os.environ["JAX_PLATFORMS"] = "cpu"


if __name__ == NAME:
    serve(CONNECTION, FUNCTION)  # type: ignore[name-defined]  # noqa: F821 (set by the process that starts this one)
