"""HTTP connections of uvicorn with added limits: for request heads, pipelined requests and unread responses."""

from collections import deque
from typing import Any, ClassVar

from fluid import errors
from fluid.serving.http import PendingBytes, Refusal
from fluid.serving.settings import Settings

_RESPONSE = b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# The bytes that end a head and a chunked body, and the minimum number of bytes of a chunked body to parse in one call.
# Without the minimum, a body of line ends would cause one call of the parser for every four bytes.
_END, _PIECE = b"\r\n\r\n", 256
# the maximum number of headers of a request, with its trailers
MAX_HEADERS = 100
# The bytes that all connections together parse in one turn of the event loop, the bytes after which a connection lets
# other connections go first, and the least bytes that it counts. A body of known length counts as no bytes, because the
# parser only copies it. 1000 bytes of one-byte chunks take 0.1 ms, and a request to the health check takes 0.2 ms.
TURN, SHARE, LEAST = 128 << 10, 4 << 10, 1 << 10
# The number of connections above `max_connections` that get an HTTP response with status 503; further connections are
# closed without a response, to save open files.
SPARE = 64
# after SIGTERM, an idle connection stays open for this number of seconds, because a request may be on its way
_GRACE = 0.25


class BufferedTransport:
    """A transport that sends the head and the body of a response together.

    Reading pauses between `pause_reading` and `resume_reading`, and also while `hold` forbids reading.

    Args:
      transport: the transport of asyncio that reads and sends bytes.
      loop: the event loop, which sends the written bytes at the end of its current iteration.
    """

    def __init__(self, transport: Any, loop: Any):
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self._wanted, self._held, self._reads = True, False, True
        # `__getattr__` would forward `is_closing` to the transport, but slowly. Every request calls `is_closing`, so
        # store the method here.
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send `data` at the end of the current iteration of the event loop."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """Send the written bytes, and close the transport."""
        self._send()
        self._transport.close()

    def pause_reading(self) -> None:
        """Pause reading from the client until `resume_reading` is called."""
        self._wanted = False
        self._update()

    def resume_reading(self) -> None:
        """Resume reading from the client, unless `hold` forbids reading."""
        self._wanted = True
        self._update()

    def hold(self, held: bool) -> None:
        """Stop reading bytes from the client if `held` is True; allow reading again if `held` is False."""
        self._held = held
        self._update()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _update(self) -> None:
        reads = self._wanted and not self._held
        if reads != self._reads and not self.is_closing():
            self._reads = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def _send(self) -> None:
        # the transport is closing if the client has disconnected or was refused
        if self._written and not self.is_closing():
            self._transport.write(b"".join(self._written))
        self._written.clear()


class Turns:
    """The bytes that connections may parse in the current turn of the event loop, and the connections that wait."""

    def __init__(self) -> None:
        self._left = TURN
        self._waiting: deque[Any] = deque()

    def allow(self) -> bool:
        """Return whether the current turn has bytes left."""
        return self._left > 0

    def spend(self, size: int, loop: Any) -> None:
        """Count `size` parsed bytes in the current turn; `loop` is the event loop."""
        if self._left == TURN:
            loop.call_soon(self._next)
        self._left -= size

    def wait(self, connection: "LimitedConnection") -> None:
        """Call `go_on` of a connection in a later turn, after the connections that already wait."""
        self._waiting.append(connection)

    def _next(self) -> None:
        self._left = TURN
        while self._waiting and self.allow():
            self._waiting.popleft().go_on()


# A placeholder base class: `connection_class` uses HttpToolsProtocol of uvicorn instead, which is imported only when
# needed.
_Protocol: Any = object


class LimitedConnection(_Protocol):
    """One HTTP connection with limits: size and duration of a request head, pipelined requests, unread responses.

    The parser gets a head, a body of known length, or a piece of a chunked body in one call, and no byte of the next
    request while a request runs (up to `_PIECE` bytes after a chunked body). Bytes that are no body count as bytes of a
    head: also trailers, the frame of one chunk, and a body that arrives after the response. One turn of the event loop
    parses a limited number of bytes, of all connections together; the connections take turns.

    Attributes:
      settings: the limits; a class attribute that `connection_class` sets.
      pending: the counter of the unparsed bytes and of the bytes of unread responses, for all connections.
      turns: the bytes that all connections may parse in this turn of the event loop.
    """

    settings: ClassVar[Settings]
    pending: ClassVar[PendingBytes]
    turns: ClassVar[Turns]

    _head = 0  # the number of parsed bytes that are no body, of an incomplete head, chunk or trailer
    _headers = 0  # the number of headers and trailers of the current request
    _head_timer: Any = None
    _in_body = False  # True from the end of the head of the current request to the end of its body
    _body_left = 0  # the number of missing bytes of a body of known length
    _bytes, _at = b"", 0  # the unparsed bytes from `_at` on; the parsed bytes before them may begin an _END
    _waits = False  # True while this connection waits for a later turn
    _complete = False  # True if the current request has arrived completely
    _unparsed = 0  # the number of unparsed bytes that count in `pending`
    _unread = 0  # the number of bytes of the response that the client has not read yet
    _unread_timer: Any = None
    _ending = False
    _buffered: Any = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request head; refuse the connection if there are too many connections."""
        # with a write buffer of 0 bytes, asyncio calls `pause_writing` whenever the client has not read all bytes
        transport.set_write_buffer_limits(high=0)
        self._buffered = BufferedTransport(transport, self.loop)
        super().connection_made(self._buffered)
        if len(self.connections) > self.settings.max_connections + SPARE:
            transport.abort()
            return
        # If the server has too many connections, the limit 0 makes uvicorn refuse the requests of this connection. The
        # earlier connections have no limit, so they stay open.
        self.limit_concurrency = 0 if len(self.connections) > self.settings.max_connections else None
        self._wait_for_head()
        if getattr(self.server_state, "ending", False):
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of a closed connection; subtract its bytes from `pending`, the bytes that clients occupy."""
        self._stop_waiting()
        self._at = len(self._bytes)
        self._count_unparsed()
        self._forget_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes of one request; later bytes wait until the response to this request is sent."""
        self._bytes += data
        if not self._waits:
            self.go_on()

    def go_on(self) -> None:
        """Parse unparsed bytes of the current request, or of the next one; after `SHARE` bytes, wait for a later turn.

        While a client has not read the complete current response, the bytes of its next request wait.
        """
        self._waits, spent, parsed = False, 0, False
        while self._at < len(self._bytes) and not self._is_busy() and not self.transport.is_closing():
            if spent >= SHARE or not self.turns.allow():
                self._waits = True
                self.turns.wait(self)
                break
            start, self._at, parsed = self._at, self._end(), True
            spent += 0 if self._body_left else self._at - start
            self._parse(self._bytes[start : self._at])
        if parsed:
            self.turns.spend(max(spent, LEAST), self.loop)
        if self.transport.is_closing():
            self._at = len(self._bytes)
        self._count_unparsed()

    def on_message_begin(self) -> None:
        """Record that a request has begun."""
        super().on_message_begin()
        self._complete = False
        self._headers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; drop a trailer, because the access to the server was decided by the head.

        Raises:
          Refusal: 431 for too many headers; the parser passes the error to uvicorn.
        """
        self._headers += 1
        if self._headers > MAX_HEADERS:
            self._refuse(431, b"Request Header Fields Too Large")
            raise Refusal(431, "too many headers")
        if not self._in_body:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Store a part of a body; a body without a running request counts as a head, because no code reads it."""
        self._body_left = max(self._body_left - len(body), 0)
        if self._in_request():
            self._head -= len(body)
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        """Forget the frame of a chunk: a body that is read may have many chunks, and a frame is not kept in memory."""
        if self._in_request():
            self._head = 0

    def on_message_complete(self) -> None:
        """Record that a request has arrived completely."""
        super().on_message_complete()
        self._complete = True
        self._in_body = False
        self._head = self._body_left = 0

    def on_headers_complete(self) -> None:
        """Announce in the response that the connection will close, if the shutdown of the server has begun."""
        super().on_headers_complete()
        self._in_body, self._head = True, 0
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        if self._ending:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """Schedule the parsing of the next pipelined request."""
        super().on_response_complete()
        if self._unparsed and not self._waits:
            self._waits = True
            self.loop.call_soon(self.go_on)

    def pause_writing(self) -> None:
        """Count the bytes of a response that the client has not read; abort the connection after `write_timeout`."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.settings.write_timeout, self.transport.abort)
        self._buffered.hold(True)
        self._count(self._unread)

    def resume_writing(self) -> None:
        """Continue with the next pipelined request, because the client has read the response."""
        super().resume_writing()
        self._forget_unread()
        self._buffered.hold(self._unparsed > 0)
        if not self._waits:
            self.go_on()

    def shutdown(self) -> None:
        """Close the connection after the current response, or if it is idle, after `_GRACE` seconds."""
        self._ending = True
        if self._in_request():
            super().shutdown()
        else:
            self.loop.call_later(_GRACE, self._close_idle)

    def _close_idle(self) -> None:
        if not self._in_request() and not self._head and not self._unparsed:
            self.transport.close()

    def _end(self) -> int:
        """Return the end of the unparsed bytes to parse in one call."""
        start = self._at
        if self._body_left:
            return min(start + self._body_left, len(self._bytes))
        least, most = (_PIECE, SHARE) if self._in_body else (1, self.settings.max_header)
        end = min(start + max(min(most, self.settings.max_header - self._head), 1), len(self._bytes))
        found = self._bytes.find(_END, max(start - len(_END) + 1, 0), end)
        return end if found < 0 else min(max(found + len(_END), start + least), end)

    def _parse(self, data: bytes) -> None:
        before = self.cycle
        self._head += len(data)
        super().data_received(data)
        if self._head > self.settings.max_header:
            self._refuse(431, b"Request Header Fields Too Large")
        # the head of a request is complete: uvicorn has created a new `cycle`, its object for one request
        elif self.cycle is not before:
            self._stop_waiting()
        elif self._head_timer is None and not self._in_request():
            self._wait_for_head()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_busy(self) -> bool:
        return self._unread > 0 or (self._complete and self._in_request())

    def _count(self, size: int) -> None:
        try:
            self.pending.add(size)
        except Refusal:  # too many pending bytes: abort, because a response with status 503 would need memory too
            self.transport.abort()

    def _count_unparsed(self) -> None:
        """Count the unparsed bytes, and read no more bytes while there are any; forget the parsed bytes."""
        before, self._unparsed = self._unparsed, len(self._bytes) - self._at
        self.pending.remove(before)
        self._buffered.hold(self._unparsed > 0 or self._unread > 0)
        self._count(self._unparsed)
        if not self._unparsed:
            self._bytes = b"" if self._body_left else self._bytes[1 - len(_END) :]
            self._at = len(self._bytes)

    def _forget_unread(self) -> None:
        self.pending.remove(self._unread)
        self._unread = 0
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self.settings.read_timeout, self._refuse, 408, b"Request Timeout")

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, phrase: bytes) -> None:
        if not self.transport.is_closing():
            if not (self._in_request() and self.cycle.response_started):
                self.transport.write(_RESPONSE % (status, phrase))
            self.transport.close()


def connection_class(settings: Settings, pending: PendingBytes) -> Any:
    """Return the class of HTTP connections for `uvicorn.Config(http=...)`, with attributes of this server."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError as error:
        raise errors.ArgumentError(
            "a server needs uvicorn, httptools and prometheus_client: pip install 'fluid-jax[serve]'"
        ) from error
    attributes = {"settings": settings, "pending": pending, "turns": Turns()}
    return type("Connection", (LimitedConnection, HttpToolsProtocol), attributes)
