"""Metrics: what Prometheus reads of an OnlineTrainer."""

from collections.abc import Callable, Iterable
from typing import Any

from fluid.serving.metrics import Registry

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


class Metrics(Registry):
    """The status of an OnlineTrainer in a registry of its own, and its requests.

    Args:
      status: gives it, see `OnlineTrainer.status`.

    Raises:
      ArgumentError: prometheus_client is not installed.
    """

    def __init__(self, status: Callable[[], dict[str, Any]]):
        super().__init__()
        self._status = status
        self._requests = self.client.Counter(
            "fluid_online_requests", "Requests, by what was asked and by status.", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip

    def answered(self, path: str, status: int) -> None:
        """Count an answer. What is no path here is counted under an empty one, so that clients invent none."""
        self._requests.labels(path, str(status)).inc()

    def collect(self) -> Iterable[Any]:
        """What is read when somebody asks; the registry calls it."""
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
        for key, metric, what in (
            ("last", "fluid_online_output", "Scalars of the program in the last step."),
            ("test", "fluid_online_test", "Their means over the newest rows that were tested on."),
        ):
            family = GaugeMetricFamily(metric, what, labels=["output"])
            for name, value in status[key].items():
                family.add_metric([name], float(value))
            yield family
