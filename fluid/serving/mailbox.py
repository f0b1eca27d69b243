"""Mailbox: brings results from the threads that compute them to the event loop that waits for them."""

import asyncio
import collections

from fluid.serving.batching import Job
from fluid.serving.timeouts import Timeouts


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


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
