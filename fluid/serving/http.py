"""HTTP for all applications: limits of requests, access control, responses, errors, the access log and metrics."""

import abc
import asyncio
import hmac
import ipaddress
import json
import logging
import pathlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from fluid import errors
from fluid.serving.protocol import HEADER_LENGTH, Turns
from fluid.serving.settings import Settings

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_ACCESS_LOG = logging.getLogger("fluid.serving.access")
_LONGEST = 200  # the maximum number of characters of a method or a path in the access log
# The delay, in seconds, after which inference requests are logged, several in one call. Logging one line after each
# response lowers the requests per second of LeNet with 64 connections by 8% (`benchmarks/serving.py`).
_LOG_DELAY = 0.005
_FOLDERS = re.compile(r"""(?<![^\s'"(=])(?:[A-Za-z]:)?[/\\][^\s'":;,()]*[/\\]""")
_SAFE = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class Refusal(errors.FluidError):
    """An error that refuses a request with an HTTP status; the response has "Refusal" as the kind of the error.

    Attributes:
      status: the HTTP status code.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Response:
    """An HTTP response to one request.

    Attributes:
      body: the bytes of the body.
      status: the HTTP status code.
      content_type: the media type of the body.
      headers: all other headers, by name.
    """

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, send: Send, request: "HttpRequest") -> None:
        """Send this response to the client, as ASGI messages; record its status and its size in `request`."""
        request.status, request.sent = self.status, len(self.body)
        headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", self.content_type.encode("latin-1")),
            *_SAFE,
            *[(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()],
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, kw_only=True)
class EventStream(Response):
    """A streamed response: server-sent events, each of which is sent as soon as its data is computed.

    The headers with status 200 are sent before the first event. The access log and the metrics get the status of the
    whole stream: after an error between two events, the status of this error, and 0 if the server ends the stream.

    Attributes:
      events: the bytes of each event, from `server_sent`. After an error, the status of the request is set.
    """

    events: AsyncIterator[bytes]
    body: bytes = b""
    content_type: str = "text/event-stream"

    async def send(self, send: Send, request: "HttpRequest") -> None:
        """Send this response to the client, as ASGI messages: one for each event; see `Response.send`."""
        headers = [(b"content-type", self.content_type.encode("latin-1")), *_SAFE]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        async for event in self.events:
            request.sent += len(event)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        request.status = request.status or self.status
        await send({"type": "http.response.body", "body": b""})


class HttpRequest:
    """An HTTP request of a client, with the facts about its response that are logged and counted.

    Attributes:
      client: the host and port of the client, or None.
      method: the HTTP method.
      path: the unquoted path, without the prefix of an enclosing application.
      headers: the values by name in lower case; the first one of several headers with the same name.
      received: the number of bytes of the body that have arrived.
      model: the name of the model that responds; empty for an unknown model.
      version: the version of the model that responds.
      infers: True for an inference request.
      status: the HTTP status of the response; 0 if there is no response yet, or a stream that has not ended.
      answer: the counted size of the response in bytes, from before it is computed until it is sent.
      sent: the number of bytes in the body of the response.
      seconds: the time, in seconds, from the head of the request to the end of its response.
    """

    def __init__(self, scope: Any, receive: Receive):
        self.client: Any = scope.get("client")
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
        }
        self.receive = receive
        self.received = self.answer = 0
        self.model = self.version = ""
        self.infers = False
        self._raw_path: str = scope["path"]
        self.status = self.sent = 0
        self.seconds = self._ended = 0.0
        self._start = time.perf_counter()
        self._disconnect: asyncio.Future[Any] | None = None

    def disconnect(self) -> asyncio.Future[Any]:
        """Return a future that is done when the client has disconnected, after `receive` has returned the whole body.

        All calls return one future, because ASGI does not say which of two waiting calls of `receive` gets a message.
        """
        if self._disconnect is None:
            self._disconnect = asyncio.ensure_future(self.receive())
        return self._disconnect

    def end(self) -> None:
        """Record the end time and the duration of this request, after its response is sent."""
        if self._disconnect is not None:
            self._disconnect.cancel()
        self.seconds = time.perf_counter() - self._start
        self._ended = time.time()

    def log(self) -> None:
        """Write one line of JSON about this request to the access log."""
        if not _ACCESS_LOG.isEnabledFor(logging.INFO):
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._ended)),
            "client": self.client[0] if self.client else None,
            "method": self.method[:_LONGEST],
            "path": self._raw_path[:_LONGEST],
            "status": self.status,
            "ms": round(self.seconds * 1000, 3),
            "received": self.received,
            "sent": self.sent,
            "model": self.model,
            "version": self.version,
        }
        # `Logger.info` is not used, because it looks up the source line of its caller, which takes longer than the rest
        # of this method.
        record = _ACCESS_LOG.makeRecord(_ACCESS_LOG.name, logging.INFO, __file__, 0, json.dumps(line), (), None)
        _ACCESS_LOG.handle(record)


class AccessPolicy:
    """The access rules of an application: the token and the host names that requests must have.

    Args:
      hosts: the accepted names in the header `Host`; None accepts all. Without a token, this list prevents DNS
        rebinding, an attack by which a page of another site reads responses.

    Raises:
      ArgumentError: the token is empty, or has characters that are not allowed in a header.

    Example:
      >>> policy = AccessPolicy("secret")
      >>> policy.check_token({"authorization": "Bearer secret"})
      >>> policy.check_token({})
      Traceback (most recent call last):
      fluid.serving.http.Refusal: this server asks for a token: Authorization: Bearer TOKEN
    """

    def __init__(self, token: str | None = None, hosts: frozenset[str] | None = None):
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise errors.ArgumentError("a token is a word of ASCII letters, digits and signs, without blanks")
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._hosts = hosts

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Check that the header `Host`, if the request has one, is an accepted name of the server.

        Raises:
          Refusal: 403 for any other name.
        """
        host = headers.get("host")
        if self._hosts is not None and host is not None and _without_port(host) not in self._hosts:
            raise Refusal(403, "the server has no such name; it listens for this machine only")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Check that a request from a web page comes from a page of this server; if `hosts` is None, accept all pages.

        Raises:
          Refusal: 403 for a page of another origin.
        """
        host, origin = headers.get("host"), headers.get("origin")
        if self._hosts is not None and origin not in (None, f"http://{host}", f"https://{host}"):
            raise Refusal(403, "pages of another origin cannot ask this server, which has no token")

    def check_token(self, headers: Mapping[str, str]) -> None:
        """Check that a request has the required token, with a comparison in constant time.

        Raises:
          Refusal: 401 for a wrong or missing token.
        """
        given = headers.get("authorization", "").encode("utf-8", "replace")
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise Refusal(401, "this server asks for a token: Authorization: Bearer TOKEN")


def access_policy(host: str, token: str | None, allow_anonymous: bool) -> AccessPolicy:
    """Return the AccessPolicy of a server that listens on the address `host`.

    Raises:
      ArgumentError: other machines can reach the address, there is no token, and `allow_anonymous` is False.
    """
    if _is_loopback(host):
        return AccessPolicy(token, None if token is not None else frozenset({"localhost", "127.0.0.1", "::1", host}))
    if token is None and not allow_anonymous:
        raise errors.ArgumentError(
            f"host={host!r} can be reached from other machines, so a token is needed: set FLUID_SERVE_TOKEN, or give "
            f"--token-file FILE; --allow-anonymous lets everybody in, as behind a proxy that asks for one"
        )
    return AccessPolicy(token)


def _is_loopback(host: str) -> bool:
    """Return whether `host` is an address that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


