"""Metrics: what Prometheus reads of a server."""

import abc
from collections.abc import Iterable
from typing import Any

from fluid import errors

# From half a millisecond to half a minute.
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Registry(abc.ABC):
    """The metrics of one server: those that count, and those that are read when somebody asks.

    Attributes:
      client: the library of Prometheus.
      registry: where counters and histograms belong.

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
        """All of them as Prometheus reads them, and the content type of that."""
        return self.client.generate_latest(self.registry), self.client.CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Any]:
        """Nothing, so that making the registry reads nothing."""
        return []

    @abc.abstractmethod
    def collect(self) -> Iterable[Any]:
        """What is read when somebody asks; the registry calls it."""


class Metrics(Registry):
    """Counters and histograms of one server, in a registry of their own.

    Args:
      gauges: called for each reading: model, version, number of waiting requests, number of compilations.
    """

    def __init__(self, gauges: Any):
        super().__init__()
        self._gauges = gauges
        self._requests = self.client.Counter(
            "fluid_requests",
            "Requests to infer, by status.",
            ["model", "version", "status"],
            registry=self.registry,
        )
        self._seconds = self.client.Histogram(
            "fluid_request_seconds", "Seconds from the head of a request to its answer.", ["model", "version"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._rows = self.client.Histogram(
            "fluid_batch_rows", "Rows of the batches that ran.", ["model", "version"],
            buckets=_ROWS, registry=self.registry,
        )  # fmt: skip
        self._known: dict[tuple[int | str, ...], Any] = {}

    def answered(self, model: str, version: str, status: int, seconds: float) -> None:
        """Count an answer. What no model is called is counted under an empty name, so that clients invent none."""
        self._labelled(self._requests, model, version, str(status)).inc()
        self._labelled(self._seconds, model, version).observe(seconds)

    def ran(self, model: str, version: str, rows: int) -> None:
        """Count a batch."""
        self._labelled(self._rows, model, version).observe(rows)

    def _labelled(self, metric: Any, *labels: str) -> Any:
        """A metric of a model; looking it up by its labels takes as long as counting does."""
        key: tuple[int | str, ...] = (id(metric), *labels)
        if key not in self._known:
            self._known[key] = metric.labels(*labels)
        return self._known[key]

    def collect(self) -> Iterable[Any]:
        """What is read when somebody asks; the registry calls it."""
        from prometheus_client.core import GaugeMetricFamily

        labels = ["model", "version"]
        waiting = GaugeMetricFamily("fluid_queue_requests", "Requests that wait for a model.", labels=labels)
        compiled = GaugeMetricFamily("fluid_compilations", "Shapes that were compiled.", labels=labels)
        for model, version, requests, compilations in self._gauges():
            waiting.add_metric([model, version], requests)
            compiled.add_metric([model, version], compilations)
        return [waiting, compiled]
