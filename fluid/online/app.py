"""The classes OnlineApp and TrainerApp: ASGI applications through which HTTP clients control a training.

OnlineApp controls an OnlineTrainer, and TrainerApp controls a HostedTrainer. OnlineMetrics reports the status of a
training to Prometheus.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from fluid import errors
from fluid.online.rows import Packed, check_count
from fluid.serving import http, protocol
from fluid.serving.http import AccessPolicy, HttpRequest, Refusal, Response, json_response, run_in_thread
from fluid.serving.settings import Settings

_LINES = ("application/x-ndjson", "application/jsonl")
_TENSORS = ("application/octet-stream", "application/json")
_KEY = "idempotency-key"
_VERBS = ("start", "pause", "resume", "save", "publish", "stop")
_MOST_FIELDS = 1024
_NUMBERS = re.compile(r"[0-9]{1,18}(,[0-9]{1,18})*")
# The maximum number of verbs (requests such as `/pause`) in flight. Each verb occupies a thread until the current
# training step ends.
_MOST_VERBS = 4
_STATES = ("training", "waiting", "paused", "stopped", "failed")
_COUNTERS = {
    "accepted": ("fluid_online_rows_accepted", "Rows that were accepted."),
    "trained": ("fluid_online_rows_trained", "Rows that were trained on."),
    "tested": ("fluid_online_rows_tested", "Rows that were tested on."),
    "skipped": ("fluid_online_rows_skipped", "Rows that a client has skipped."),
    "steps": ("fluid_online_steps", "Training steps done."),
}
_GAUGES = {
    "waiting": ("fluid_online_rows_waiting", "Rows that wait to be trained on."),
    "saved": ("fluid_online_saved_steps", "Training steps in the newest checkpoint."),
    "published": ("fluid_online_published_steps", "Training steps in the newest published version."),
}
_OUTPUTS = {
    "last": ("fluid_online_output", "Scalars of the program in the last step."),
    "test": ("fluid_online_test", "Their means over the newest rows that were tested on."),
}


class OnlineMetrics(http.Metrics):
    """The status of a training as Prometheus metrics, and a counter of requests."""

    def __init__(self, status: Callable[[], dict[str, Any]], paths: Iterable[str] = ()):
        super().__init__()
        self._status, self._paths = status, frozenset(paths)
        self._requests = self.client.Counter(
            "fluid_online_requests", "Requests, by what was asked and by status.", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip

    def count(self, request: HttpRequest) -> None:
        """Count a request by path and status; count unknown paths as "", so that clients cannot add metric labels."""
        path = request.path if request.path in self._paths else ""
        self._requests.labels(path, str(request.status)).inc()

    def collect(self) -> Iterable[Any]:
        """Return the status of the training as Prometheus counters and gauges."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for name, (metric, what) in _COUNTERS.items():
            if name in status:
                yield CounterMetricFamily(metric, what, value=status[name])
        for name, (metric, what) in _GAUGES.items():
            if status.get(name) is not None:
                yield GaugeMetricFamily(metric, what, value=status[name])
        state = GaugeMetricFamily("fluid_online_state", "1 for what it does now.", labels=["state"])
        for name in _STATES:
            state.add_metric([name], float(name == status["state"]))
        yield state
        for key, (metric, what) in _OUTPUTS.items():
            family = GaugeMetricFamily(metric, what, labels=["output"])
            for name, value in status[key].items():
                family.add_metric([name], float(value))
            yield family


class VerbApp(http.Application):
    """The base class of ASGI applications with verbs: requests such as `/pause` that control a training.

    Args:
      verbs: the verbs, such as "pause": a request for `/pause` calls the method `pause` of `training`, and responds
        with the result as JSON.
    """

    public = frozenset({"/health/live", "/health/ready"})
    statuses: ClassVar[Mapping[type[errors.FluidError], int]] = {
        errors.JournalFullError: 429,
        errors.JournalError: 503,
        errors.OnlineError: 409,
    }
    log = logging.getLogger("fluid.online")
    failed = "the trainer failed on this request"

    def __init__(
        self,
        training: Any,
        paths: Mapping[str, tuple[str, http.Endpoint]],
        verbs: Iterable[str],
        settings: Settings,
        access: AccessPolicy,
    ):
        self._paths: dict[str, tuple[str, http.Endpoint]] = {
            **paths,
            "/status": ("GET", self._status),
            "/metrics": ("GET", self.read_metrics),
            "/health/live": ("GET", self.is_live),
            "/health/ready": ("GET", self.is_ready),
            **{f"/{verb}": ("POST", self.verb(verb)) for verb in verbs},
        }
        super().__init__(settings, access, OnlineMetrics(training.status, self._paths))
        self.folders = training.folders
        self._training = training
        self._verbs_in_flight = 0

    @property
    def ready(self) -> bool:
        """True from the start of the server until its shutdown begins."""
        return self.started and not self.draining

    def route(self, request: HttpRequest) -> tuple[str, http.Endpoint]:
        """Return the HTTP method and the endpoint (the function that responds) for the path of a request."""
        if request.path not in self._paths:
            raise Refusal(404, f"there is nothing here; the paths are {', '.join(self._paths)}")
        return self._paths[request.path]

    def check_origin(self, request: HttpRequest) -> None:
        """Refuse a request from a web page, because a browser may send it without the consent of its user."""
        if request.headers.get("origin") is not None:
            raise Refusal(403, "pages in a browser cannot ask this server")

    def verb(self, name: str, *arguments: Any) -> http.Endpoint:
        """Return an endpoint that calls the method `name`, such as "pause", of the trainer, and returns its result."""

        async def endpoint(request: HttpRequest) -> Response:
            if self._verbs_in_flight >= _MOST_VERBS:
                raise Refusal(503, f"{_MOST_VERBS} requests wait for the trainer already; ask again later")
            self._verbs_in_flight += 1
            try:
                call = getattr(self._training, name)
                return self._status_response(await run_in_thread(lambda: call(*arguments)))
            finally:
                self._verbs_in_flight -= 1

        return endpoint

    async def _status(self, request: HttpRequest) -> Response:
        return self._status_response(await run_in_thread(self._training.status))

    def _status_response(self, status: dict[str, Any]) -> Response:
        error = status.get("error")
        return json_response(status | ({"error": http.without_folders(error, self.folders)} if error else {}))


