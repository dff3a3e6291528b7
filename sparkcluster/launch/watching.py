"""What happens on every node while a group comes up, as one queue of events.

On each node the watch program reports at least every two seconds the state of its ranks, the carrier of its interfaces
and the new lines of the engine's log. A node that is silent is an event as well.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from sparkcluster.answers import checked
from sparkcluster.errors import CommandTimeout, HostLost, SparkclusterError
from sparkcluster.facts.base import Fact, Many
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.running import LogLine
from sparkcluster.hosts.base import Closing, Host, Stream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import document, stream
from sparkcluster.node.shared import LABEL_RANK_DIR, LABEL_RUNTIME
from sparkcluster.plan.model import ContainerPlan

INTERVAL_S = 2
# Three missed reports; one was seen to take over 2 s on a Spark that loads a model.
SILENCE_S = 7
_QUEUED = 64


class RankReport(Fact):
    """A rank's state in a report of the watch program."""

    state: str = "unknown"
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None


class Report(Fact):
    """One document of the watch program: log lines of a rank, or a sign of life with all states."""

    rank: str | None = None
    lines: Many[LogLine] = ()
    states: dict[str, RankReport] | None = None
    links: dict[str, bool] = Field(default_factory=dict)
    listening: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """Log lines of a rank, oldest first."""

    node: str
    rank: str
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """One report: state and exit code of each rank, carrier of each interface."""

    node: str
    states: dict[str, RankReport]
    links: dict[str, bool]
    listening: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """The node can no longer be watched."""

    node: str
    error: SparkclusterError


Event = Lines | Tick | Gone


def watch_request(
    ranks: Iterable[Rank | ContainerPlan], *, tail: int, interval_s: float = INTERVAL_S
) -> dict[str, Any]:
    """The request of the watch program for ``ranks``, beginning with the last ``tail`` lines of their logs."""
    return {
        "ranks": [
            {
                "name": rank.name,
                "runtime": rank.labels.get(LABEL_RUNTIME, "docker"),
                "rank_dir": rank.labels.get(LABEL_RANK_DIR, ""),
            }
            for rank in ranks
        ],
        "tail": tail,
        "follow": True,
        "interval_s": interval_s,
    }


class Watching(Closing):
    """Watches ranks on their nodes; ``requests`` are those of the watch program, by node."""

    def __init__(self, fleet: Fleet, requests: Mapping[str, dict[str, Any]]) -> None:
        # Full where a node sends faster than its lines are read: it has to wait.
        self._events: queue.Queue[Event] = queue.Queue(_QUEUED)
        self._streams: list[Stream] = []
        self._over = False
        for name, request in requests.items():
            arguments = (fleet.hosts[name], request)
            threading.Thread(target=self._follow, args=arguments, name=f"watch-{name}", daemon=True).start()

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None when none came in ``timeout_s`` seconds."""
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the watch programs, without waiting for them."""
        self._over = True
        for running in list(self._streams):
            threading.Thread(target=running.close, daemon=True).start()

    def _follow(self, host: Host, request: dict[str, Any]) -> None:
        try:
            following = stream(host, "watch", request)
            self._streams.append(following)
            if self._over:  # ended while this was still connecting
                following.close()
                return
            for line in following.lines(SILENCE_S):
                for event in parse(host.name, line):
                    self._events.put(event)
            reason = following.finish().reason
            failure: SparkclusterError = HostLost(f"watch on {host.name} ended: {reason}", node=host.name, step="watch")
        except CommandTimeout:
            failure = CommandTimeout(
                f"no report from {host.name} for {SILENCE_S} s: its sshd or the whole node hangs",
                node=host.name,
                step="watch",
                hint=f"try: ssh {host.name} true; a node that answers ping but not ssh is often out of memory",
            )
        except SparkclusterError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - without an event the launch would wait until its limit
            failure = HostLost(
                f"watching {host.name} failed: {type(error).__name__}: {error}", node=host.name, step="watch"
            )
        if not self._over:
            self._events.put(Gone(host.name, failure))


def parse(node: str, line: bytes) -> list[Event]:
    """The events in one line of the watch program; none in a line that is not a JSON object."""
    report = checked(Report, document(line) or {}, node=node, step="watch")
    events: list[Event] = []
    if report.rank is not None:
        events.append(Lines(node, report.rank, report.lines))
    if report.states is not None:
        events.append(Tick(node, report.states, report.links, bool(report.listening)))
    return events
