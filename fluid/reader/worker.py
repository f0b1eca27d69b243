"""What a worker process of `reader.xmap` runs. It imports modules of Python only.

A process is started with this file and not with the package: a function that needs no JAX then gets a process that
imports none, and starts ten times as fast.
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

# The name under which this file is run in a worker process.
NAME = "__fluid_worker__"
# Arrays of so many bytes or more go through shared memory. A pipe needs a system call for every 200 kB or so, and the
# other process must get its turn in between.
_LARGE = 1 << 16
_HAS_SHARED_MEMORY = hasattr(os, "memfd_create") and reduction.HAVE_SEND_HANDLE

Message = tuple[bytes, Sequence[Any]]


class Channel:
    """Objects to and from another process over a connection; the two sides send in turn.

    Arrays are pickled apart from the objects that hold them, and the large ones lie in memory that both processes see.
    It has no name that could be left behind: the other process gets its file descriptor, and it is gone with the
    processes, however they end. The sender writes to it anew for each object; the receiver copies at once.

    Args:
      connection: one end of a duplex pipe.
    """

    def __init__(self, connection: Connection):
        self._connection = connection
        self._mine: mmap.mmap | None = None
        self._theirs: mmap.mmap | None = None

    def send(self, value: Any) -> None:
        """Send an object; nothing of it is sent when it cannot be pickled."""
        parts: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=parts.append)
        views = [part.raw() for part in parts]
        sizes = [view.nbytes for view in views]
        shared = _HAS_SHARED_MEMORY and sum(sizes) >= _LARGE
        descriptor = None
        if shared:
            descriptor = self._make_room(sum(sizes))
            _copy(views, _split(self._mine, sizes))
        self._connection.send_bytes(pickle.dumps((pickled, sizes, shared, descriptor is not None)))
        if descriptor is not None:
            reduction.send_handle(self._connection, descriptor, None)
            os.close(descriptor)
        if not shared:
            for view in views:
                self._connection.send_bytes(view)

    def receive(self) -> Message:
        """Wait for an object, which `loaded` unpickles.

        Raises:
          EOFError, OSError: the other process has closed its end, or is gone.
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
        """Let the other process know that nothing more will be sent."""
        self._connection.close()

    def _make_room(self, size: int) -> int | None:
        """Make new memory when there is less than so many bytes; returns its file descriptor then."""
        if self._mine is not None and len(self._mine) >= size:
            return None
        room = 1 << (size - 1).bit_length()  # pages that nobody writes to take no memory
        descriptor = os.memfd_create("fluid-reader")
        os.ftruncate(descriptor, room)
        self._mine = mmap.mmap(descriptor, room)
        return descriptor


def loaded(message: Message) -> Any:
    """Unpickle an object that `Channel.receive` returned; its arrays can be written to."""
    pickled, parts = message
    return pickle.loads(pickled, buffers=parts)


def _split(memory: Any, sizes: Sequence[int]) -> list[memoryview]:
    """The parts of a piece of memory that lie one after the other in it."""
    view = memoryview(memory)
    return [view[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _copy(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    import numpy as np  # whose arrays these are; it lets other threads run while it copies

    for source, target in zip(sources, targets, strict=True):
        np.frombuffer(target, np.uint8)[:] = np.frombuffer(source, np.uint8)


def serve(connection: Connection, pickled: bytes) -> None:
    """Call a function with the arguments that come, and send what it returns or raises, until the connection ends.

    Args:
      connection: to the process that asks.
      pickled: the function.
    """
    # Ctrl-C reaches every process of a terminal. The one that asks decides when this one ends.
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
        except BaseException as error:  # it cannot be pickled
            channel.send(_failure(error))
        del message, answer


def _failure(error: BaseException) -> tuple[bool, BaseException | None, str]:
    """An answer: the exception, or None when it cannot be pickled, and its traceback as text."""
    frames = error.__traceback__ and error.__traceback__.tb_next  # without the line in `serve`
    text = "".join(traceback.format_exception(type(error), error, frames))
    with contextlib.suppress(Exception):
        return False, pickle.loads(pickle.dumps(error)), text
    return False, None, text


def _keep_off_accelerators() -> None:
    """Let a function that uses JAX compute on the CPU; the accelerator belongs to the process that trains."""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    else:
        os.environ["JAX_PLATFORMS"] = "cpu"


if __name__ == NAME:
    serve(CONNECTION, FUNCTION)  # type: ignore[name-defined]  # noqa: F821 (set by the process that starts this one)
