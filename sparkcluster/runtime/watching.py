"""What happens on every node while a group comes up, as one queue of events.

On each node the watch program reports at least every two seconds the state of its ranks, the carrier of its interfaces
and the new lines of the engine's log. Where a connection falls silent or breaks, it is made anew and the log goes on
where it was; a node that cannot be watched any more is an event as well.
"""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import Field

from sparkcluster.answers import checked
from sparkcluster.errors import AuthFailed, CommandFailed, CommandTimeout, HostTimeout, SparkclusterError
from sparkcluster.facts.base import Fact, Time
from sparkcluster.facts.docker import Rank
from sparkcluster.hosts.base import Closing, Host, Stream
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import document, stream
from sparkcluster.hosts.retry import Patience
from sparkcluster.node.shared import LABEL_RANK_DIR, LABEL_RUNTIME
from sparkcluster.plan.model import ContainerPlan

INTERVAL_S = 2
# Three missed reports; one was seen to take over 2 s on a Spark that loads a model.
SILENCE_S = 7
# A stalled sshd goes on with the same connection, and Linux gives up one that broke after as long (TCP_USER_TIMEOUT).
RENEW_S = 20
_QUEUED = 64
# A login that fails is mostly the operator's agent, locked or gone, and no sign that the rank ended.
LOGIN_S = 30.0


class RankReport(Fact):
    """A rank's state in a report of the watch program."""

    state: str = "unknown"
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None


