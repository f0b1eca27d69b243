"""What the event loop waits for: results that other threads compute, and limits of time, each at the cost of one."""

import asyncio
import collections
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from fluid.serving.batching import Job

T = TypeVar("T")


class Timeouts(Generic[T]):
    """Tells what is still watched after some seconds. A timer for each would cost more than what most of them wait for.

    Args:
      seconds: the limit.
      late: called with what has reached it, which is no longer watched then.

    Example:
      >>> async def main():
      ...     late = []
      ...     timeouts = Timeouts(0.001, late.append)
      ...     timeouts.watch("slow")
      ...     timeouts.watch("quick")
      ...     timeouts.forget("quick")
      ...     while not late:
      ...         await asyncio.sleep(0)
      ...     return late, "slow" in timeouts
      >>> asyncio.run(main())
      (['slow'], False)
    """

    def __init__(self, seconds: float, late: Callable[[T], object]):
        self._seconds, self._late = seconds, late
        self._ends: dict[T, float] = {}  # who came first ends first
        self._is_set = False

    def watch(self, one: T) -> None:
        """Begin; the time runs from now on."""
        loop = asyncio.get_running_loop()
        self._ends[one] = loop.time() + self._seconds
        if not self._is_set:
            self._is_set = True
            loop.call_later(self._seconds, self._look, loop)

    def forget(self, one: T) -> None:
        """It has come in time, or was late."""
        self._ends.pop(one, None)

    def __contains__(self, one: T) -> bool:
        return one in self._ends

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._ends:
            one, end = next(iter(self._ends.items()))
            if end > loop.time():
                loop.call_at(end, self._look, loop)
                return
            del self._ends[one]
            self._late(one)
        self._is_set = False


class Company:
    """Tells whether one client asks alone, so that nobody else waits while it is answered.

    Args:
      seconds: for how long nobody else has asked then.

    Example:
      >>> company = Company(60.0)
      >>> company.is_alone("one"), company.is_alone("one"), company.is_alone("other"), company.is_alone("other")
      (True, True, False, False)
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._client: Hashable = None
        self._asked = self._others_asked = -math.inf

    def is_alone(self, client: Hashable) -> bool:
        """Note that a client asks; whether it does so alone."""
        now = time.monotonic()
        if client != self._client:
            self._client, self._others_asked = client, self._asked
        self._asked = now
        return now - self._others_asked > self._seconds


class Later(Generic[T]):
    """Does something for many at once, soon after the first: done for each by itself, it takes several times as long.

    Args:
      seconds: how long the first waits.
      do: called with each, in order.

    Example:
      >>> async def main():
      ...     seen = []
      ...     later = Later(60.0, seen.append)
      ...     later.put("first")
      ...     later.put("second")
      ...     before = list(seen)
      ...     later.do_now()
      ...     return before, seen
      >>> asyncio.run(main())
      ([], ['first', 'second'])
    """

    def __init__(self, seconds: float, do: Callable[[T], object]):
        self._seconds, self._do = seconds, do
        self._waiting: list[T] = []

    def put(self, one: T) -> None:
        """Have it done soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(self._seconds, self.do_now)
        self._waiting.append(one)

    def do_now(self) -> None:
        """Do it for all that wait."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._do(one)


class Mailbox:
    """Wakes the requests whose results are there, all of a batch at once: to wake an event loop costs system calls.

    Args:
      patience: seconds for which `patiently` waits.
    """

    def __init__(self, patience: float):
        self._arrived: collections.deque[asyncio.Future[None]] = collections.deque()
        self._is_called = False
        self._waiting: Timeouts[asyncio.Future[None]] = Timeouts(patience, _wake)

    def arrival(self, job: Job) -> asyncio.Future[None]:
        """Done when the job is."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        job.future.add_done_callback(lambda _: self._put(loop, waiter))
        return waiter

    async def patiently(self, job: Job) -> bool:
        """Wait until a job is done, for a while; whether it is."""
        waiter = self.arrival(job)
        self._waiting.watch(waiter)
        try:
            await waiter
        finally:
            self._waiting.forget(waiter)
        return job.future.done()

    def _put(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        """Called in the thread that has the result."""
        self._arrived.append(waiter)
        if not self._is_called:  # set before the loop is called, unset before it looks: nothing stays behind
            self._is_called = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False
        while self._arrived:
            _wake(self._arrived.popleft())


class Worker:
    """A thread for what takes long, one call after the other, while the event loop goes on."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        # Not an executor: these refuse calls when Python ends, and a server answers what was asked before.
        threading.Thread(target=self._work, name="fluid-worker", daemon=True).start()

    async def do(self, call: Callable[[], T]) -> T:
        """Run a call in the thread and return its result; a cancelled call is skipped."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        try:
            return await asyncio.wrap_future(future)
        finally:
            del future, call  # an error has this frame: together they would keep a large request until a collection

    def close(self) -> None:
        """End after the calls that wait."""
        self._calls.put(None)

    def _work(self) -> None:
        while (found := self._calls.get()) is not None:
            future, call = found
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # whoever waits is told
                future.set_exception(error)
            del found, future, call  # a large request is not kept until the next one comes


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