class PendingBytes:
    """A counter of the bytes that clients occupy in memory, with requests or with responses.

    Args:
      limit: the maximum number of bytes of all clients together.

    Attributes:
      size: the number of bytes in memory now.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self.size = 0

    def add(self, size: int) -> None:
        """Add `size` bytes to the count of bytes in memory.

        Raises:
          Refusal: 503 if the count is above the limit. The bytes are counted nevertheless, so a call of `remove` must
            follow.
        """
        self.size += size
        if self.size > self._limit:
            raise Refusal(503, "too many requests at once; try again later")

    def remove(self, size: int) -> None:
        """Subtract `size` bytes, which are no longer in memory, from the count."""
        self.size -= size


class Metrics(abc.ABC):
    """A registry of Prometheus metrics: counters, and gauges that are computed each time Prometheus reads the metrics.

    Attributes:
      client: the module prometheus_client.
      registry: the CollectorRegistry with the metrics of this application.

    Raises:
      ArgumentError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise errors.ArgumentError(
                "metrics need prometheus_client, and a server needs uvicorn and httptools too: "
                "pip install 'fluid-jax[serve]'"
            ) from error
        self.client: Any = prometheus_client
        self.registry: Any = prometheus_client.CollectorRegistry()
        self.registry.register(self)

    def text(self) -> tuple[bytes, str]:
        """Return all metrics in the text format of Prometheus, and the content type of this format."""
        return self.client.generate_latest(self.registry), self.client.CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Any]:
        """Return an empty list, so that prometheus_client does not call `collect` when this object is registered."""
        return []

    @abc.abstractmethod
    def collect(self) -> Iterable[Any]:
        """Return the gauges. prometheus_client calls this method each time Prometheus reads the metrics."""

    @abc.abstractmethod
    def count(self, request: HttpRequest) -> None:
        """Add a request to the counts of the metrics, after the response to the request is sent."""


