"""Worker processes: processes that call one function. They are spawned, because JAX does not support a fork.

In a Pool, each process belongs to one `_Slot`, which starts the process and exchanges data with it. A thread that needs
a result takes an idle `_Slot`, sends the arguments and waits. The threads of `fluid.reader.ahead` therefore handle the
order of the rows, exceptions, and the end of a pass.
"""

import contextlib
import multiprocessing
import pickle
import queue
import runpy
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

from fluid import errors
from fluid.reader import worker

_SPAWN = multiprocessing.get_context("spawn")
# After its connection is closed, a process has `_PATIENCE` seconds to end before it is killed.
_PATIENCE = 1.0


class Pool:
    """A pool of worker processes that call one function. Each process starts on first use.

    The processes end when the Pool is no longer referenced, or when Python exits, also if Python is killed.

    Raises:
      ArgumentTypeError: other processes cannot find the function.

    Example:
      >>> pool = Pool("reader.xmap", divmod, count=1)
      >>> pool.call(7, 2)
      (3, 1)
    """

    def __init__(self, caller: str, function: Callable[..., Any], count: int):
        pickled = _pickled(caller, function, count)
        slots = [_Slot(caller, pickled, f"fluid-reader-{i}") for i in range(count)]
        self._idle: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        for slot in slots:
            self._idle.put(slot)
        weakref.finalize(self, _end, slots)

    def call(self, *arguments: Any) -> Any:
        """Call the function in an idle process, and wait for the result.

        Raises:
          ReaderError: the process has died, or the arguments or the result cannot be pickled.
          BaseException: the exception of the function, with a note that holds its traceback.
        """
        slot = self._idle.get()
        try:
            return slot.call(arguments)
        finally:
            self._idle.put(slot)


class _Slot:
    """A manager of one worker process: starts it at the first call, and replaces a process that has died."""

    def __init__(self, caller: str, pickled: bytes, name: str):
        self._caller = caller
        self._pickled = pickled
        self._name = name
        self._process: SpawnProcess | None = None
        self._channel: worker.Channel | None = None
        self._answered = False

    def call(self, arguments: tuple[Any, ...]) -> Any:
        """Call the function in the worker process, and wait for its result; see `Pool.call`."""
        channel = self._channel or self._start()
        try:
            channel.send(arguments)
            message = channel.receive()
        except (EOFError, OSError) as error:
            raise self._died() from error
        except Exception as error:
            raise errors.ReaderError(
                f"{self._caller} cannot send a row to another process: {_first_line(error)}; expected rows that can be "
                f"pickled, such as tuples of numbers, strings and arrays; or use threads: process_num=4"
            ) from error
        self._answered = True
        returned, value, text = worker.loaded(message)
        if returned:
            return value
        raised: BaseException = value or errors.ReaderError(
            f"the function of {self._caller} raised {text.splitlines()[-1]}"
        )
        raised.add_note(f"It was raised in a worker process:\n{text}")
        raise raised

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def join(self, patience: float) -> int | None:
        """Wait up to `patience` seconds for the process to end, kill it if it still runs, and return its exit code.

        Return None if no process was started.
        """
        process = self._process
        self._process = None
        if process is None:
            return None
        process.join(patience)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode
        # Another thread may wait for this process at the same time. Until that thread has recorded the end of the
        # process, `close` raises a ValueError.
        with contextlib.suppress(ValueError):
            process.close()
        return code

    def _start(self) -> worker.Channel:
        mine, other = _SPAWN.Pipe()
        given = {"CONNECTION": other, "FUNCTION": self._pickled}
        process = _SPAWN.Process(
            target=runpy.run_path, args=(worker.__file__, given, worker.NAME), name=self._name, daemon=True
        )
        try:
            with other, _without_ctrl_c():
                process.start()
        except RuntimeError as error:  # multiprocessing raises a RuntimeError if this process itself is still starting
            raise errors.ReaderError(
                f"{self._caller} starts processes while a script is imported by one. {_SCRIPT}"
            ) from error
        self._answered = False
        self._process = process
        self._channel = worker.Channel(mine)
        return self._channel

    def _died(self) -> errors.ReaderError:
        self.close()
        code = self.join(_PATIENCE)
        if not self._answered:
            return errors.ReaderError(
                f"a process of {self._caller} ended with exit code {code} before it had mapped a row; what it said of "
                f"that is above. {_SCRIPT}"
            )
        why = (
            "something killed it, perhaps for want of memory" if code is not None and code < 0 else "its code ended it"
        )
        return errors.ReaderError(
            f"a process of {self._caller} ended with exit code {code} while it mapped a row: {why}. Expected a "
            f"function that returns or raises"
        )


_SCRIPT = (
    "A script that uses processes is imported by each of them, so it must do its work under "
    "`if __name__ == '__main__':`, with the function that is mapped outside of that block"
)


def _end(slots: Sequence[_Slot]) -> None:
    """End the worker processes of a Pool; kill processes that still run after `_PATIENCE` seconds."""
    for slot in slots:
        slot.close()
    end = time.monotonic() + _PATIENCE
    for slot in slots:
        slot.join(max(end - time.monotonic(), 0))


def _pickled(caller: str, function: Callable[..., Any], count: int) -> bytes:
    how = (
        f"write it with def at the top of a module that can be imported, functools.partial(f, ...) for one with "
        f"arguments; or use threads: {caller}(f, rows, process_num={count})"
    )
    try:
        pickled = pickle.dumps(function)
    except Exception as error:
        raise errors.ArgumentTypeError(
            f"{caller}(processes={count}) needs a function that other processes find by its name, found {function!r}: "
            f"{_first_line(error)}; {how}"
        ) from error
    main = sys.modules["__main__"]
    if b"__main__" in pickled and getattr(main, "__spec__", None) is None and not hasattr(main, "__file__"):
        raise errors.ArgumentTypeError(
            f"{caller}(processes={count}) needs a function that other processes find by its name, found {function!r}, "
            f"which was typed into a notebook or at the prompt; {how}"
        )
    return pickled


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Make processes that are started in the `with` block ignore Ctrl-C, which could end them during their imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting the resource tracker unblocks SIGINT, so the tracker must start before SIGINT is blocked.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
