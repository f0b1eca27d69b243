"""Mailbox: brings results from the threads that compute them to the event loop that waits for them."""

import asyncio
import collections

from fluid.serving.batching import Job


class Mailbox:
    """Wakes the requests whose results are there, all of a batch at once: to wake an event loop costs system calls.

    Args:
      patience: seconds after which a request is woken though it has no result; up to twice that. One timer serves all.
    """

    def __init__(self, patience: float):
        self._patience = patience
        self._arrived: collections.deque[asyncio.Future[None]] = collections.deque()
        self._is_called = False
        self._newer: list[asyncio.Future[None]] = []
        self._older: list[asyncio.Future[None]] = []
        self._is_ticking = False

    def arrival(self, job: Job) -> asyncio.Future[None]:
        """Done when the job is."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        job.future.add_done_callback(lambda _: self._put(loop, waiter))
        return waiter

    async def patiently(self, job: Job) -> bool:
        """Wait until a job is done, for a while; whether it is."""
        waiter = self.arrival(job)
        self._newer.append(waiter)
        if not self._is_ticking:
            self._is_ticking = True
            loop = asyncio.get_running_loop()
            loop.call_later(self._patience, self._tick, loop)
        await waiter
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

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for waiter in self._older:
            _wake(waiter)
        self._older = self._newer
        self._newer = []
        self._is_ticking = bool(self._older)
        if self._is_ticking:
            loop.call_later(self._patience, self._tick, loop)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
