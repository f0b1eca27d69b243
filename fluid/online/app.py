"""App: the ASGI application that takes rows and verbs for an OnlineTrainer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fluid import errors, protocol
from fluid.online.metrics import Metrics
from fluid.remote.rows import Packed, check_count
from fluid.serving.access import Access
from fluid.serving.bodies import Bodies
from fluid.serving.replies import Refusal, Reply, message, refused, said, without_folders
from fluid.serving.request import Request, answer
from fluid.serving.settings import Settings
from fluid.serving.waiting import Worker

LOG = logging.getLogger("fluid.online")
_LINES = ("application/x-ndjson", "application/jsonl")
_TENSORS = ("application/octet-stream", "application/json")
_KEY = "idempotency-key"
_VERBS = ("start", "pause", "resume", "save", "publish", "stop")
_MOST_FIELDS = 1024
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
        self.bodies = Bodies(settings)
        self._metrics = Metrics(online.status)
        self._worker = Worker()
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
            return self._refused(error)
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
        with self.bodies.counted() as pending:
            body = await self.bodies.read(request, pending)
            request.record.received = len(body)
            length = self.bodies.json_length(headers.get(protocol.HEADER_LENGTH) if kind in _TENSORS else None, body)
            if len(body) > protocol.LONG:  # one after the other: several at once would leave the event loop no time
                packed = await self._worker.do(lambda: self._read(kind, body, length))
            else:
                packed = await asyncio.to_thread(self._read, kind, body, length)
            # In another thread, since a disk is waited for; what several threads accept is written together.
            accepted = await asyncio.to_thread(self._online.accept, packed, headers.get(_KEY))
        return said({"first": accepted.first, "rows": packed.rows, "repeated": accepted.repeated})

    def _read(self, kind: str, body: bytes, length: int | None) -> Packed:
        """Check rows."""
        rows, most_rows, most_bytes = self._online.rows, self._online.max_rows, self._settings.max_body
        if kind in _LINES:
            check_count(body.count(b"\n"), most_rows)
            protocol.check_lists(body)
            minibatch: Any = _lines(body, rows.most_numbers)
        else:
            minibatch = rows.unpack(body, length, self._settings.max_inputs, most_rows, most_bytes)
        packed: Packed = rows.pack(minibatch, most_bytes)
        return packed

    def _verb(self, name: str) -> Endpoint:
        """What does a verb."""

        async def do(request: Request) -> Reply:
            if self._verbs >= _MOST_VERBS:
                raise Refusal(503, f"{_MOST_VERBS} requests wait for the trainer already; ask again later")
            self._verbs += 1
            try:
                return self._told(await asyncio.to_thread(getattr(self._online, name)))
            finally:
                self._verbs -= 1

        return do

    async def _status(self, request: Request) -> Reply:
        return self._told(await asyncio.to_thread(self._online.status))

    async def _signature(self, request: Request) -> Reply:
        return said(self._online.signature())

    async def _read_metrics(self, request: Request) -> Reply:
        body, content_type = await asyncio.to_thread(self._metrics.text)
        return Reply(body, content_type=content_type)

    async def _is_live(self, request: Request) -> Reply:
        return said({"live": True})

    async def _is_ready(self, request: Request) -> Reply:
        return said({"ready": self.ready}, 200 if self.ready else 503)

    def _refused(self, error: errors.FluidError) -> Reply:
        """The reply that tells an error."""
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
        if status is None:
            return refused(error, self._online.folders)
        headers = {"retry-after": "1"} if status in (429, 503) else {}
        text = message(error, self._online.folders)
        return said({"error": text, "kind": type(error).__name__}, status, headers)

    def _told(self, status: dict[str, Any]) -> Reply:
        """The reply that tells a status, without the folders in the error that ended training."""
        error = status["error"]
        return said(status if error is None else {**status, "error": without_folders(error, self._online.folders)})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        """From start to end of the server, as ASGI has it."""
        await receive()
        self._live = True
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.draining = True
        self._worker.close()
        await send({"type": "lifespan.shutdown.complete"})


def _lines(body: bytes, most: int | None) -> list[dict[str, Any]]:
    """The rows of JSON lines: an object of fields by name in each.

    Args:
      body: the lines.
      most: how many numbers a row has at most, which a long line is checked for before it is read; None for any number.

    Raises:
      ProtocolError: a line is something else, or there is none.
    """
    rows = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        if most is not None and len(line) > protocol.LONG and line.count(b",") > most + _MOST_FIELDS:
            raise errors.ProtocolError(f"line {number}: found {line.count(b',')} commas, and a row has {most} numbers")
        try:
            rows.append(protocol.read_json(line, in_thread=True))
        except errors.ProtocolError as error:
            raise errors.ProtocolError(f"line {number}: {error}") from error
    if not rows:
        raise errors.ProtocolError('found no line, expected a JSON object in each, as in {"x": [0.5, 1], "y": 1}')
    return rows
