"""Prometheus metrics: the newest sample of every node, and the last check; ``metrics.toml`` has names and units."""

from __future__ import annotations

import math
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sparkcluster.facts.base import read
from sparkcluster.facts.running import THROTTLES
from sparkcluster.inspect.signals import FRESH_S
from sparkcluster.inspect.state import STATES
from sparkcluster.node.shared import GUARD_EVENTS

if TYPE_CHECKING:
    from sparkcluster.inspect.vitals import EngineSample, Sample
    from sparkcluster.telemetry.live import Live

METRICS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text("utf-8"))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES, MOST_CHARACTERS = 512, 256
"""Limits, since nodes provide label values: series per metric and node or cluster, and characters per label."""

Value = tuple[str, Any, *tuple[str, ...]]
"""A series: its metric, its current value or None, and its labels."""


def text(live: Live) -> bytes:
    """``live`` in Prometheus' text format."""
    return generate_latest(Exposition(live))


class Exposition(Collector):
    """``live`` as a collector for prometheus_client; unknown values have no series."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._admitted: defaultdict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)

    def collect(self) -> Iterator[Metric]:
        """All metrics with their series, up to the limit."""
        families = {name: _family(name) for name in METRICS}
        for name, value, *labels in (*self._nodes(), *self._engines(), *self._clusters()):
            if value is not None and self._admits(name, labels):
                families[name].add_metric(labels, *value if isinstance(value, tuple) else [float(value)])
        yield from families.values()

    def _admits(self, name: str, labels: Sequence[str]) -> bool:
        """Whether the series exists already or is within the limit."""
        admitted = self._admitted[name, *labels[:1]]
        if len(admitted) < MOST_SERIES and all(len(each) <= MOST_CHARACTERS for each in labels):
            admitted.add(tuple(labels))
        return tuple(labels) in admitted

    def _recent(self, node: str) -> list[Sample]:
        """The fresh samples of ``node``, newest first."""
        oldest = self._live.sampler.now_s() - FRESH_S
        return [each for each in reversed(self._live.sampler.samples.get(node, ())) if each.at_s >= oldest]

    def _nodes(self) -> Iterator[Value]:
        for node, known in self._live.document["nodes"].items():
            yield "node_up", known["state"] == "up", node
            for sample in self._recent(node)[:1]:
                mask, memory = sample.throttle, sample.memory
                throttled = None if mask is None else {word: bool(mask & bit) for bit, word in THROTTLES.items()}
                used = memory.swap_total_bytes - memory.swap_free_bytes
                yield from _figures("node", {**sample.model_dump(), "throttled": throttled, "swap_used": used}, node)

    def _names(self) -> dict[str, str]:
        """The model's name by cluster: the entry of the inventory, else the name in requests."""
        views = self._live.views.items()
        return {cluster: view.spec.model or view.spec.playbook.model_name for cluster, view in views}

    def _engines(self) -> Iterator[Value]:
        names = self._names()
        wanted = [(node, key) for node, engines in self._live.sampler.engines.items() for key in engines]
        for node, key in wanted:
            cluster, _, group = key.partition("/")
            labels = cluster, names[cluster], group
            for reading in [each.engines[key] for each in self._recent(node) if key in each.engines][:1]:
                yield from _figures("engine", reading.model_dump(), *labels)
                for name, (bounds, total_s) in _histograms(reading):
                    if all(self._admits(f"{name}_bucket", [*labels, bound]) for bound, _ in bounds):
                        yield name, (bounds, total_s), *labels

    def _clusters(self) -> Iterator[Value]:
        names, views = self._names(), self._live.views
        for model in self._live.document["models"]:
            cluster = model["cluster"]
            served = names[cluster], model["model"] or "", model["image"] or ""
            for group in model["groups"]:
                asked = group["name"] in self._live.replies[cluster]
                yield "engine_up", group["ready"] if asked else None, cluster, names[cluster], group["name"]
                yield "release_info", group["release"] and 1, cluster, group["name"], *served, str(group["release"])
            yield from (("cluster_state", each == model["state"], cluster, each) for each in STATES)
            yield "release_timestamp_seconds", model["released_at"], cluster
            found = Counter((each["code"], each["severity"], each["node"] or "") for each in model["findings"])
            yield from (("finding", times, cluster, *what) for what, times in found.items())
            for node, facts in views[cluster].facts.items():
                guard = read(facts.enabled)
                events = guard.events if guard else {}
                yield from (("guard_events_total", events.get(each), cluster, node, each) for each in GUARD_EVENTS)
        yield "check_age_seconds", self._live.document["checked_s"]


def _family(name: str) -> Any:
    row = METRICS[name]
    kind: Any = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    kind = HistogramMetricFamily if "histogram" in row else kind
    return kind(f"sparkcluster_{name}", row["about"], labels=row["labels"])


def _histograms(reading: EngineSample) -> Iterator[tuple[str, tuple[list[tuple[str, float]], float]]]:
    """By metric, buckets and sum of each complete histogram; without a sum, 0 would be wrong."""
    for name, row in METRICS.items():
        if of := row.get("histogram"):
            buckets, total_s = sorted((getattr(reading, of) or {}).items()), reading.counts.get(f"{of}_sum")
            if total_s is not None and buckets and buckets[-1][0] == math.inf:
                yield name, ([(str(bound).replace("inf", "+Inf"), count) for bound, count in buckets], total_s)


def _figures(of: str, document: dict[str, Any], *labels: str) -> Iterator[Value]:
    """All figures of a node or an engine in ``document``."""
    for name, row in METRICS.items():
        if name.startswith(of) and "figure" in row:
            for value, found in _at(document, row["figure"].split(".")):
                yield name, value * row.get("unit", 1), *labels, *found, *row.get("fixed", ())


def _at(value: Any, path: Sequence[str]) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Every value at ``path``, with the names that ``*`` matched."""
    if value is not None and not path:
        yield value, ()
    elif value is not None:
        for name in value if path[0] == "*" else path[:1]:
            for found, names in _at(value.get(name), path[1:]):
                yield found, (name, *names) if path[0] == "*" else names
