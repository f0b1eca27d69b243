"""App: the ASGI application that takes rows and verbs for an OnlineTrainer, with its metrics."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from fluid import errors, protocol
from fluid.remote.rows import Packed, check_count
from fluid.serving import http
from fluid.serving.http import AccessPolicy, Refusal, Request, Response, json_response, run_in_thread
from fluid.serving.settings import Settings

_LINES = ("application/x-ndjson", "application/jsonl")
_TENSORS = ("application/octet-stream", "application/json")
_KEY = "idempotency-key"
_VERBS = ("start", "pause", "resume", "save", "publish", "stop")
_MOST_FIELDS = 1024
_MOST_VERBS = 4  # in flight: each holds a thread until the current step ends
_STATES = ("training", "waiting", "paused", "stopped", "failed")
_COUNTERS = {
    "accepted": ("fluid_online_rows_accepted", "Rows that were accepted."),
    "trained": ("fluid_online_rows_trained", "Rows that were trained on."),
    "tested": ("fluid_online_rows_tested", "Rows that were tested on."),
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


class Metrics(http.Metrics):
    """The status of an OnlineTrainer as Prometheus metrics, and a counter of requests.

    Args:
      status: returns the status, see `OnlineTrainer.status`.
      paths: of the requests that are counted by path.
    """

    def __init__(self, status: Callable[[], dict[str, Any]], paths: Iterable[str] = ()):
        super().__init__()
        self._status, self._paths = status, frozenset(paths)
        self._requests = self.client.Counter(
            "fluid_online_requests", "Requests, by what was asked and by status.", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip

    def count(self, request: Request) -> None:
        """Count a request; an unknown path is counted under an empty path, so that clients add no names."""
        path = request.path if request.path in self._paths else ""
        self._requests.labels(path, str(request.status)).inc()

    def collect(self) -> Iterable[Any]:
        """Return the status as counters and gauges."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for name, (metric, what) in _COUNTERS.items():
            yield CounterMetricFamily(metric, what, value=status[name])
        for name, (metric, what) in _GAUGES.items():
            if status[name] is not None:
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


class App(http.Application):
    """An ASGI application that takes rows and verbs for an OnlineTrainer.

    Args:
      online: the OnlineTrainer.
      settings: the limits.
      access: the access policy.
    """

    public = frozenset({"/health/live", "/health/ready"})
    statuses: ClassVar[Mapping[type[errors.FluidError], int]] = {
        errors.JournalFullError: 429,
        errors.JournalError: 503,
        errors.OnlineError: 409,
    }
    log = logging.getLogger("fluid.online")
    failed = "the trainer failed on this request"

    def __init__(self, online: Any, settings: Settings, access: AccessPolicy):
        self._paths: dict[str, tuple[str, http.Endpoint]] = {
            "/rows": ("POST", self._rows),
            "/status": ("GET", self._status),
            "/signature": ("GET", self._signature),
            "/metrics": ("GET", self.read_metrics),
            "/health/live": ("GET", self.is_live),
            "/health/ready": ("GET", self.is_ready),
            **{f"/{verb}": ("POST", self._verb(verb)) for verb in _VERBS},
        }
        super().__init__(settings, access, Metrics(online.status, self._paths))
        self.folders = online.folders
        self._online = online
        self._verbs_in_flight = 0

    @property
    def ready(self) -> bool:
        """True while rows are accepted."""
        return self.started and not self.draining

    def route(self, request: Request) -> tuple[str, http.Endpoint]:
        """Return the method and the endpoint of a path."""
        if request.path not in self._paths:
            raise Refusal(404, f"there is nothing here; the paths are {', '.join(self._paths)}")
        return self._paths[request.path]

    def check_origin(self, request: Request) -> None:
        """Refuse all pages in a browser: it sends their requests without the consent of the user."""
        if request.headers.get("origin") is not None:
            raise Refusal(403, "pages in a browser cannot ask this server")

    async def _rows(self, request: Request) -> Response:
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
        run = self.run_long if len(body) > protocol.LONG else run_in_thread
        packed = await run(lambda: self._parse(kind, body, length))
        # A thread waits for the disk; rows of several threads are written in one transaction.
        accepted = await run_in_thread(lambda: self._online.accept(packed, headers.get(_KEY)))
        return json_response({"first": accepted.first, "rows": packed.rows, "repeated": accepted.repeated})

    def _parse(self, kind: str, body: bytes, length: int | None) -> Packed:
        """Parse and check rows."""
        rows, most_rows, most_bytes = self._online.rows, self._online.max_rows, self.settings.max_body
        if kind in _LINES:
            check_count(body.count(b"\n"), most_rows)
            protocol.check_lists(body)
            minibatch: Any = parse_lines(body, rows.most_numbers)
        else:
            minibatch = rows.unpack(body, length, self.settings.max_inputs, most_rows, most_bytes)
        packed: Packed = rows.pack(minibatch, most_bytes)
        return packed

    def _verb(self, name: str) -> http.Endpoint:
        """Return the endpoint of a verb."""

        async def endpoint(request: Request) -> Response:
            if self._verbs_in_flight >= _MOST_VERBS:
                raise Refusal(503, f"{_MOST_VERBS} requests wait for the trainer already; ask again later")
            self._verbs_in_flight += 1
            try:
                return self._status_response(await run_in_thread(getattr(self._online, name)))
            finally:
                self._verbs_in_flight -= 1

        return endpoint

    async def _status(self, request: Request) -> Response:
        return self._status_response(await run_in_thread(self._online.status))

    async def _signature(self, request: Request) -> Response:
        return json_response(self._online.signature())

    def _status_response(self, status: dict[str, Any]) -> Response:
        """Return a status as a response, without the folders in its error."""
        error = status["error"]
        return json_response(status | {"error": error and http.without_folders(error, self.folders)})


def parse_lines(body: bytes, most: int | None) -> list[dict[str, Any]]:
    """Parse rows as JSON lines: in each line an object of fields by name.

    Args:
      body: the lines.
      most: numbers of a row at most, which are counted in a long line before it is parsed; None for any number.

    Raises:
      ProtocolError: a line is something else, or there is no line.
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