Endpoint = Callable[[HttpRequest], Awaitable[Response]]


class Application(abc.ABC):
    """An ASGI application: endpoints protected by access control and limits; each error becomes a response of JSON.

    Attributes:
      pending: a counter of the bytes of requests in memory, and of responses that clients have not read.
      answers: a counter of the bytes of responses that are computed, written or sent.
      failure: the error because of which this application will never be ready, or None.
      started: True after `startup` has run.
      draining: True after the shutdown of the server has begun.
      folders: a dict from paths of the server to the names that replace them in error messages to clients.
    """

    public: ClassVar[frozenset[str]]
    """The URL paths that clients can request without a token."""
    statuses: ClassVar[Mapping[type[errors.FluidError], int]]
    """The HTTP status for each class of errors; the first matching class decides, and other errors get status 400."""
    log: ClassVar[logging.Logger]
    failed: ClassVar[str]
    """The error message in a response with status 500."""
    folders: Mapping[str, str] = {}

    def __init__(self, settings: Settings, access: AccessPolicy, metrics: Metrics):
        self.settings, self.access, self.metrics = settings, access, metrics
        self.pending = PendingBytes(settings.max_pending)
        self.answers = PendingBytes(settings.max_answers)
        self.failure: Exception | None = None
        self.started = self.draining = False
        self._unlogged: list[HttpRequest] = []
        # One thread parses large requests, and one writes large responses: more threads at once would leave no time to
        # the event loop.
        self._reader = ThreadPoolExecutor(1, "fluid-reader")
        self._writer = ThreadPoolExecutor(1, "fluid-writer")

    @property
    @abc.abstractmethod
    def ready(self) -> bool:
        """True if this application can respond to all requests."""

    @abc.abstractmethod
    def route(self, request: HttpRequest) -> tuple[str, Endpoint]:
        """Return the HTTP method and the endpoint (the function that responds) for the path of a request.

        Raises:
          Refusal: 404 for an unknown path.
        """

    async def startup(self) -> None:
        """Start this application. The server calls this method when its event loop runs."""
        self.started = True

    async def shutdown(self) -> None:
        """Stop this application. The server calls this method when all responses are sent."""
        self._reader.shutdown(wait=False)
        self._writer.shutdown(wait=False)
        self._log_all()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection: respond to an HTTP request, or call `startup` and `shutdown` for the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            request = HttpRequest(scope, receive)
            try:
                response = await self._respond(request)
                await response.send(send, request)
            finally:
                self.answers.remove(request.answer)
                request.end()
                self._log_soon(request)

    def _log_soon(self, request: HttpRequest) -> None:
        """Count and log a request: an inference request after `_LOG_DELAY` seconds, other requests immediately."""
        self._unlogged.append(request)
        if not request.infers:
            self._log_all()
        elif len(self._unlogged) == 1:
            asyncio.get_running_loop().call_later(_LOG_DELAY, self._log_all)

    def _log_all(self) -> None:
        requests, self._unlogged = self._unlogged, []
        for request in requests:
            self.metrics.count(request)
            request.log()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.startup()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.draining = True
        await self.shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, request: HttpRequest) -> Response:
        """Check access, and return the response of the endpoint for a request; errors become error responses."""
        try:
            self.access.check_host(request.headers)
            self.check_origin(request)
            if request.path not in self.public:
                self.access.check_token(request.headers)
            method, endpoint = self.route(request)
            if request.method != method:
                raise Refusal(405, f"the method of this path is {method}")
            return await endpoint(request)
        except Exception as error:
            return self.error_response(error)
        finally:
            self.pending.remove(request.received)

    def check_origin(self, request: HttpRequest) -> None:
        """Check the origin of a web page that sends a request; see `AccessPolicy.check_origin`."""
        self.access.check_origin(request.headers)

    def error_response(self, error: Exception) -> Response:
        """Return the response for an error: its message without paths of the server, and the name of its class.

        A client of fluid raises an error of the same class.
        """
        # the message of an unexpected error may contain internals, so the client gets another message
        if not isinstance(error, errors.FluidError):
            self.log.error("a request failed", exc_info=error)
            error = Refusal(500, self.failed)
        text = str(error)
        if isinstance(error, Refusal):
            status = error.status
        else:
            status = next((status for kind, status in self.statuses.items() if isinstance(error, kind)), 400)
            text = without_folders(text, self.folders)
            if text != str(error):
                self.log.warning("a client is told of this without its folders: %s", error)
        headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
        # With these statuses the client may still be sending a body, which the server does not read: close the
        # connection.
        extra = {"connection": "close"} if status in (400, 408, 413) else headers.get(status, {})
        return json_response({"error": text, "kind": type(error).__name__}, status, extra)

    async def read_body(self, request: HttpRequest) -> bytes:
        """Read the body of a request.

        Raises:
          Refusal: 413 for too many bytes, 415 for compressed bytes, 408 for a slow client, 400 for a client that
            disconnects, 503 if the bodies of all clients together are above the limit.
        """
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "compressed bodies are not taken; send it as it is")
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 18:
            raise Refusal(400, "the header Content-Length is a number")
        self._check_body(int(length))
        try:
            async with asyncio.timeout(self.settings.read_timeout):
                return await self._received(request)
        except TimeoutError:
            raise Refusal(408, f"the request took longer than {self.settings.read_timeout:g} seconds") from None

    async def _received(self, request: HttpRequest) -> bytes:
        chunks = []
        more = True
        while more:
            message = await request.receive()
            if message["type"] != "http.request":
                raise Refusal(400, "the client went away in the middle of its request")
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            request.received += len(chunk)
            self.pending.add(len(chunk))
            self._check_body(request.received)
            chunks.append(chunk)
        return b"".join(chunks)

    def _check_body(self, size: int) -> None:
        if size > self.settings.max_body:
            raise Refusal(413, f"a request may have {self.settings.max_body} bytes")

    def json_length(self, header: str | None, body: bytes) -> int | None:
        """Parse the header that holds the number of bytes of JSON before the binary tensors; return None without it.

        Raises:
          Refusal: 400 if the header is not a number, 413 for too much JSON.
        """
        if header is not None and not (header.isascii() and header.isdigit() and len(header) < 18):
            raise Refusal(
                400,
                f"the header {HEADER_LENGTH} is {header[:40]!r}, expected a number: how many of the {len(body)} bytes "
                f"of the body are JSON, from its start",
            )
        length = None if header is None else int(header)
        if (len(body) if length is None else length) > self.settings.max_json:
            raise Refusal(413, f"a request may have {self.settings.max_json} bytes of JSON; send binary tensors")
        return length

    def count_answer(self, request: HttpRequest, size: int) -> None:
        """Count the response to a request with `size` bytes, instead of its earlier size, until the response is sent.

        Raises:
          Refusal: 413 for a response above the limit, 503 if all responses together are above the limit.
        """
        self.answers.remove(request.answer)
        request.answer = 0
        if size > self.settings.max_answers:
            raise Refusal(
                413, f"found an answer of up to {size} bytes, expected at most {self.settings.max_answers}; send the "
                f"rows in several requests, ask for fewer outputs, or for binary tensors"
            )  # fmt: skip
        request.answer = size
        self.answers.add(size)

    async def run_long(self, request: HttpRequest, call: Callable[[], T]) -> T:
        """Run `call` in the thread that parses requests one after the other, and return its result.

        Raises:
          Refusal: 400 when the client disconnects before its turn.
        """
        disconnect = request.disconnect()

        def turn() -> T:
            if disconnect.done():
                raise gone()
            return call()

        return await run_in_thread(turn, self._reader)

    async def run_turns(self, request: HttpRequest, turns: Turns[T]) -> T:
        """Run the turns of a generator in the thread that writes responses, and return the result of the generator.

        Before each turn, every other response gets one. A response therefore waits only as long as its size requires.

        Raises:
          Refusal: 400 when the client disconnects.
        """
        while not request.disconnect().done():
            ended, value = await run_in_thread(lambda: _turn(turns), self._writer)
            if ended:
                return value
        raise gone()

    async def read_metrics(self, request: HttpRequest) -> Response:
        """Return a response with all metrics in the text format of Prometheus."""
        self._log_all()
        body, content_type = await run_in_thread(self.metrics.text)
        return Response(body, content_type=content_type)

    async def is_live(self, request: HttpRequest) -> Response:
        """Return a response with status 200, which shows that the server is running."""
        return json_response({"live": True})

    async def is_ready(self, request: HttpRequest) -> Response:
        """Return a response with status 200 if the application is ready, else 503."""
        return json_response({"ready": self.ready}, 200 if self.ready else 503)


