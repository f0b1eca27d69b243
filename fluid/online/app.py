"""App: the ASGI application that takes rows and verbs for an OnlineTrainer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fluid import errors, protocol
from fluid.online.metrics import Metrics
from fluid.remote.rows import Columns, Packed
from fluid.serving.access import Access
from fluid.serving.bodies import Bodies
from fluid.serving.replies import Refusal, Reply, refused, said
from fluid.serving.request import Request, answer
from fluid.serving.settings import Settings

LOG = logging.getLogger("fluid.online")
_LINES = ("application/x-ndjson", "application/jsonl")
_TENSORS = ("application/octet-stream", "application/json")
_KEY = "idempotency-key"
_VERBS = ("start", "pause", "resume", "save", "publish", "stop")
_MOST_VERBS = 4  # at once: each holds a thread until the step under way is done
_OPEN = {"/health/live", "/health/ready"}
_STATUS = {
    errors.JournalFullError: 429,
    errors.JournalError: 503,
    errors.OnlineError: 409,
    errors.UnknownNameError: 400,
}
Endpoint = Callable[[Request], Awaitable[Reply]]


class App:
    """Takes rows and verbs over HTTP. What is no path here, or too much of anything, is refused.

    Args:
      online: the OnlineTrainer.
      settings: the limits.
      access: who may ask.

    Attributes:
      ready: whether it answers.
      failure: why it never will; None, as the OnlineTrainer is there already.
      draining: whether the server is about to end.
    """

    def __init__(self, online: Any, settings: Settings, access: Access):
        self.draining = False
        self.failure: Exception | None = None
        self._online = online
        self._settings = settings
        self._access = access
        self._bodies = Bodies(settings)
        self._metrics = Metrics(online.status)
        self._verbs = 0
        self._live = False
        self._paths: dict[str, tuple[str, Endpoint]] = {
            "/rows": ("POST", self._rows),
            "/status": ("GET", self._status),
            "/signature": ("GET", self._signature),
            "/metrics": ("GET", self._read_metrics),
            "/health/live": ("GET", self._is_live),
            "/health/ready": ("GET", self._is_ready),
            **{f"/{verb}": ("POST", self._verb(verb)) for verb in _VERBS},
        }

    @property
    def ready(self) -> bool:
        """Whether rows are taken."""
        return self._live and not self.draining

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        record = request.record
        path = scope["path"] if scope["path"] in self._paths else ""
        try:
            reply = await self._reply(path, request)
            record.status = reply.status
            record.sent = len(reply.body)
            await answer(send, reply)
        finally:
            record.end()
            self._metrics.answered(path, record.status)
            record.write()

    async def _reply(self, path: str, request: Request) -> Reply:
        """The answer of a path, or the error that it raised."""
        try:
            return await self._endpoint(path, request)(request)
        except errors.FluidError as error:
            return _refused(error)
        except Exception:  # of ours; what it says is for the log
            LOG.exception("a request failed")
            return refused(Refusal(500, "the trainer failed on this request"))

    def _endpoint(self, path: str, request: Request) -> Endpoint:
        """What answers a path.

        Raises:
          Refusal: nothing does, or this client may not ask.
        """
        headers = request.headers
        if not self._access.knows(headers.get("host")):
            raise Refusal(403, "the server has no such name; it listens for this machine only")
        if headers.get("origin") is not None:  # a browser sends for a page without asking whose rows these are
            raise Refusal(403, "pages in a browser cannot ask this server")
        if path not in _OPEN and not self._access.allows(headers.get("authorization")):
            raise Refusal(401, "this server asks for a token: Authorization: Bearer TOKEN")
        if not path:
            raise Refusal(404, f"there is nothing here; the paths are {', '.join(self._paths)}")
        method, endpoint = self._paths[path]
        if request.method != method:
            raise Refusal(405, f"the method of this path is {method}")
        return endpoint

    async def _rows(self, request: Request) -> Reply:
        if self.draining:
            raise Refusal(503, "the server is about to end; send the same rows again later")
        headers = request.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*_LINES, *_TENSORS):
            raise Refusal(
                415, f"found the Content-Type {kind[:60]!r}, expected {_LINES[0]} for a JSON object in each line, or "
                f"{' or '.join(_TENSORS)} for tensors"
            )  # fmt: skip
        with self._bodies.counted() as pending:
            body = await self._bodies.read(request, pending)
            request.record.received = len(body)
            length = self._bodies.json_length(headers.get(protocol.HEADER_LENGTH) if kind in _TENSORS else None, body)
            accepted, rows = await asyncio.to_thread(self._accept, kind, body, length, headers.get(_KEY))
        return said({"first": accepted.first, "rows": rows, "repeated": accepted.repeated})

    def _accept(self, kind: str, body: bytes, length: int | None, key: str | None) -> Any:
        """Check rows and accept them, in a thread, since a disk is waited for."""
        packed = self._packed(_lines(body) if kind in _LINES else self._columns(body, length))
        return self._online.accept(packed, key), packed.rows

    def _columns(self, body: bytes, length: int | None) -> Columns:
        columns: Columns = self._online.rows.unpack(body, length, self._settings.max_inputs)
        return columns

    def _packed(self, minibatch: Any) -> Packed:
        packed: Packed = self._online.rows.pack(minibatch)
        return packed

    def _verb(self, name: str) -> Endpoint:
        """What does a verb."""

        async def do(request: Request) -> Reply:
            if self._verbs >= _MOST_VERBS:
                raise Refusal(503, f"{_MOST_VERBS} requests wait for the trainer already; ask again later")
            self._verbs += 1
            try:
                return said(await asyncio.to_thread(getattr(self._online, name)))
            finally:
                self._verbs -= 1

        return do

    async def _status(self, request: Request) -> Reply:
        return said(await asyncio.to_thread(self._online.status))

    async def _signature(self, request: Request) -> Reply:
        return said(self._online.signature())

    async def _read_metrics(self, request: Request) -> Reply:
        body, content_type = await asyncio.to_thread(self._metrics.text)
        return Reply(body, content_type=content_type)

    async def _is_live(self, request: Request) -> Reply:
        return said({"live": True})

    async def _is_ready(self, request: Request) -> Reply:
        return said({"ready": self.ready}, 200 if self.ready else 503)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        """From start to end of the server, as ASGI has it."""
        await receive()
        self._live = True
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.draining = True
        await send({"type": "lifespan.shutdown.complete"})


def _lines(body: bytes) -> list[dict[str, Any]]:
    """The rows of JSON lines: an object of fields by name in each.

    Raises:
      ProtocolError: a line is something else, or there is none.
    """
    rows = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(protocol.read_json(line))
        except errors.ProtocolError as error:
            raise errors.ProtocolError(f"line {number}: {error}") from error
    if not rows:
        raise errors.ProtocolError('found no line, expected a JSON object in each, as in {"x": [0.5, 1], "y": 1}')
    return rows


def _refused(error: errors.FluidError) -> Reply:
    """The reply that tells an error."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
    if status is None:
        return refused(error)
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    return said({"error": str(error), "kind": type(error).__name__}, status, headers)
