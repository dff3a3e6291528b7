"""Logs of running ranks from all nodes as one, in the order of time; and those that were kept of a failed launch."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter

from sparkcluster.errors import NotServing, UsageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import see
from sparkcluster.runtime import failed_logs, observed
from sparkcluster.runtime.watching import Event, Report, Watching, watch_request
from sparkcluster.spec import Spec

# Signs of life after which a node has sent the lines that it already had.
BACKLOG_TICKS = 2
# Limit for that, in seconds: nodes send 20,000 lines in one.
BACKLOG_S, BACKLOG_S_PER_LINE = 30, 1e-3
# While a log is followed, nobody waits longer for what a slow node had.
FIRST_S = 3.0
# A line of another node is on its way for less: a batch of the watch program and the round trip of a LAN or WiFi.
HOLD_S = 0.3
# Lines that are held at most, some hundreds of bytes each.
MOST = 200_000
# How long to wait for the next event while lines are held, and while none is.
_NEXT_S, _IDLE_S = 0.1, 0.5
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log.

    Attributes:
        at_s: when it was logged, in seconds since 1970 by this machine's clock; None where its runtime keeps no times.
        own: whether it is a message of this program about the node, not a line of the log.
    """

    node: str
    text: str
    at_s: float | None = None
    own: bool = False


