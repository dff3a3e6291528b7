"""Logs of running ranks from all nodes, merged by time; and the kept logs of a failed launch."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import itemgetter

from sparkcluster.errors import NotServing, SparkclusterError, UsageError
from sparkcluster.hosts.fleet import Fleet, all_values
from sparkcluster.inspect.cluster import View, see
from sparkcluster.runtime import failed_logs
from sparkcluster.runtime.watching import INTERVAL_S, Event, Watching, watch_request
from sparkcluster.spec import Spec

# When following, how long nodes have to send their existing log lines; slower ones are not waited for.
FIRST_S = 2.0
# Longest delay of a line from another node: one batch of the watch program, and a round trip over LAN or WiFi.
HOLD_S = 0.3
_NEXT_S = 0.1
ENDED = ("exited", "dead", "gone")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log.

    Attributes:
        at_s: when it was logged, in seconds since 1970 by this machine's clock; None if its runtime keeps no times.
        own: whether it is a message of sparkcluster about the node, not a line of the log.
    """

    node: str
    text: str
    at_s: float | None = None
    own: bool = False


class Merge:
    """Merges the lines of several nodes by time; the current time is passed in.

    Lines of one node keep their order; a line without a time gets the time of the line before it.
    """

    def __init__(self) -> None:
        self.held: list[tuple[float, float, LogLine]] = []
        self._last: dict[str, float] = {}

    def add(self, lines: Sequence[LogLine], now: float, wall_s: float) -> None:
        """Add lines of one node; ``wall_s`` is the time of lines without one."""
        for line in lines:
            at = max(self._last.get(line.node, 0.0), wall_s if line.at_s is None else line.at_s)
            self._last[line.node] = at
            self.held.append((at, now, line))

    def take(self, before: float = math.inf) -> list[LogLine]:
        """Remove and return, in order, the lines that arrived before ``before`` (monotonic), and earlier ones."""
        until = max((at for at, arrived, _ in self.held if arrived <= before), default=-math.inf)
        found = sorted((each for each in self.held if each[0] <= until), key=itemgetter(0))
        self.held = [each for each in self.held if each[0] > until]
        return [line for *_, line in found]


def moment(text: str, now_s: float) -> float:
    """The time in ``text``, in seconds since 1970.

    As in ``docker logs --since``: an age relative to ``now_s`` (``90s``, ``10m``, ``1h30m``, ``2d``), or a date with or
    without a time (``2026-11-26T04:10:00Z``), by default in this machine's time zone.

    Raises:
        ValueError: it is neither.
    """
    if re.fullmatch(r"(?:\d{1,9}[smhd])+", text):
        ago_s = sum(int(number) * _UNITS_S[unit] for number, unit in re.findall(r"(\d{1,9})([smhd])", text))
        return max(0.0, now_s - ago_s)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"must be like 10m or 2026-11-26T04:10:00Z, not {text}") from None


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
    """Pass the log lines of every rank (or only on ``node``) to ``show`` by time; returns the exit code.

    Each log starts with its last ``tail`` lines. With ``go_on`` logs are followed until interrupted.

    Args:
        fleet: the nodes.
        spec: inventory and playbook.
        show: called with each line, and with messages about nodes.
        node: the only node to query.
        tail: number of lines of each log to read.
        go_on: whether to follow.
        since_s: skip earlier lines, in seconds since 1970.
        pattern: skip lines that do not match; matched without colours.

    Raises:
        NotServing: no rank runs there.
        UsageError: ``since_s`` with a runtime that keeps no times.
        HostError: no rank runs on the nodes that answered, and some did not.
    """
    if since_s is not None and spec.inventory.runtime.kind == "process":
        raise UsageError("--since: runtime process keeps no times of log lines", hint="-n N reads the last N lines")
    view = see(fleet, spec, [node] if node else None)
    ranks = {name: on_node for name, on_node in view.ranks.ours.items() if on_node}
    errors = view.collected.errors
    if not ranks:
        raise _nothing_runs(view, node)
    for name, error in errors.items():
        show(_own(name, error.message.removeprefix(f"{name}: ")))
    ahead_s = {name: view.facts[name].clock_offset_s or 0.0 for name in ranks}
    requests = {
        name: watch_request(
            on_node,
            tail=tail,
            follow=go_on and any(rank.state == "running" for rank in on_node),
            interval_s=INTERVAL_S if go_on else 0.5,
            since=None if since_s is None else since_s + ahead_s[name],
        )
        for name, on_node in ranks.items()
    }
    merge, watched, lost, ended = Merge(), {*requests}, {*errors}, set[str]()
    in_order_at = time.monotonic() + FIRST_S if go_on else math.inf
    try:
        with Watching(fleet, requests, reconnect=go_on) as watching:
            while watched:
                event, now = watching.next(_NEXT_S), time.monotonic()
                live = now >= in_order_at
                if event is not None:
                    merge.add(_lines(event, ahead_s[event.node], pattern), now, time.time() if live else 0.0)
                    if event.over or (go_on and _has_ended(event, ended)):
                        watched.discard(event.node)
                    if event.gone is not None:
                        lost.add(event.node)
                for line in merge.take(now - HOLD_S) if live else ():
                    show(line)
    finally:
        for line in merge.take():
            show(line)
    return 1 if lost else 0


