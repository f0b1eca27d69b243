"""The class App: an ASGI application that serves models by the Open Inference Protocol, with metrics and a web page.

A request passes through the connection (limits), `http` (access, body), the App, the protocol, `Runner.job` (checks,
padding), the Batcher and `Runner.run`. For small models, the event loop is the bottleneck. Therefore the head and the
body of a response are sent together, the event loop is woken once for a batch, and several requests are logged at
once. One thread parses large requests, and another one writes large responses, in turns.
"""

import asyncio
import contextlib
import functools
import logging
import pathlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from fluid import errors
from fluid.runtime.prediction import continued
from fluid.serving import http, protocol
from fluid.serving.batching import Closed, Job, QueueFull, Values, answer_sizes
from fluid.serving.http import AccessPolicy, EventStream, HttpRequest, Refusal, Response, json_response, server_sent
from fluid.serving.models import Models, Version
from fluid.serving.settings import Settings

T = TypeVar("T")
LOG = logging.getLogger("fluid.serving")
# Size limits in bytes, of binary tensors and of a response in JSON. Above a limit, another thread parses the request or
# writes the response: this takes some milliseconds, during which the event loop could serve no other request.
_LARGE, _LARGE_AS_JSON = 1 << 20, 200_000
# The time, in seconds, to wait for a result before an asyncio task begins to check whether the client disconnects. Most
# results come earlier, so no task is needed for them.
_UNWATCHED = 0.02
_MODEL_PATH = re.compile("/v2/models/([^/]+)(?:/versions/([^/]+))?(/infer|/ready)?")
# The bucket bounds of the histograms: durations from half a millisecond to half a minute, and numbers of rows.
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_STATIC = pathlib.Path(__file__).parent / "static"
# These HTTP headers forbid the web page to load anything from other servers, and other pages to embed it in a frame.
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}


