"""Guard: closes connections whose request head is too slow or too large, which uvicorn waits for without end."""

from typing import Any

from fluid import errors
from fluid.serving.settings import Settings

_ANSWER = b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Joined:
    """A transport that sends together what is written together: the head of an answer and its body.

    Args:
      transport: of asyncio.
      loop: which sends when it has done what it is doing.
    """

    def __init__(self, transport: Any, loop: Any):
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for every request

    def write(self, data: bytes) -> None:
        """Send bytes soon."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """Send what was written, and end."""
        self._send()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send(self) -> None:
        if self._written:
            self._transport.write(b"".join(self._written))
            self._written.clear()


def guarded(settings: Settings) -> Any:
    """The class of connections that uvicorn makes; see `uvicorn.Config(http=...)`."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError as error:
        raise errors.ArgumentError(
            "a server needs uvicorn, httptools and prometheus_client: pip install 'fluid-jax[serve]'"
        ) from error

    class GuardedConnection(HttpToolsProtocol):
        """A connection of which the head of each request has a limit of bytes and of seconds."""

        _head = 0
        _timer: Any = None

        def connection_made(self, transport: Any) -> None:
            joined: Any = Joined(transport, self.loop)
            super().connection_made(joined)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._in_request():
                super().data_received(data)
                return
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:  # the head is complete
                self._stop_waiting()
                return
            self._head += len(data)
            if self._head > settings.max_header:
                self._refuse(431, b"Request Header Fields Too Large")
            elif self._timer is None:
                self._wait_for_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._head = 0

        def _in_request(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait_for_head(self) -> None:
            self._timer = self.loop.call_later(settings.read_timeout, self._refuse, 408, b"Request Timeout")

        def _stop_waiting(self) -> None:
            self._head = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, status: int, phrase: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(_ANSWER % (status, phrase))
                self.transport.close()

    return GuardedConnection
