"""What happens on every node while a group comes up, as one queue of events.

On each node the watch program reports at least every two seconds the state of its ranks, the carrier of its interfaces
and the new lines of the engine's log. A node that cannot be watched any more is an event as well.
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
# Three missed reports; one was seen to take over 2 s on a Spark that loads a model.
SILENCE_S = 7
# A stalled sshd goes on with the same connection; one that lost its network does so later than a new one.
RENEW_S = 20
AGAIN_S = 1.0
_QUEUED = 64


class RankReport(Fact):
    """A rank's state in a report of the watch program."""

    state: str = "unknown"
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None


class Available(Fact):
    """MemAvailable of a node in bytes: as watching began, the lowest since then, and now."""

    before: Number
    lowest: Number
    now: Number


class Report(Fact):
    """One document of the watch program: log lines of a rank, or a sign of life with all states.

    Attributes:
        rank: whose log has the ``lines``, oldest first; None in a sign of life.
        at: where its log goes on after them.
        times: when each was logged, by the node's clock in seconds since 1970; empty with runtime process.
        states: by rank; None beside lines.
        links: whether there is a carrier, by interface.
        listening: whether the API takes connections.
        memory: of the node; None beside lines.
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
    """What a node reports, or that it is ``over``: it was read to the end, or is ``gone``, which says why."""

    node: str
    report: Report = dataclasses.field(default_factory=Report)
    gone: HostError | None = None
    over: bool = False


def watch_request(ranks: Iterable[Rank | ContainerPlan], *, tail: int, **more: Any) -> dict[str, Any]:
    """The request of the watch program for ``ranks``, beginning with the last ``tail`` lines of their logs.

    ``more`` are other fields of it: ``follow``, whether to go on after them; ``since``, to leave out those before a
    time, by the node's clock in seconds since 1970.
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
    """Watches ranks on their nodes; ``requests`` are those of the watch program, by node.

    A node is given up once it was silent for ``SILENT_S``, or its connection broke. With ``reconnect`` it is connected
    to again within that time, and its logs go on where they were.
    """

    def __init__(self, fleet: Fleet, requests: Mapping[str, dict[str, Any]], *, reconnect: bool = False) -> None:
        # Full where a node sends faster than its lines are read: it has to wait.
        self._events: queue.Queue[Event] = queue.Queue(_QUEUED)
        self._over = threading.Event()
        self._reconnect = reconnect
        for name, request in requests.items():
            arguments = (fleet[name], {**request, "from": {}})
            threading.Thread(target=self._follow, args=arguments, name=f"watch-{name}", daemon=True).start()

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None when none came in ``timeout_s`` seconds."""
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def close(self) -> None:
        """End each watch program with its next report, without waiting for it."""
        self._over.set()

    def _follow(self, host: Host, request: dict[str, Any]) -> None:
        """Pass on what the program says, until this is closed or the node is given up."""
        node, step, heard = host.name, "start", time.monotonic()
        while not self._over.is_set():
            try:
                with stream(host, "watch", request) as running:
                    for line in running.lines(RENEW_S if self._reconnect else SILENT_S):
                        if self._over.is_set():
                            return
                        heard = time.monotonic()
                        report = checked(Report, document(line) or {}, node=node, step=step)
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
            self._over.wait(AGAIN_S)