class InferenceMetrics(http.Metrics):
    """The metrics of inference requests, as counters and histograms, and of models, as gauges."""

    def __init__(self, versions: Callable[[], Iterable[Version]]):
        super().__init__()
        self._versions = versions
        labels = ["model", "version"]
        self._requests = self.client.Counter(
            "fluid_requests", "Requests to infer, by status.", [*labels, "status"], registry=self.registry
        )
        self._seconds = self.client.Histogram(
            "fluid_request_seconds", "Seconds from the head of a request to its answer.", labels,
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._rows = self.client.Histogram(
            "fluid_batch_rows", "Rows of the batches that ran.", labels, buckets=_ROWS, registry=self.registry
        )
        # Metrics with labels are cached, because finding a metric by its labels takes as long as counting a request.
        self._cache: dict[tuple[Any, ...], Any] = {}

    def count(self, request: HttpRequest) -> None:
        """Count an inference request; unknown models have an empty name, so that clients cannot add metric labels."""
        if request.infers:
            self._labelled(self._requests, request.model, request.version, str(request.status)).inc()
            self._labelled(self._seconds, request.model, request.version).observe(request.seconds)

    def count_batch(self, model: str, version: str, rows: int) -> None:
        """Record the number of rows of a batch that runs, in a histogram."""
        self._labelled(self._rows, model, version).observe(rows)

    def text(self) -> tuple[bytes, str]:
        """Return all metrics in the text format of Prometheus; forget metrics of versions that are no longer served."""
        served = {(version.model, version.version) for version in self._versions()} | {("", "")}
        for metric, *values in list(self._cache):
            if tuple(values[:2]) not in served:
                metric.remove(*values)
                del self._cache[metric, *values]
        return super().text()

    def _labelled(self, metric: Any, *values: str) -> Any:
        if (found := self._cache.get((metric, *values))) is None:
            found = self._cache[metric, *values] = metric.labels(*values)
        return found

    def collect(self) -> Iterable[Any]:
        """Return two gauges with a value for each model: the number of waiting requests, and of compilations."""
        from prometheus_client.core import GaugeMetricFamily

        labels = ["model", "version"]
        waiting = GaugeMetricFamily("fluid_queue_requests", "Requests that wait for a model.", labels=labels)
        compiled = GaugeMetricFamily("fluid_compilations", "Shapes that were compiled.", labels=labels)
        for version in self._versions():
            waiting.add_metric([version.model, version.version], version.batcher.waiting)
            compiled.add_metric([version.model, version.version], version.runner.compilations)
        return [waiting, compiled]


class App(http.Application):
    """An ASGI application that serves models by the Open Inference Protocol.

    Args:
      reload_every: the number of seconds between searches for new versions; None never searches.

    Attributes:
      models: the loaded models.
      on_loaded: called when all models are compiled, and again when new versions have replaced older ones.
    """

    # These paths require no token, because they reveal nothing about models, and supervisors read them to decide on a
    # restart.
    public = frozenset({"/", "/page.js", "/page.css", "/v2/health/live", "/v2/health/ready"})
    statuses: ClassVar[Mapping[type[errors.FluidError], int]] = {errors.UnknownNameError: 404}
    log = LOG
    failed = "the model failed on this request"

    def __init__(
        self,
        models: Mapping[str, Any],
        settings: Settings,
        access: AccessPolicy,
        place: Any = None,
        reload_every: float | None = None,
    ):
        metrics = InferenceMetrics(lambda: self.models)
        super().__init__(settings, access, metrics)
        self.models = Models(models, settings, metrics.count_batch, self._wake, place)
        self.on_loaded: Callable[[], object] = lambda: None
        self._reload_every = reload_every
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loading: asyncio.Task[None] | None = None
        self._paths: dict[str, http.Endpoint] = {
            "/": _static_file("page.html", "text/html"),
            "/page.js": _static_file("page.js", "text/javascript"),
            "/page.css": _static_file("page.css", "text/css"),
            "/metrics": self.read_metrics,
            "/v2": self._describe_server,
            "/v2/health/live": self.is_live,
            "/v2/health/ready": self.is_ready,
            "/v2/models": self._list_models,
        }
        self._model_paths: dict[str | None, tuple[str, Any]] = {
            None: ("GET", self._describe_model),
            "/ready": ("GET", self._is_model_ready),
            "/infer": ("POST", self._infer),
        }

    @property
    def ready(self) -> bool:
        """True if every model is compiled, and the shutdown of the server has not begun."""
        return self.models.ready and not self.draining

    def route(self, request: HttpRequest) -> tuple[str, http.Endpoint]:
        """Return the HTTP method and the endpoint (the function that responds) for the path of a request."""
        if endpoint := self._paths.get(request.path):
            return "GET", endpoint
        match = _MODEL_PATH.fullmatch(request.path)
        if match is None:
            raise Refusal(404, "there is nothing here; the paths are those of the Open Inference Protocol: /v2/models")
        model, version, action = match.groups()
        method, of_model = self._model_paths[action]
        return method, functools.partial(of_model, find=lambda: self._find(request, model, version))

    def _find(self, request: HttpRequest, model: str, version: str | None) -> Version:
        found = self.models.find(model, version)
        request.model, request.version = found.model, found.version
        return found

    async def _infer(self, request: HttpRequest, find: Callable[[], Version]) -> Response:
        request.infers = True
        version = find()
        if not version.ready:
            raise Refusal(503, f"the model {version.model!r} is not ready yet")
        body = await self.read_body(request)
        length = self.json_length(request.headers.get(protocol.HEADER_LENGTH), body)
        is_long = (len(body) if length is None else length) > protocol.LONG or len(body) > _LARGE
        inference, job = await self._run(request, is_long, lambda: self._parse(version, body, length, is_long))
        if request.headers.get("accept") == "text/event-stream":
            return await self._stream(request, find, version, inference, job)
        version, job = self._submit(request, find, version, inference, job)
        values = await self._result(request, version, inference, job)
        return await self._written(request, version, inference, job, values)

    async def _stream(
        self,
        request: HttpRequest,
        find: Callable[[], Version],
        version: Version,
        inference: protocol.InferRequest,
        job: Job,
    ) -> EventStream:
        """Return a streamed response. Compute its first part now, so that an error in it can set the HTTP status."""
        if inference.binary or any(output.binary for output in inference.outputs or ()):
            raise Refusal(400, "the events of a stream are JSON; leave out binary_data and binary_data_output")
        parts = self._parts(request, find, version, inference, job)
        first = await anext(parts, None)

        async def events() -> AsyncIterator[bytes]:
            try:
                if first is not None:
                    yield first
                    async for part in parts:
                        yield part
            # the response has begun, so an error cannot change its HTTP status: send the error as an event
            except Exception as error:
                response = self.error_response(error)
                request.status = response.status  # for the access log and the metrics
                yield server_sent(response.body, "error")

        return EventStream(events=events())

    async def _parts(
        self,
        request: HttpRequest,
        find: Callable[[], Version],
        version: Version,
        inference: protocol.InferRequest,
        job: Job,
    ) -> AsyncIterator[bytes]:
        """Run a model repeatedly, each time on the sequences that the last run has extended; yield one event per run.

        Each run is a job like an ordinary request: it waits in the queue, and shares batches with other requests. The
        runs end when no sequence grows.
        """
        while not request.disconnect().done():
            version, job = self._submit(request, find, version, inference, job)
            values = await self._result(request, version, inference, job)
            feeds = continued(job.values, values)
            if feeds is None:
                return
            yield server_sent((await self._written(request, version, inference, job, values)).body)
            inference = replace(inference, inputs=protocol.to_tensors(feeds))
            is_long = sum(tensor.data.nbytes for tensor in inference.inputs) > _LARGE
            job = await self._run(request, is_long, functools.partial(self._job, version, inference))
        raise http.gone()

    async def _run(self, request: HttpRequest, is_long: bool, call: Callable[[], T]) -> T:
        """Return the result of `call`; if `is_long`, another thread runs it, so the event loop is not blocked."""
        if not is_long:
            return call()
        async with self._in_time(time.monotonic() + self.settings.timeout):
            return await self.run_long(request, call)

    @contextlib.asynccontextmanager
    async def _in_time(self, deadline: float) -> AsyncIterator[None]:
        """Interrupt the body of an `async with` statement at its deadline, in seconds of `time.monotonic`."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                yield
        except TimeoutError:
            raise self._too_late() from None

    def _too_late(self) -> Refusal:
        return Refusal(504, f"no answer within {self.settings.timeout:g} seconds")

    def _parse(
        self, version: Version, body: bytes, length: int | None, is_long: bool
    ) -> tuple[protocol.InferRequest, Job]:
        """Parse the body of a request; return the parsed request and the job that runs it."""
        inference = protocol.read_request(body, length, self.settings.max_inputs)
        if is_long:
            version.runner.check_sizes(inference.inputs)
        return inference, self._job(version, inference)

    def _job(self, version: Version, inference: protocol.InferRequest) -> Job:
        levels = {name: spec.lod_level for name, spec in version.runner.signature.feeds.items()}
        _check_outputs(version, inference)
        if inference.rows is not None:
            values = version.runner.encoded(inference.rows)
        else:
            values = protocol.from_tensors(inference.inputs, levels)
        return version.runner.job(values, self.settings.timeout, inference.seed)

    def _submit(
        self,
        request: HttpRequest,
        find: Callable[[], Version],
        version: Version,
        inference: protocol.InferRequest,
        job: Job,
    ) -> tuple[Version, Job]:
        """Queue a job; return the job, and the model version that runs the job.

        If a newer version has replaced `version` meanwhile, a new job of the newer version is created and returned.
        """
        while True:
            sizes = version.runner.answer_sizes(job)
            self.count_answer(request, 0 if sizes is None else _size(inference, sizes))
            try:
                version.batcher.submit(job)
                return version, job
            except QueueFull:
                raise Refusal(503, "too many requests are waiting; try again later") from None
            except Closed:
                newer = find()
                if newer is version:
                    raise Refusal(503, f"the model {version.model!r} is not served any more") from None
                version, job = newer, self._job(newer, inference)

    async def _result(
        self, request: HttpRequest, version: Version, inference: protocol.InferRequest, job: Job
    ) -> Values:
        """Wait for a job and return its results; cancel the job at its deadline, or when the client disconnects."""
        try:
            if not job.future.done() and await self._is_disconnected(request, job):
                raise http.gone()
            if not job.future.done() or job.future.cancelled():
                raise self._too_late()
            values = job.future.result()
            if not request.answer:  # the first request of its shape, whose results had an unknown size
                self.count_answer(request, _size(inference, answer_sizes(values)))
            return values
        finally:
            if not job.future.done():
                version.batcher.cancel(job)

    async def _written(
        self, request: HttpRequest, version: Version, inference: protocol.InferRequest, job: Job, values: Values
    ) -> Response:
        """Return the response with the results of a job; a large response is written in turns with others."""
        turns = _inference_response(version, inference, values)
        if request.answer <= (_LARGE if inference.binary else _LARGE_AS_JSON):
            return protocol.finished(turns)
        async with self._in_time(job.deadline):
            return await self.run_turns(request, turns)

    async def _is_disconnected(self, request: HttpRequest, job: Job) -> bool:
        """Wait until a job ends, at most until its deadline; return whether the client has disconnected earlier."""
        await _wait(job, min(_UNWATCHED, self.settings.timeout))
        if job.future.done():
            return False
        disconnect = request.disconnect()
        disconnect.add_done_callback(wake := lambda _: job.ended.set())
        try:
            await _wait(job, job.deadline - time.monotonic())
            return disconnect.done() and not job.future.done()
        finally:
            disconnect.remove_done_callback(wake)

    def _wake(self, jobs: Sequence[Job]) -> None:
        """Let the HTTP requests that wait for the results of `jobs` continue.

        The method calls the event loop once for all jobs, because each call is expensive.
        """
        assert self._loop is not None
        # after a second SIGTERM or Ctrl-C, the event loop may be closed before the jobs end
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_set_all, [job.ended for job in jobs])

    async def _describe_model(self, request: HttpRequest, find: Callable[[], Version]) -> Response:
        version = find()
        described = {"name": version.model, "versions": [version.version], "platform": "fluid_stablehlo"}
        return json_response(described | version.runner.signature.to_json())

    async def _is_model_ready(self, request: HttpRequest, find: Callable[[], Version]) -> Response:
        version = find()
        return json_response({"name": version.model, "ready": version.ready}, 200 if version.ready else 503)

    async def _list_models(self, request: HttpRequest) -> Response:
        return json_response({"models": self.models.names()})

    async def _describe_server(self, request: HttpRequest) -> Response:
        return json_response({"name": "fluid", "version": _version(), "extensions": ["binary_tensor_data"]})

    async def startup(self) -> None:
        """Start a task that compiles the models."""
        self._loop = asyncio.get_running_loop()
        self._loading = asyncio.create_task(self._load())
        await super().startup()

    async def shutdown(self) -> None:
        """Stop the search for new versions, and close all models."""
        if self._loading is not None:
            self._loading.cancel()
        self.models.close()  # close the models in this thread, because asyncio can start no thread while Python exits
        await super().shutdown()

    async def _load(self) -> None:
        """Compile the models; then search for new versions every `reload_every` seconds until the server stops."""
        try:
            await asyncio.to_thread(self.models.warm_up)
        except Exception as error:
            LOG.exception("a model cannot be compiled; the server will not become ready")
            self.failure = error
            return
        self.on_loaded()
        while self._reload_every is not None:
            await asyncio.sleep(self._reload_every)
            try:
                if await asyncio.to_thread(self.models.reload):
                    self.on_loaded()
            # Only log an error of the search for new versions of the models, because the next search may succeed.
            except Exception:
                LOG.exception("new versions were not looked for")


def _static_file(name: str, content_type: str) -> http.Endpoint:
    """Return an endpoint that responds with one file of the web page."""

    async def endpoint(request: HttpRequest) -> Response:
        content = (_STATIC / name).read_bytes()
        return Response(content, content_type=f"{content_type}; charset=utf-8", headers=_PAGE_HEADERS)

    return endpoint


async def _wait(job: Job, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await job.ended.wait()


def _set_all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        event.set()


def _size(inference: protocol.InferRequest, sizes: Mapping[str, tuple[int, int]]) -> int:
    """Return the size of a response in bytes, from the sizes of all results as bytes and as JSON."""
    if inference.outputs is None:
        return sum(binary if inference.binary else text for binary, text in sizes.values())
    # a result that nobody asks for stays in memory too
    as_json = {output.name for output in inference.outputs if not output.binary}
    return sum(text if name in as_json else binary for name, (binary, text) in sizes.items())


def _inference_response(version: Version, inference: protocol.InferRequest, values: Values) -> protocol.Turns[Response]:
    """Write the HTTP response with the requested outputs, as JSON or as binary tensors as the request specifies."""
    if inference.outputs is None:
        tensors = protocol.to_tensors(values)
        binary = frozenset([tensor.name for tensor in tensors] if inference.binary else ())
    else:
        parts = {output: protocol.to_tensors({output.name: values[output.name]}) for output in inference.outputs}
        tensors = [tensor for found in parts.values() for tensor in found]
        binary = frozenset(tensor.name for output, found in parts.items() if output.binary for tensor in found)
    response = protocol.InferResponse(version.model, version.version, tensors, inference.id, binary)
    body, length = yield from protocol.write_response(response)
    if length is None:
        return Response(body)
    return Response(body, content_type="application/octet-stream", headers={protocol.HEADER_LENGTH: str(length)})


def _check_outputs(version: Version, inference: protocol.InferRequest) -> None:
    """Check that every requested output exists, and that no output is requested twice."""
    known = [output.name for output in version.runner.signature.outputs]
    names = [wanted.name for wanted in inference.outputs or ()]
    for name in names:
        if name not in known:
            raise errors.ProtocolError(
                f"the model {version.model!r} has no output {name[:60]!r}. {errors.nearest(name[:60], known)}"
            )
    if len(set(names)) != len(names):
        raise errors.ProtocolError("an output is asked for twice")


def _version() -> str:
    """Return the installed version of fluid."""
    import importlib.metadata

    try:
        return importlib.metadata.version("fluid-jax")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