class Report(Fact):
    """One document of the watch program: log lines of a rank, or a sign of life with all states."""

    rank: str | None = None
    lines: tuple[str, ...] = ()
    at: str = ""
    times: tuple[Time, ...] = ()
    states: dict[str, RankReport] | None = None
    links: dict[str, bool] = Field(default_factory=dict)
    listening: bool | None = None
    peers: dict[str, float | None] = Field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Lines:
    """Log lines of a rank, oldest first; ``at`` is where its log goes on after them.

    ``times``: when each was logged, by the node's clock in seconds since 1970; empty where not requested or not known.
    """

    node: str
    rank: str
    lines: tuple[str, ...]
    at: str = ""
    times: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """One report: state and exit code of each rank, carrier of each interface.

    ``peers`` has for other nodes the seconds since this one last reached them, None where it never has.
    """

    node: str
    states: dict[str, RankReport]
    links: dict[str, bool]
    listening: bool
    peers: Mapping[str, float | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """The node can no longer be watched."""

    node: str
    error: SparkclusterError


@dataclasses.dataclass(frozen=True, slots=True)
class LoginFailed:
    """The node accepts none of our keys any more; tried again every ``LOGIN_S``."""

    node: str
    error: AuthFailed


Event = Lines | Tick | Gone | LoginFailed


def watch_request(
    ranks: Iterable[Rank | ContainerPlan],
    *,
    tail: int,
    interval_s: float = INTERVAL_S,
    times: bool = False,
    since_s: float | None = None,
) -> dict[str, Any]:
    """The request of the watch program for ``ranks``, beginning with the last ``tail`` lines of their logs.

    ``times``: whether to send when lines were logged; ``since_s``: leave out those before it, by the node's clock.
    """
    request: dict[str, Any] = {
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
        "times": times,
    }
    return request if since_s is None else {**request, "since": since_s}


class Watching(Closing):
    """Watches ranks on their nodes; ``requests`` are those of the watch program, by node.

    A node that is silent is tried again for ``limit_s``; with 0 its silence is an event.
    """

    def __init__(self, fleet: Fleet, requests: Mapping[str, dict[str, Any]], *, limit_s: float = math.inf) -> None:
        # Full where a node sends faster than its lines are read: it has to wait.
        self._events: queue.Queue[Event] = queue.Queue(_QUEUED)
        self._over = threading.Event()
        self._followers = [
            _Follower(fleet.hosts[name], request, self._events.put, self._over, limit_s)
            for name, request in requests.items()
        ]
        for follower in self._followers:
            threading.Thread(target=follower.run, name=f"watch-{follower.host.name}", daemon=True).start()

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or None when none came in ``timeout_s`` seconds."""
        try:
            return self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the watch programs, without waiting for them."""
        self._over.set()
        for follower in self._followers:
            follower.end()


class _Follower:
    """The watch program on one node, started anew where its connection broke or fell silent."""

    def __init__(
        self,
        host: Host,
        request: dict[str, Any],
        put: Callable[[Event], None],
        over: threading.Event,
        limit_s: float,
    ) -> None:
        self.host = host
        self._request = request
        self._ranks = {rank["name"] for rank in request.get("ranks", ())}
        self._put = put
        self._over = over
        self._limit_s = limit_s
        self._heard = time.monotonic()
        self._patience = Patience(self._heard, limit_s=limit_s)
        self._following: Stream | None = None
        self._silent = self._ended = False

    def run(self) -> None:
        """Follow until it is over, or the node cannot be watched any more."""
        try:
            failure = self._until_gone()
        except Exception as error:  # noqa: BLE001 - without an event the launch would wait until its limit
            text = f"watching {self.host.name} failed: {type(error).__name__}: {error}"
            failure = CommandFailed(text, node=self.host.name, step="start")
        if not self._over.is_set():
            self._put(Gone(self.host.name, failure))

    def end(self) -> None:
        """End the program, without waiting for it."""
        following, self._following = self._following, None
        if following is not None:
            threading.Thread(target=following.close, daemon=True).start()

    def _until_gone(self) -> SparkclusterError:
        may_end, login_failed = self._limit_s > 0, False
        while True:
            self._silent = self._ended = False
            try:
                self._read()
                return CommandFailed(f"watch on {self.host.name} was stopped", node=self.host.name, step="start")
            except CommandTimeout as error:  # it could not be started
                failure: SparkclusterError = HostTimeout(error.message, node=self.host.name, step="start")
            except SparkclusterError as error:
                failure = error
            # killed on a node without memory, it is started once more
            ended_once = may_end and self._ended
            may_end = may_end and not ended_once
            if isinstance(failure, AuthFailed) and self._limit_s:
                if not login_failed:
                    self._put(LoginFailed(self.host.name, failure))
                login_failed, pause_s = True, LOGIN_S
            elif ended_once or self._patience.continues(failure, time.monotonic()):
                login_failed, pause_s = False, self._patience.pause_s()
            else:
                return failure
            self.end()
            self.host.renew(before=self._heard if self._silent else -math.inf)
            if self._over.wait(pause_s):
                return failure

    def _read(self) -> None:
        """Pass on what one run of the program says, until it is over."""
        self._heard = time.monotonic()
        following = self._following = stream(self.host, "watch", self._request)
        if self._over.is_set():  # while this was still connecting
            following.close()
            return
        try:
            for line in following.lines(RENEW_S if self._limit_s else SILENCE_S):
                self._heard = time.monotonic()
                self._patience.restart(self._heard)
                for event in parse(self.host.name, line):
                    self._take(event)
        except CommandTimeout:
            self._silent = True
            raise self._silence() from None
        reason = following.finish().reason
        self._ended = True
        raise CommandFailed(f"watch on {self.host.name} ended: {reason}", node=self.host.name, step="start")

    def _take(self, event: Event) -> None:
        self._put(event)
        if isinstance(event, Lines) and event.at and event.rank in self._ranks:
            self._request = {**self._request, "from": {**self._request.get("from", {}), event.rank: event.at}}

    def _silence(self) -> HostTimeout:
        name = self.host.name
        return HostTimeout(
            f"no report from {name} for {time.monotonic() - self._heard:.0f} s: its sshd or the whole node hangs",
            node=name,
            step="start",
            hint=f"try: ssh {name} true; a node that answers ping but not ssh is often out of memory",
        )


def parse(node: str, line: bytes) -> list[Event]:
    """The events in one line of the watch program; none in a line that is not a JSON object."""
    report = checked(Report, document(line) or {}, node=node, step="start")
    events: list[Event] = []
    if report.rank is not None:
        times = report.times if len(report.times) == len(report.lines) else ()
        events.append(Lines(node, report.rank, report.lines, report.at, times))
    if report.states is not None:
        events.append(Tick(node, report.states, report.links, bool(report.listening), report.peers))
    return events
