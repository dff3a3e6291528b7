"""Current readings of all Sparks and models of an inventory, and those of the last ``POINTS`` ticks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.findings import REMEDY_LABELS, Finding
from sparkcluster.hints import CommandLine
from sparkcluster.hosts.base import Closing
from sparkcluster.hosts.fleet import Calls, Fleet, values
from sparkcluster.inspect import status
from sparkcluster.inspect.signals import vitals
from sparkcluster.inspect.state import STARTING, STATES
from sparkcluster.inspect.status import Document
from sparkcluster.inspect.vitals import Sampler, clock_s
from sparkcluster.spec import Spec
from sparkcluster.telemetry.check import Checker, CheckResult, Draw

EVERY_S = 5
"""Seconds between two readings of GPU and engine."""
KEPT, POINTS = 90, 180
"""``KEPT``: samples per node, one per second. ``POINTS``: points of the history."""
RETRY_S, SETTLE_S = 5.0, 3.0
"""``RETRY_S``: pause before a lost node is sampled again. ``SETTLE_S``: longest wait for the first samples."""
STARTING_S, SOON_S = 15.0, 10.0
"""``STARTING_S``: interval of checks while a model starts, whose engine is read only once its release is recorded.

``SOON_S``: shortest interval of checks, so that a node that comes and goes does not load the others.
"""
WORST = list(STATES)
"""States, the worst last."""
OF_GROUP = ("tokens_per_s", "prompt_tokens_per_s", "ttft_p95_s", "itl_p95_s", "kv_cache", "running", "waiting")
"""Signals of a group in the history, by the names of ``signals.load``."""


class Live(Closing):
    """Reads all Sparks and the models ``specs`` of an inventory until it is closed.

    Nodes are sampled every second, and every ``tick_s`` seconds there is a new document. A check asks nodes for facts
    and groups for a token: every ``check_s`` seconds, more often while a model starts, and as soon as a node or an
    engine starts or stops answering. It begins with a check, which may take half a minute if a node or an engine hangs.
    ``draw`` draws each model.

    Attributes:
        number: of the last tick.
        document: the document of ``status --follow`` (docs/json.md).
        history: ``at`` (seconds since 1970), and ``nodes`` and ``groups`` by name and signal; each is a list of at most
            ``POINTS`` values, None if unknown.
        sampler: the samples.
        views, replies, findings: results of the last check, by cluster.
    """

    def __init__(
        self, fleet: Fleet, specs: Sequence[Spec], *, tick_s: float = 5, check_s: float = 60, draw: Draw | None = None
    ) -> None:
        self._specs, self._tick_s, self._check_s = specs, tick_s, check_s
        self._checker = Checker(fleet, specs, draw)
        self._closed, self._ticked = threading.Event(), threading.Condition()
        self._points: deque[Document] = deque(maxlen=POINTS)
        self._defect: BaseException | None = None
        self.number = 0
        base, views = self._checker.see({})
        engines = status.engines_of(*views.values())
        self.sampler = Sampler(fleet, fleet.names, engines, every_s=EVERY_S, keep=KEPT, retry_s=RETRY_S)
        try:
            self._take(self._checker.check(base, views, self.sampler))
            status.wait_for_samples(self.sampler, 1, SETTLE_S)
            self._tick()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._run, daemon=True, name="live").start()

    def close(self) -> None:
        """Stop reading, without waiting for calls in progress."""
        self._closed.set()
        self.sampler.close()

    def wait(self, number: int, limit_s: float) -> int:
        """Wait for a tick after ``number``, at most ``limit_s``; returns the number of the last tick.

        Raises the error that ended the reading thread, if there is one.
        """
        with self._ticked:
            self._ticked.wait_for(lambda: self.number > number or self._defect, limit_s)
        if self._defect is not None:
            raise self._defect
        return self.number

    def _run(self) -> None:
        checking: Calls[CheckResult] | None = None
        began_s, before = clock_s(), self._answering
        try:
            while not self._closed.wait(self._tick_s):
                if checking is not None and not checking.pending():
                    # a failed check is retried, and its age grows meanwhile
                    self._take(values(checking.wait(0)).get("check", self._check))
                    checking = None
                self._tick()
                starting = any(model["state"] == STARTING for model in self.document["models"])
                late = clock_s() >= began_s + (STARTING_S if starting else self._check_s)
                soon = self._answering != before and clock_s() >= began_s + SOON_S
                if checking is None and (late or soon):
                    began_s, before = clock_s(), self._answering
                    checking = Calls(
                        lambda _: self._checker.check(*self._checker.see(dict(self.sampler.lost)), self.sampler),
                        {"check": None},
                    )
        except BaseException as error:  # noqa: BLE001 - raised again by wait()
            with self._ticked:
                self._defect = error
                self._ticked.notify_all()

    def _take(self, result: CheckResult) -> None:
        self._check, self.views, self.replies, self.findings = result, result.views, result.replies, result.findings
        answered = {name for view in result.views.values() for name in view.facts}
        engines = status.engines_of(*result.views.values())
        here = {key for each in engines.values() for key in each}
        silent = {
            name: {key: at for key, at in each.items() if key not in here}
            for name, each in self.sampler.engines.items()
            if name not in answered
        }
        self.sampler.engines = silent | engines

    def _tick(self) -> None:
        """Make the next document and history; neither is changed afterwards."""
        now_s, samples, lost = self.sampler.now_s(), dict(self.sampler.samples), dict(self.sampler.lost)
        self.sampler.check()
        seen = {name: None if name in lost else vitals(series, now_s) for name, series in samples.items()}
        models, loads = [], status.loads(self.sampler)
        for spec in self._specs:
            cluster = spec.inventory.cluster
            view = self.views[cluster]
            lost = view.collected.errors | lost
            model = {
                "name": spec.model or None,
                **status.document(view, self.replies[cluster], loads, {}),
                "findings": [_finding(each) for each in self.findings[cluster] if each.severity != "info"],
                "released_at": view.recorded.get("verified_at"),
                "drawing": self._check.drawings[cluster],
            }
            models.append(CommandLine(str(spec.inventory_path), (), spec.model).throughout(model))
        nodes = {
            name: {
                "state": "up" if seen[name] else "lost",
                "why": None if seen[name] else lost[name].message if name in lost else "it sends no samples",
                "age_s": round(now_s - series[-1].at_s, 1) if series else None,
                "vitals": seen[name],
            }
            for name, series in samples.items()
        }
        self._answering = {name for name, found in (*seen.items(), *loads.items()) if found}
        self._answering |= {f"{name} {type(error).__name__}" for name, error in self.sampler.lost.items()}
        self._points.append(
            {
                "at": clock_s(),
                "nodes": {name: _of_node(found) for name, found in seen.items()},
                "groups": {name: {key: (each or {}).get(key) for key in OF_GROUP} for name, each in loads.items()},
            }
        )
        ahead_s = time.time() - clock_s()  # by the current clock, which may have been set
        self.history = {
            "at": [round(point["at"] + ahead_s, 2) for point in self._points],
            "nodes": _columns([point["nodes"] for point in self._points]),
            "groups": _columns([point["groups"] for point in self._points]),
        }
        first = self._specs[0]
        self.document = {
            "at": time.time(),
            "inventory": first.inventory_path.stem if first.model else first.inventory.cluster,
            "state": max((model["state"] for model in models), key=WORST.index),
            "checked_s": round(clock_s() - self._check.at_s, 1),
            "models": models,
            "gateway": CommandLine(str(first.inventory_path)).throughout(self._check.gateway),
            "nodes": nodes,
        }
        with self._ticked:
            self.number += 1
            self._ticked.notify_all()


def _columns(points: Sequence[Mapping[str, Document]]) -> Document:
    """By name and signal, the value of each point."""
    names = {name: signals for point in points for name, signals in point.items()}
    return {
        name: {signal: [point.get(name, {}).get(signal) for point in points] for signal in signals}
        for name, signals in names.items()
    }


def _finding(found: Finding) -> Document:
    """A finding as JSON; its remedies include the step of ``setup`` that fixes it, and where to type them."""
    steps = [(label, text) for label, text in found.details() if label in REMEDY_LABELS]
    return {**found.as_json(), "remedy": [f"or {text}" if label == "or" else text for label, text in steps]}


def _of_node(found: Document | None) -> Document:
    """The part of a node's vitals that the history keeps."""
    known: Mapping[str, Any] = found or {"gpu": None, "rdma": {}, "pressure": {}}
    gpu = known["gpu"] or {}
    rates = [hca[name] for hca in known["rdma"].values() for name in ("sent_per_s", "received_per_s")]
    return {
        "available_bytes": known.get("available_bytes"),
        "gpu_utilization": gpu.get("utilization"),
        "gpu_power_w": gpu.get("power_w"),
        "temperature_c": gpu.get("temperature_c"),
        "rdma_per_s": sum(rate or 0 for rate in rates) if rates else None,
        "pressure_memory": known["pressure"].get("memory"),
    }