class Merge:
    """Orders the lines of ``nodes`` by time; time is passed in.

    Until no node is ``behind`` with the lines that it had, all are held; later each for ``HOLD_S`` at most. Lines of
    one node keep their order; those without a time have that of the line before.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.behind = set(nodes)
        self.held: list[tuple[float, float, LogLine]] = []
        self._last: dict[str, float] = {}

    def add(self, lines: Sequence[LogLine], now: float, wall_s: float) -> None:
        """Take in lines of one node; ``wall_s`` is the time of lines without one once the node is up to date."""
        for line in lines:
            at = line.at_s
            if at is None:
                at = 0.0 if line.node in self.behind else wall_s
            at = self._last[line.node] = max(self._last.get(line.node, 0.0), at)
            self.held.append((at, now, line))

    def due(self, now: float) -> list[LogLine]:
        """The lines to show at the monotonic time ``now``, in order."""
        if len(self.held) > MOST:
            return self.take()
        waited = [] if self.behind else [at for at, arrived, _ in self.held if arrived <= now - HOLD_S]
        return self.take(max(waited, default=-math.inf))

    def take(self, until: float = math.inf) -> list[LogLine]:
        """The lines up to the time ``until``, in order; they are no longer held."""
        found = sorted((each for each in self.held if each[0] <= until), key=itemgetter(0))
        self.held = [each for each in self.held if each[0] > until]
        return [line for *_, line in found]


def moment(text: str, now_s: float) -> float:
    """The time that ``text`` names, in seconds since 1970.

    It is what ``docker logs --since`` takes: how long before ``now_s`` (``90s``, ``10m``, ``1h30m``, ``2d``), or a
    date with or without a time (``2026-11-26T04:10:00Z``), in the time zone of this machine where it names none.

    Raises:
        ValueError: it is neither, or lies in the future.
    """
    if re.fullmatch(r"(?:\d{1,9}[smhd])+", text):
        ago_s = sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d{1,9})([smhd])", text))
        return max(0.0, now_s - ago_s)
    try:
        at_s = datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"must be as 10m or 2026-11-26T04:10:00Z, is {text}") from None
    if at_s > now_s:
        raise ValueError(f"{text} is in the future")
    return max(0.0, at_s)


def follow(
    fleet: Fleet,
    spec: Spec,
    show: Callable[[LogLine], None],
    *,
    node: str | None,
    tail: int,
    go_on: bool,
    since_s: float | None = None,
    pattern: re.Pattern[str] | None = None,
) -> int:
    """Pass the log lines of every rank (on ``node`` alone, if given) to ``show`` by time; returns the exit code.

    Each log begins with its last ``tail`` lines. With ``go_on`` they are followed until interrupted.

    Args:
        fleet: the nodes.
        spec: the inventory, and the playbook.
        show: called with each line, and with messages about nodes.
        node: the only node to ask.
        tail: how many lines of each log to read.
        go_on: whether to follow.
        since_s: leave out lines before it, in seconds since 1970.
        pattern: leave out lines in which it is not found; colours are no part of them.

    Raises:
        NotServing: no rank runs there.
        UsageError: ``since_s`` with a runtime that keeps no times.
        HostError: no rank runs on the nodes that answered, and some did not.
    """
    if since_s is not None and spec.inventory.runtime.kind == "process":
        raise UsageError(
            "--since: with runtime process the times of log lines are not kept", hint="-n N reads the last N lines"
        )
    view = see(fleet, spec, [node] if node else None)
    ranks = {name: on_node for name, on_node in view.ranks.ours.items() if on_node}
    errors = view.collected.errors
    if not ranks:
        for error in errors.values():  # ranks may run on a node that did not answer
            raise error
        failed = failed_logs.read(failed_logs.directory(spec.inventory.cluster))
        kept = "sparkcluster logs INVENTORY --failed   shows those of the last launch that failed"
        raise NotServing(
            f"no rank of {spec.inventory.cluster} on {node or 'any node'}",
            node=node,
            step="logs",
            hint=kept if failed else "sparkcluster up INVENTORY",
        )
    for name, error in errors.items():
        show(_own(name, error.message.removeprefix(f"{name}: ")))
    ahead_s = {name: view.facts[name].clock_offset_s or 0.0 for name in ranks}
    requests = {
        name: watch_request(
            on_node,
            tail=tail,
            interval_s=2 if go_on else 1,
            times=True,
            since=None if since_s is None else since_s + ahead_s[name],
        )
        for name, on_node in ranks.items()
    }
    merge = Merge(requests)
    limit_s = math.inf if go_on else BACKLOG_S + tail * BACKLOG_S_PER_LINE
    try:
        with Watching(fleet, requests, reconnect=go_on) as watching:
            unended, lost = _watch(watching, merge, ahead_s, pattern, show, limit_s=limit_s)
    finally:
        for line in merge.take():
            show(line)
    for name in unended:
        show(_own(name, "this log did not end; add -f to follow it"))
    return 1 if errors or unended or lost else 0


def _watch(
    watching: Watching,
    merge: Merge,
    ahead_s: Mapping[str, float],
    pattern: re.Pattern[str] | None,
    show: Callable[[LogLine], None],
    *,
    limit_s: float,
) -> tuple[list[str], list[str]]:
    """Show what ``watching`` brings for ``limit_s``, which may be infinite.

    Returns:
        The nodes whose log did not end, and those that cannot be watched any more.
    """
    lost: list[str] = []
    waiting = dict.fromkeys(ahead_s, BACKLOG_TICKS)
    following, began = limit_s == math.inf, time.monotonic()
    now = began
    while waiting and now - began < limit_s:
        event = watching.next(_NEXT_S if merge.held else _IDLE_S)
        found: list[LogLine] = []
        if event is not None and event.gone is not None:
            found = [_own(event.node, event.gone.message)]
            waiting.pop(event.node, None)
            lost.append(event.node)
        elif event is not None:
            found = _lines(event, ahead_s[event.node], pattern)
            if event.report.states is not None and not (following and _runs(event.report)):
                waiting[event.node] = waiting.get(event.node, 1) - 1
        waiting = {name: ticks for name, ticks in waiting.items() if ticks}
        now = time.monotonic()
        merge.behind &= waiting.keys() if now - began <= FIRST_S or not following else set()
        merge.add(found, now, time.time())
        for line in merge.due(now):
            show(line)
    return list(waiting), lost


def last_failed(spec: Spec, node: str | None) -> tuple[failed_logs.FailedLaunch, str, list[str]]:
    """The last launch of the cluster that failed from this machine; a node, and the lines of its log that were kept.

    It is ``node``, by default the one whose log says why, else the one that failed. No node is contacted.

    Raises:
        NotServing: no launch failed, or nothing was kept of it.
        UsageError: ``node`` was not part of it.
    """
    cluster = spec.inventory.cluster
    failed = failed_logs.read(failed_logs.directory(cluster))
    if failed is None or not failed.logs:
        raise NotServing(
            f"no log of a failed launch of {cluster} is kept on this machine",
            step="logs",
            hint="sparkcluster doctor INVENTORY",
        )
    if node is not None and node not in failed.logs:
        raise UsageError(f"{node} has no log of that launch", hint=f"its nodes: {', '.join(failed.logs)}")
    by_error = failed.reason.node if failed.reason else failed.node
    chosen = node or (by_error if by_error in failed.logs else next(iter(failed.logs)))
    return failed, str(chosen), failed_logs.lines_of(failed.logs[str(chosen)])


def succeeded_since(cluster: str, at_s: float) -> str | None:
    """The last command that verified a release from this machine after ``at_s``, in seconds since 1970; else None."""
    since = datetime.fromtimestamp(at_s, UTC).strftime(observed.TIME)
    later = [each for each in observed.read(cluster) if each["what"] == "up" and str(each.get("time")) > since]
    return str(later[-1].get("operation", "up")) if later else None


def _own(node: str, text: str) -> LogLine:
    return LogLine(node, f"[sparkcluster] {text}", own=True)


def _lines(event: Event, ahead_s: float, pattern: re.Pattern[str] | None) -> list[LogLine]:
    lines, times = event.report.lines, event.report.times
    return [
        LogLine(event.node, text, None if at is None else max(0, at - ahead_s))
        for text, at in zip(lines, times if len(times) == len(lines) else [None] * len(lines), strict=True)
        if pattern is None or pattern.search(text)
    ]


def _runs(report: Report) -> bool:
    return any(state.state == "running" for state in (report.states or {}).values())