def _turn(turns: Turns[T]) -> tuple[bool, Any]:
    """Run one turn of a generator; return whether it was the last one, and the result of the generator."""
    try:
        return False, next(turns)
    except StopIteration as end:
        return True, end.value


def gone() -> Refusal:
    """Return the error for a request whose client has disconnected; only the access log and the metrics show it."""
    return Refusal(400, "the client went away")


async def run_in_thread(call: Callable[[], T], executor: Executor | None = None) -> T:
    """Run `call` in a thread of `executor`, by default the executor of the event loop, and return its result."""
    try:
        future = asyncio.get_running_loop().run_in_executor(executor, call)
    # while Python exits, executors accept no calls: run the call in this thread, because a request waits for a response
    except RuntimeError:
        return call()
    try:
        return await future
    finally:
        # break the reference cycle between an error, its frame and `future`, which would keep large requests in memory
        del future, call


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> Response:  # noqa: B006
    """Return a response whose body is `value` as JSON."""
    return Response(json.dumps(value).encode(), status, headers=headers)


def server_sent(data: bytes, kind: str = "message") -> bytes:
    """Return the bytes of a server-sent event; `data` is JSON in one line.

    Example:
      >>> server_sent(b'{"a": 1}')
      b'data: {"a": 1}\\n\\n'
    """
    return (b"" if kind == "message" else b"event: %b\n" % kind.encode()) + b"data: %b\n\n" % data


def without_folders(text: str, folders: Mapping[str, str] = {}) -> str:  # noqa: B006
    """Return an error message without paths of the server, which clients must not see.

    Args:
      folders: a dict from absolute or relative paths to the names that replace them if they are in quotes in the
        message. Other absolute paths are shortened to their last component.

    Example:
      >>> without_folders("'/srv/secret/digits.fluid' and 'runs/a' are damaged", {"runs/a": "the folder of versions"})
      "'digits.fluid' and the folder of versions are damaged"
    """
    for folder, name in folders.items():
        for last in re.findall(rf"'{re.escape(folder)}(?:[/\\]([^']*))?'", text):
            path = f"{folder}/{last}" if last else folder
            text = text.replace(f"'{path}'", f"'{pathlib.PurePath(last).name}'" if last else name)
    return _FOLDERS.sub("", text)
