"""Guard: bounds what uvicorn lets a connection have: seconds and bytes of a head, requests ahead, unread answers."""

from typing import Any, ClassVar

from fluid import errors
from fluid.serving.bodies import Bodies
from fluid.serving.replies import Refusal
from fluid.serving.settings import Settings

_ANSWER = b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# Every request ends with this. What is parsed at once is no shorter, so that a body of line ends costs no more.
_END, _PIECE = b"\r\n\r\n", 256
# Connections beyond max_connections that are told so; more are closed at once, before they can use up all open files.
SPARE = 64
_GRACE = 0.25  # seconds after SIGTERM for a request that is on its way


class Joined:
    """A transport that sends the head and the body of an answer together, and reads only while two want to read.

    Args:
      transport: of asyncio.
      loop: sends the written bytes at the end of its turn.
    """

    def __init__(self, transport: Any, loop: Any):
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self._wanted, self._held, self._reads = True, False, True
        self.is_closing = transport.is_closing  # asked for every request

    def write(self, data: bytes) -> None:
        """Send bytes soon."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """Send the written bytes, and end."""
        self._send()
        self._transport.close()

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self._wanted = False
        self._read()

    def resume_reading(self) -> None:
        """Read again, unless `hold` forbids it."""
        self._wanted = True
        self._read()

    def hold(self, held: bool) -> None:
        """Forbid reading, or allow it again."""
        self._held = held
        self._read()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _read(self) -> None:
        reads = self._wanted and not self._held
        if reads != self._reads and not self.is_closing():
            self._reads = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def _send(self) -> None:
        if self._written and not self.is_closing():  # the client may have gone away, or may be refused
            self._transport.write(b"".join(self._written))
        self._written.clear()


# Stands for HttpToolsProtocol of uvicorn, which is imported on use.
_Protocol: Any = object


class Guard(_Protocol):
    """The limits of one HTTP connection: size and time of a request head, pipelined requests, time to read responses.

    Attributes:
      settings: the limits; of a subclass, see `guarded`.
      bodies: counts the bytes of requests that wait for another one, and of answers that nobody reads.
    """

    settings: ClassVar[Settings]
    bodies: ClassVar[Bodies]

    _head = 0
    _timer: Any = None
    _whole = False  # the newest request is there to its end
    _ahead = b""  # read before its turn
    _unread = 0  # bytes of the answer that the client does not take
    _unread_timer: Any = None
    _ending = False
    _joined: Any = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head, or refuse a connection that is one too many."""
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of every byte that is not taken
        joined: Any = Joined(transport, self.loop)
        self._joined = joined
        super().connection_made(joined)
        if len(self.connections) > self.settings.max_connections + SPARE:
            transport.abort()
            return
        # Of the others only this one: a client that was there before goes on.
        self.limit_concurrency = 0 if len(self.connections) > self.settings.max_connections else None
        self._wait_for_head()
        if getattr(self.server_state, "ending", False):
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Subtract the bytes of this connection from the count."""
        self._stop_waiting()
        self._forget_ahead()
        self._forget_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes up to the end of a request; what follows it waits until that one is answered."""
        start = 0
        while start < len(data) and not self.transport.is_closing():
            if self._ahead or self._is_busy():
                self._hold(data[start:])
                return
            found = data.find(_END, start + _PIECE)
            end = len(data) if found < 0 else found + len(_END)
            self._parse(data[start:end])
            start = end

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        super().on_message_begin()
        self._whole = False

    def on_message_complete(self) -> None:
        """Note that the request is here to its end."""
        super().on_message_complete()
        self._whole = True

    def on_headers_complete(self) -> None:
        """Let the last answer of a server that ends say so."""
        super().on_headers_complete()
        if self._ending:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """Go on with the request that was sent ahead."""
        super().on_response_complete()
        self._head = 0
        if self._ahead:
            self.loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        """Count an answer that the client does not read, for which it has some seconds."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.settings.write_timeout, self.transport.abort)
        self._joined.hold(True)
        self._count(self._unread)

    def resume_writing(self) -> None:
        """Go on when the client has read its answer."""
        super().resume_writing()
        self._forget_unread()
        self._joined.hold(bool(self._ahead))
        self._go_on()

    def shutdown(self) -> None:
        """Answer the requests that were sent, also a request that arrives now, and close the connection."""
        self._ending = True
        if self._in_request():
            super().shutdown()
        else:
            self.loop.call_later(_GRACE, self._close_idle)

    def _close_idle(self) -> None:
        if not self._in_request() and not self._head and not self._ahead:
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        if self._in_request():
            super().data_received(data)
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # the head is complete
            self._stop_waiting()
            return
        self._head += len(data)
        if self._head > self.settings.max_header:
            self._refuse(431, b"Request Header Fields Too Large")
        elif self._timer is None:
            self._wait_for_head()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_busy(self) -> bool:
        """Return whether the next request has to wait."""
        return self._unread > 0 or (self._whole and self._in_request())

    def _hold(self, data: bytes) -> None:
        self._ahead += data
        self._joined.hold(True)
        self._count(len(data))

    def _go_on(self) -> None:
        """Parse the next request, unless it still has to wait."""
        if self._is_busy() or self.transport.is_closing():
            return
        ahead = self._ahead
        self._forget_ahead()
        self.data_received(ahead)
        self._joined.hold(bool(self._ahead))

    def _count(self, size: int) -> None:
        try:
            self.bodies.add(size)
        except Refusal:  # there is no room even for an answer that says so
            self.transport.abort()

    def _forget_ahead(self) -> None:
        self.bodies.pending -= len(self._ahead)
        self._ahead = b""

    def _forget_unread(self) -> None:
        self.bodies.pending -= self._unread
        self._unread = 0
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self.settings.read_timeout, self._refuse, 408, b"Request Timeout")

    def _stop_waiting(self) -> None:
        self._head = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, phrase: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(_ANSWER % (status, phrase))
            self.transport.close()


def guarded(settings: Settings, bodies: Bodies) -> Any:
    """Return the class of connections for `uvicorn.Config(http=...)`; arguments as the attributes of Guard."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError as error:
        raise errors.ArgumentError(
            "a server needs uvicorn, httptools and prometheus_client: pip install 'fluid-jax[serve]'"
        ) from error
    return type("GuardedConnection", (Guard, HttpToolsProtocol), {"settings": settings, "bodies": bodies})
