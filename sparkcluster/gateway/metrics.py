"""Prometheus metrics of the gateway; the label ``model`` is a name of the inventory, or empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from sparkcluster.gateway.schedule import ModelState, States

# Seconds to the first byte: from a cached answer to a load that takes minutes.
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_PREFIX = "sparkcluster_gateway_"
_STATES: dict[str, tuple[str, Callable[[ModelState], float]]] = {
    "in_flight": ("Requests that an engine answers", lambda seen: len(seen.in_flight)),
    "waiting": ("Requests that wait for a model", lambda seen: len(seen.waiting)),
    "model_ready": ("Whether the model answers", lambda seen: seen.state == "ready"),
}


class Metrics:
    """Counters of requests, and the ``states`` of all models."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._registry = CollectorRegistry()
        self.requests = Counter(f"{_PREFIX}requests", "Requests answered", ["model", "code"], registry=self._registry)
        text, name = "From a request to the first byte of its answer", f"{_PREFIX}first_byte_seconds"
        self.first_byte = Histogram(name, text, ["model"], buckets=_BUCKETS, registry=self._registry)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The state of all models, for prometheus_client."""
        for name, (text, value) in _STATES.items():
            metric = GaugeMetricFamily(_PREFIX + name, text, labels=["model"])
            for model, seen in self._states.seen.items():
                metric.add_metric([model], value(seen))
            yield metric

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