class OnlineApp(VerbApp):
    """An ASGI application through which clients send rows and verbs (requests such as `/pause`) to an OnlineTrainer."""

    def __init__(self, online: Any, settings: Settings, access: AccessPolicy):
        self._online = online
        paths = {"/rows": ("POST", self._rows), "/signature": ("GET", self._signature)}
        super().__init__(online, paths, _VERBS, settings, access)

    def route(self, request: HttpRequest) -> tuple[str, http.Endpoint]:
        """Return the HTTP method and the endpoint for the path of a request; `/skip/4,7` skips the rows 4 and 7."""
        name, _, rows = request.path[1:].partition("/")
        if name == "skip" and _NUMBERS.fullmatch(rows):
            return "POST", self.verb("skip", [int(row) for row in rows.split(",")])
        return super().route(request)

    async def is_ready(self, request: HttpRequest) -> Response:
        """Return a response with status 200; 503 if the training has failed, or the shutdown has begun."""
        state = (await run_in_thread(self._online.status))["state"]
        ready = self.ready and state != "failed"
        return json_response({"ready": ready, "state": state}, 200 if ready else 503)

    async def _rows(self, request: HttpRequest) -> Response:
        if self.draining:
            raise Refusal(503, "the server is about to end; send the same rows again later")
        headers = request.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (*_LINES, *_TENSORS):
            raise Refusal(
                415, f"found the Content-Type {kind[:60]!r}, expected {_LINES[0]} for a JSON object in each line, or "
                f"{' or '.join(_TENSORS)} for tensors"
            )  # fmt: skip
        body = await self.read_body(request)
        length = self.json_length(headers.get(protocol.HEADER_LENGTH) if kind in _TENSORS else None, body)
        parse = functools.partial(self._parse, kind, body, length)
        packed = await (self.run_long(request, parse) if len(body) > protocol.LONG else run_in_thread(parse))
        # `accept` runs in a thread, because it waits for the disk; the journal, a database of rows, writes the rows of
        # several threads in one transaction.
        accepted = await run_in_thread(lambda: self._online.accept(packed, headers.get(_KEY)))
        return json_response({"first": accepted.first, "rows": packed.rows, "repeated": accepted.repeated})

    def _parse(self, kind: str, body: bytes, length: int | None) -> Packed:
        """Parse the body of a request, and return its rows, checked and packed for the journal (a database of rows)."""
        rows, most_rows, most_bytes = self._online.rows, self._online.max_rows, self.settings.max_body
        if kind in _LINES:
            check_count(body.count(b"\n"), most_rows)
            protocol.check_lists(body)
            minibatch: Any = parse_lines(body, rows.most_numbers)
        else:
            minibatch = rows.unpack(body, length, self.settings.max_inputs, most_rows, most_bytes)
        packed: Packed = rows.pack(minibatch, most_bytes)
        return packed

    async def _signature(self, request: HttpRequest) -> Response:
        return json_response(self._online.signature())


class TrainerApp(VerbApp):
    """An ASGI application for clients, which send verbs such as `/pause` to a HostedTrainer, and read its events."""

    def __init__(self, hosted: Any, settings: Settings, access: AccessPolicy):
        self._hosted = hosted
        paths = {"/signature": ("GET", self._signature)}
        super().__init__(hosted, paths, ("pause", "resume", "stop", "save", "test"), settings, access)

    def route(self, request: HttpRequest) -> tuple[str, http.Endpoint]:
        """Return the HTTP method and the endpoint (the function that responds) for the path of a request.

        `/train/3` trains for three epochs, and `/events/17` returns the events from number 17 on.
        """
        name, _, number = request.path[1:].partition("/")
        if re.fullmatch("[0-9]{1,18}", number):
            if name == "train":
                return "POST", self.verb("train", int(number))
            if name == "events":
                return "GET", self._events(int(number))
        return super().route(request)

    def _events(self, after: int) -> http.Endpoint:
        """Return an endpoint that responds with the events from number `after` on; see `HostedTrainer.events`."""

        async def endpoint(request: HttpRequest) -> Response:
            return json_response(await run_in_thread(lambda: self._hosted.events(after)))

        return endpoint

    async def _signature(self, request: HttpRequest) -> Response:
        return json_response({"trainer": True})


def parse_lines(body: bytes, most: int | None) -> list[dict[str, Any]]:
    """Parse rows from JSON lines: each line is a JSON object with the fields of a row by name.

    Args:
      body: the bytes of the lines.
      most: the maximum number of numbers in a row; None for no limit. A long line with many more commas than this is
        refused before it is parsed.

    Raises:
      ProtocolError: a line is not valid JSON or is too long, or there is no line.
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