def _nothing_runs(view: View, node: str | None) -> SparkclusterError:
    """Why there is no log on ``node`` or any node; ranks may run on a node that did not answer."""
    all_values(view.unread)
    where = f"found no rank of {view.spec.inventory.cluster} on {node or 'any node'}"
    hint = "sparkcluster up INVENTORY; or sparkcluster logs INVENTORY --failed   shows the last launch that failed"
    return NotServing(where, node=node, step="logs", hint=hint)


def last_failed(spec: Spec, node: str | None) -> tuple[failed_logs.FailedLaunch, str, list[str]]:
    """The last failed launch from this machine, and a node with the kept lines of its log; contacts no node.

    The node is ``node``, by default the node whose log says why, else the node that failed.

    Raises:
        NotServing: no launch failed, or no log of it is kept.
        UsageError: ``node`` was not part of it.
    """
    cluster = spec.inventory.cluster
    failed = failed_logs.read(failed_logs.directory(cluster))
    if failed is None or not failed.logs:
        raise NotServing(
            f"no log of a failed launch of {cluster} is kept on this machine",
            hint="sparkcluster doctor INVENTORY; or type this command on the machine that ran up",
        )
    if node is not None and node not in failed.logs:
        raise UsageError(f"{node} has no log of that launch", hint=f"its nodes: {', '.join(failed.logs)}")
    by_error = failed.reason.node if failed.reason else failed.node
    chosen = node or (by_error if by_error in failed.logs else next(iter(failed.logs)))
    return failed, str(chosen), failed_logs.lines_of(failed.logs[str(chosen)])


def _own(node: str, text: str) -> LogLine:
    return LogLine(node, f"[sparkcluster] {text}", own=True)


def _lines(event: Event, ahead_s: float, pattern: re.Pattern[str] | None) -> list[LogLine]:
    if event.gone is not None:
        return [_own(event.node, event.gone.message)]
    lines, times = event.report.lines, event.report.times
    return [
        LogLine(event.node, text, None if at is None else max(0, at - ahead_s))
        for text, at in zip(lines, times if len(times) == len(lines) else [None] * len(lines), strict=True)
        if pattern is None or pattern.search(text)
    ]


def _has_ended(event: Event, before: set[str]) -> bool:
    """Whether a node's ranks have ended, seen in two reports in a row, since last lines arrive between them."""
    states = event.report.states or {}
    ended = bool(states) and all(rank.state in ENDED for rank in states.values())
    again = ended and event.node in before
    before.update({event.node} if ended else ())
    return again
