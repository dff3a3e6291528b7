"""Events on all nodes while a group starts, as one queue.

The watch program on each node reports, at least every two seconds, the state of its ranks, the carrier of its
interfaces and new lines of the engine's log. A node that can no longer be watched is an event as well.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from sparkcluster.answers import checked
from sparkcluster.errors import CommandFailed, CommandTimeout, HostError, HostSilent, HostTimeout
from sparkcluster.facts.base import Fact, Number, Time
from sparkcluster.facts.docker import Rank
from sparkcluster.hosts.base import SILENT_S, Closing, Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import document, stream
from sparkcluster.node.shared import LABEL_RANK_DIR, LABEL_RUNTIME
from sparkcluster.plan.model import ContainerPlan

INTERVAL_S = 2
# Three missed reports; on a Spark that loads a model, a report has taken over 2 s.
SILENCE_S = 7
# After a stall of sshd the same connection recovers; after a loss of the network a new one works sooner.
RENEW_S = 20
RETRY_S = 1.0
_QUEUED = 64


class RankReport(Fact):
    """The state of a rank in a report of the watch program."""

    state: str = "unknown"
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None


class Available(Fact):
    """MemAvailable of a node in bytes: at the start of watching, the lowest since, and now."""

    before: Number
    lowest: Number
    now: Number


class WatchReport(Fact):
    """A document of the watch program: log lines of a rank, or a heartbeat with the states of all ranks.

    Attributes:
        rank: the rank whose log has the ``lines``, oldest first; None in a heartbeat.
        at: position in the log after these lines.
        times: when each line was logged, by the node's clock in seconds since 1970; empty with runtime process.
        states: by rank; None with lines.
        links: whether an interface has a carrier, by interface.
        listening: whether the API accepts connections.
        memory: memory of the node; None with lines.
    """

    rank: str | None = None
    lines: tuple[str, ...] = ()
    at: str = ""
    times: tuple[Time, ...] = ()
    states: dict[str, RankReport] | None = None
    links: dict[str, bool] = Field(default_factory=dict)
    listening: bool | None = None
    memory: Available | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A report of a node, or ``over``: its program ended, or the node was given up for the reason in ``gone``."""

    node: str
    report: WatchReport = dataclasses.field(default_factory=WatchReport)
    gone: HostError | None = None
    over: bool = False


def watch_request(ranks: Iterable[Rank | ContainerPlan], *, tail: int, **more: Any) -> dict[str, Any]:
    """The request to the watch program for ``ranks``, starting with the last ``tail`` lines of their logs.

    ``more`` are further fields: ``follow``, whether to wait for new lines; ``since``, to skip lines before a time, by
    the node's clock in seconds since 1970.
    """
    asked = [
        {
            "name": rank.name,
            "runtime": rank.labels.get(LABEL_RUNTIME, "docker"),
            "rank_dir": rank.labels.get(LABEL_RANK_DIR, ""),
        }
        for rank in ranks
    ]
    return {"ranks": asked, "tail": tail, "follow": True, "interval_s": INTERVAL_S, **more}


class Watching(Closing):
    """Watches ranks on their nodes; ``requests`` are requests to the watch program, by node.

    A node is given up if it was silent for ``SILENT_S``, or if its connection broke. With ``reconnect`` it is
    reconnected within that time, and its logs continue where they stopped.
    """

    def __init__(self, fleet: Fleet, requests: Mapping[str, dict[str, Any]], *, reconnect: bool = False) -> None:
        # Bounded: a node that sends faster than its lines are read has to wait.
        self._events: queue.Queue[Event] = queue.Queue(_QUEUED)
        self._over = threading.Event()
        self._reconnect = reconnect
        for name, request in requests.items():
            arguments = (fleet[name], {**request, "from": {}})
            threading.Thread(target=self._follow, args=arguments, name=f"watch-{name}", daemon=True).start()

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None if there is none within ``timeout_s`` seconds."""
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def close(self) -> None:
        """End each watch program at its next report, without waiting for it."""
        self._over.set()

    def _follow(self, host: Host, request: dict[str, Any]) -> None:
        """Pass on the program's reports until this is closed or the node is given up."""
        node, step, heard = host.name, "start", time.monotonic()
        while not self._over.is_set():
            try:
                with stream(host, "watch", request) as running:
                    for line in running.lines(RENEW_S if self._reconnect else SILENT_S):
                        if self._over.is_set():
                            return
                        heard = time.monotonic()
                        report = checked(WatchReport, document(line) or {}, node=node, step=step)
                        self._events.put(Event(node, report))
                        if report.rank and report.at:
                            request["from"][report.rank] = report.at
                    result = running.finish()
                failure: HostError | None = None
                if request["follow"] or not result.ok:
                    failure = CommandFailed(f"watch on {node} ended: {result.reason}", node=node, step=step)
            except CommandTimeout:
                text = f"no report from {node} for {time.monotonic() - heard:.0f} s"
                failure = HostTimeout(text, node=node, step=step, hint=f"try: ssh {node} true")
            except HostError as error:
                failure = error
            recent = time.monotonic() - heard < SILENT_S
            if not (self._reconnect and recent and isinstance(failure, HostSilent)):
                self._events.put(Event(node, gone=failure, over=True))
                return
            host.renew()
            self._over.wait(RETRY_S)
