"""App: the ASGI application, with the paths of the Open Inference Protocol, metrics and a page."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fluid import errors, protocol
from fluid.serving import page
from fluid.serving.access import Access, Record
from fluid.serving.batching import Closed, Job, QueueFull, Values
from fluid.serving.bodies import Bodies
from fluid.serving.metrics import Metrics
from fluid.serving.models import Models, Version
from fluid.serving.replies import Refusal, Reply, refused, said
from fluid.serving.request import Receive, Request, Send, answer
from fluid.serving.settings import Settings
from fluid.serving.waiting import Company, Later, Mailbox, Worker

LOG = logging.getLogger("fluid.serving")
_SOON = 0.02  # seconds
_ALONE = 0.01  # seconds
_LATER = 0.005  # seconds
# Bytes of binary tensors, and of results that are written as JSON, which take some milliseconds.
_LARGE, _LARGE_AS_JSON = 1 << 20, 1 << 15
_OF_MODEL = re.compile("/v2/models/([^/]+)(?:/versions/([^/]+))?(/infer|/ready)?")
# What tells nothing about a model, and is asked by whoever restarts a server.
_OPEN = {"/", "/page.js", "/page.css", "/v2/health/live", "/v2/health/ready"}
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Reply]]


class App:
    """Serves models over HTTP, by the Open Inference Protocol.

    Args:
      models: by name, as for `fluid.serve`.
      settings: how to batch, and the limits.
      access: who may ask.
      place: a device, see `fluid.place.device_of`.
      reload_every: seconds between looks for new versions; None for none.

    Attributes:
      models: the models.
      draining: whether the server is about to end; then it is not ready.
      failure: why the models cannot be compiled, or None.
      settled: called when all models are compiled, and again when new versions have taken over.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        settings: Settings,
        access: Access,
        place: Any = None,
        reload_every: float | None = None,
    ):
        self.metrics = Metrics(self._gauges)
        self.models = Models(models, settings, self.metrics, place)
        self.draining = False
        self.failure: Exception | None = None
        self.settled: Callable[[], object] = lambda: None
        self._settings, self._access, self._reload_every = settings, access, reload_every
        self.bodies = Bodies(settings)
        self._company = Company(_ALONE)
        self._notes = Later(_LATER, self._note)
        self._mailbox = Mailbox(min(_SOON, settings.timeout / 2))
        self._fixed: dict[str, Endpoint] = {
            "/": page.html, "/page.js": page.script, "/page.css": page.style, "/metrics": self._read_metrics,
            "/v2": self._server, "/v2/health/live": self._is_live, "/v2/health/ready": self._is_ready,
            "/v2/models": self._list,
        }  # fmt: skip
        self._of_model: dict[str | None, Endpoint] = {
            None: self._describe, "/ready": self._is_model_ready, "/infer": self._infer,
        }  # fmt: skip
        self._worker = Worker()
        self._work: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether every model answers."""
        return self.models.ready and not self.draining

    @property
    def pending_bytes(self) -> int:
        """Bytes of all requests that are being read or waiting."""
        return self.bodies.pending

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            request = Request(scope, receive)
            record = request.record
            try:
                reply = await self._reply(request)
                record.status, record.sent = reply.status, len(reply.body)
                await answer(send, reply)
            finally:
                record.end()
                self._notes.put(record)
                if not record.infers:
                    self._notes.do_now()

    def _note(self, record: Record) -> None:
        """Count a request, and write it down."""
        if record.infers:
            self.metrics.answered(record.model, record.version, record.status, record.seconds)
        record.write()

    async def _reply(self, request: Request) -> Reply:
        """The answer of an endpoint, or the error that it raised."""
        try:
            path, headers = request.path, request.headers
            if not self._access.knows(headers.get("host")):
                raise Refusal(403, "the server has no such name; it listens for this machine only")
            if not self._access.lets_page(headers.get("origin"), headers.get("host")):
                raise Refusal(403, "pages of another origin cannot ask this server, which has no token")
            if path not in _OPEN and not self._access.allows(headers.get("authorization")):
                raise Refusal(401, "this server asks for a token: Authorization: Bearer TOKEN")
            return await self._endpoint(request)(request)
        except errors.FluidError as error:
            return refused(error)
        except Exception:  # of ours or of the model; what it says is for the log
            LOG.exception("a request failed")
            return refused(Refusal(500, "the model failed on this request"))

    def _endpoint(self, request: Request) -> Endpoint:
        """What answers a path; the name and the version of a model in it are noted.

        Raises:
          Refusal: 404 where nothing does, 405 for another method.
        """
        method = "GET"
        found = self._fixed.get(request.path)
        if found is None:
            match = _OF_MODEL.fullmatch(request.path)
            if match is None:
                raise Refusal(
                    404, "there is nothing here; the paths are those of the Open Inference Protocol: /v2/models"
                )
            request.model, request.version, what = match.groups()
            found = self._of_model[what]
            method = "POST" if what == "/infer" else "GET"
        if request.method != method:
            raise Refusal(405, f"the method of this path is {method}")
        return found

    async def _infer(self, request: Request) -> Reply:
        record = request.record
        record.infers = True
        with self.bodies.counted() as pending:
            version = self._find(request)
            if not version.ready:
                raise Refusal(503, f"the model {version.model!r} is not ready yet")
            body = await self.bodies.read(request, pending)
            record.received = len(body)
            length = self.bodies.json_length(request.headers.get(protocol.HEADER_LENGTH), body)
            is_long = (len(body) if length is None else length) > protocol.LONG or len(body) > _LARGE
            asked, job = await self._done(is_long, lambda: self._read(version, body, length, is_long))
            version, job = self._submitted(request, version, asked, job)
            values = await self._result(request, version, job)
            record.version = version.version
            is_long = _size(values) > (_LARGE if asked.binary else _LARGE_AS_JSON)
            return await self._done(is_long, lambda: _answer(version, asked, values))

    async def _done(self, is_long: bool, call: Callable[[], T]) -> T:
        """Return the result of a call, which runs in a thread if it takes long, so that the event loop goes on."""
        if not is_long:
            return call()
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await self._worker.do(call)
        except TimeoutError:
            raise Refusal(504, f"no answer within {self._settings.timeout:g} seconds") from None

    def _read(
        self, version: Version, body: bytes, length: int | None, is_long: bool
    ) -> tuple[protocol.InferRequest, Job]:
        """Read and check a body."""
        asked = protocol.read_request(body, length, self._settings.max_inputs)
        if is_long:
            version.runner.check_sizes(asked.inputs)
        return asked, self._job(version, asked)

    def _job(self, version: Version, asked: protocol.InferRequest) -> Job:
        levels = {name: spec.lod_level for name, spec in version.runner.signature.feeds.items()}
        _check_outputs(version, asked)
        return version.runner.job(protocol.from_tensors(asked.inputs, levels), self._settings.timeout, asked.seed)

    def _submitted(
        self, request: Request, version: Version, asked: protocol.InferRequest, job: Job
    ) -> tuple[Version, Job]:
        """The job of a request, in the queue of its model."""
        alone = self._company.is_alone(request.client)
        try:
            if not (alone and version.runner.is_quick(job) and version.batcher.run_now(job)):
                version.batcher.submit(job)
        except QueueFull:
            raise Refusal(503, "too many requests are waiting; try again later") from None
        except Closed:
            newer = self._find(request)
            if newer is version:
                raise Refusal(503, f"the model {version.model!r} is not served any more") from None
            return self._submitted(request, newer, asked, self._job(newer, asked))
        return version, job

    async def _result(self, request: Request, version: Version, job: Job) -> Values:
        """The results of a job; it is forgotten when its time is over, or when its client goes away."""
        if job.future.done():
            return job.future.result()
        try:
            # Most answers come before it is worth looking whether anybody still waits for them.
            if not await self._mailbox.patiently(job) and await self._is_gone(request, job):
                raise Refusal(400, "the client went away")
            if not job.future.done() or job.future.cancelled():
                raise Refusal(504, f"no answer within {self._settings.timeout:g} seconds")
            return job.future.result()
        finally:
            if not job.future.done():
                version.batcher.cancel(job)

    async def _is_gone(self, request: Request, job: Job) -> bool:
        """Wait for a result until its deadline; whether the client went away instead."""
        result = self._mailbox.arrival(job)
        gone = asyncio.ensure_future(request.receive())
        left = job.deadline - time.monotonic()
        try:
            await asyncio.wait((result, gone), timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
            return gone.done() and not job.future.done()
        finally:
            gone.cancel()

    def _find(self, request: Request) -> Version:
        version = self.models.find(request.model or "", request.version)
        record = request.record
        record.model, record.version = version.model, version.version
        return version

    async def _describe(self, request: Request) -> Reply:
        version = self._find(request)
        told = {
            "name": version.model,
            "versions": self.models.versions(version.model),
            "platform": "fluid_stablehlo",
            **version.runner.signature.to_json(),
        }
        return said(told)

    async def _is_model_ready(self, request: Request) -> Reply:
        version = self._find(request)
        return said({"name": version.model, "ready": version.ready}, 200 if version.ready else 503)

    async def _list(self, request: Request) -> Reply:
        return said({"models": self.models.names()})

    async def _server(self, request: Request) -> Reply:
        return said({"name": "fluid", "version": _version(), "extensions": ["binary_tensor_data"]})

    async def _is_live(self, request: Request) -> Reply:
        return said({"live": True})

    async def _is_ready(self, request: Request) -> Reply:
        return said({"ready": self.ready}, 200 if self.ready else 503)

    async def _read_metrics(self, request: Request) -> Reply:
        self._notes.do_now()
        body, content_type = self.metrics.text()
        return Reply(body, content_type=content_type)

    def _gauges(self) -> list[tuple[str, str, int, int]]:
        return [(v.model, v.version, v.batcher.waiting, v.runner.compilations) for v in self.models]

    async def _live(self, receive: Any, send: Any) -> None:
        """From start to end of the server, as ASGI has it."""
        await receive()
        self._work = asyncio.create_task(self._prepare())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.draining = True
        self._work.cancel()
        self._worker.close()
        self.models.close()  # not in another thread: Python starts none for asyncio when it ends
        self._notes.do_now()
        await send({"type": "lifespan.shutdown.complete"})

    async def _prepare(self) -> None:
        """Compile the models, and then look for new versions."""
        try:
            await asyncio.to_thread(self.models.warm_up)
        except Exception as error:
            LOG.exception("a model cannot be compiled; the server will not become ready")
            self.failure = error
            return
        self.settled()
        while self._reload_every is not None:
            await asyncio.sleep(self._reload_every)
            try:
                if await asyncio.to_thread(self.models.reload):
                    self.settled()
            except Exception:  # the next look may find what this one did not
                LOG.exception("new versions were not looked for")


def _size(values: Values) -> int:
    """Return how many bytes results have, without their lengths."""
    return sum((value.data if hasattr(value, "lengths") else value).nbytes for value in values.values())


def _answer(version: Version, asked: protocol.InferRequest, values: Values) -> Reply:
    """The results as a message."""
    if asked.outputs is None:
        tensors = protocol.to_tensors(values)
        binary = frozenset([tensor.name for tensor in tensors] if asked.binary else ())
    else:
        parts = {output: protocol.to_tensors({output.name: values[output.name]}) for output in asked.outputs}
        tensors = [tensor for found in parts.values() for tensor in found]
        binary = frozenset(tensor.name for output, found in parts.items() if output.binary for tensor in found)
    response = protocol.InferResponse(version.model, version.version, tensors, asked.id, binary)
    body, length = protocol.write_response(response)
    if length is None:
        return Reply(body)
    return Reply(body, content_type="application/octet-stream", headers={protocol.HEADER_LENGTH: str(length)})


def _check_outputs(version: Version, asked: protocol.InferRequest) -> None:
    known = [output.name for output in version.runner.signature.outputs]
    names = [wanted.name for wanted in asked.outputs or ()]
    for name in names:
        if name not in known:
            raise errors.ProtocolError(
                f"the model {version.model!r} has no output {name[:60]!r}. {errors.nearest(name[:60], known)}"
            )
    if len(set(names)) != len(names):
        raise errors.ProtocolError("an output is asked for twice")


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("fluid-jax")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
