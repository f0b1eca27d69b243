"""Bodies of requests, read within limits of size, time and memory; unread answers count as memory too."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from fluid.protocol import HEADER_LENGTH
from fluid.serving.replies import Refusal
from fluid.serving.request import Request
from fluid.serving.settings import Settings
from fluid.serving.waiting import Timeouts


class Bodies:
    """Reads bodies, and counts how much memory all of them take.

    Args:
      settings: the limits.

    Attributes:
      pending: bytes of all requests that are being read or waiting, and of all answers that clients do not read.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._reading: Timeouts[asyncio.Task[Any]] = Timeouts(settings.read_timeout, asyncio.Task.cancel)
        self.pending = 0

    def counted(self) -> "Pending":
        """The memory of one request, given back at the end of a `with` block."""
        return Pending(self)

    async def read(self, request: Request, pending: "Pending") -> bytes:
        """The body of a request.

        Raises:
          Refusal: 413 for too much, 415 for compressed bytes, 408 for too slow, 400 for a client that goes away.
        """
        headers = request.headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "compressed bodies are not taken; send it as it is")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            raise Refusal(400, "the header Content-Length is a number")
        self._check(int(length))
        return await self._in_time(self._received(request, pending))

    def json_length(self, given: str | None, body: bytes) -> int | None:
        """How many bytes of a body are JSON, as a header says it, behind which binary tensors follow; None for all.

        Raises:
          Refusal: 400 for what is no number, 413 for too much JSON.
        """
        if given is not None and not (given.isascii() and given.isdigit() and len(given) < 18):
            raise Refusal(400, f"the header {HEADER_LENGTH} is a number")
        length = None if given is None else int(given)
        if (len(body) if length is None else length) > self._settings.max_json:
            raise Refusal(413, f"a request may have {self._settings.max_json} bytes of JSON; send binary tensors")
        return length

    async def _in_time(self, received: Awaitable[bytes]) -> bytes:
        """What is received, as `asyncio.timeout` would have it, with one timer for all requests."""
        task: Any = asyncio.current_task()
        self._reading.watch(task)
        try:
            return await received
        except asyncio.CancelledError:
            if task in self._reading or task.uncancel():  # somebody else wants it to end
                raise
            raise Refusal(408, f"the request took longer than {self._settings.read_timeout:g} seconds") from None
        finally:
            self._reading.forget(task)

    async def _received(self, request: Request, pending: "Pending") -> bytes:
        chunks = []
        more = True
        while more:
            message = await request.receive()
            if message["type"] != "http.request":
                raise Refusal(400, "the client went away in the middle of its request")
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            pending.add(len(chunk))
            self._check(pending.size)
            chunks.append(chunk)
        return b"".join(chunks)

    def add(self, size: int) -> None:
        """Count bytes that are in memory."""
        self.pending += size
        if self.pending > self._settings.max_pending:
            raise Refusal(503, "too many requests at once; try again later")

    def _check(self, size: int) -> None:
        if size > self._settings.max_body:
            raise Refusal(413, f"a request may have {self._settings.max_body} bytes")


class Pending:
    """How many bytes of one request are in memory."""

    def __init__(self, bodies: Bodies):
        self._bodies = bodies
        self.size = 0

    def add(self, size: int) -> None:
        """Count some more."""
        self.size += size
        self._bodies.add(size)

    def __enter__(self) -> "Pending":
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bodies.pending -= self.size
