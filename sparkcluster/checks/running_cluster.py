"""What the checks of a running cluster share: dead ranks, groups that fail, and the causes. Pure."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Unpack

from sparkcluster.checks.registry import Context, Declared, Seen, check
from sparkcluster.engines.signature import Cause, plain
from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.running import Counters, GpuSample, RankSeen, Reply, Running, Traffic
from sparkcluster.node.shared import LABEL_GROUP, LABEL_NODE, LABEL_RELEASE

UP = "sparkcluster up INVENTORY"
DOWN = "sparkcluster down INVENTORY"
LOGS = "sparkcluster logs INVENTORY"
AGAIN = f"{DOWN}, then {UP}"

LINES = 400
"""As many of a log's last lines as a launch keeps, too."""

ENDED = frozenset({"exited", "dead", "gone", "created"})
# SIGKILL, SIGSEGV and SIGABRT, as exit codes: only the kernel or a person ends a rank so.
KILLED = {137: "it was killed (SIGKILL)", 139: "it crashed (SIGSEGV)", 134: "it aborted (SIGABRT)"}
SHOWN = 300

_ELSEWHERE = re.compile(r"\bip=(\d+(?:\.\d+){3})")

Ranks = list[tuple[str, RankSeen]]
"""Ranks with the names of their nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A rank, its node, and the cause from its log or exit."""

    node: str
    rank: RankSeen
    cause: Cause


class RunningCluster:
    """A running cluster, as its checks see it.

    Attributes:
        ranks: every rank that is present; ``groups`` has them by group.
        ended: by group, every rank that should run and does not, in the order they ended.
        failed: groups that gave no whole answer.
        causes: root causes in the logs of groups that fail or have lost a rank: each once, with its node.
        explained: groups that have a cause.
    """

    def __init__(self, context: Context) -> None:
        self.facts, self.spec, self.engine = context.facts, context.spec, context.engine
        self.running: Running = context.running
        self.recorded: ReleaseFact | None = self.running.recorded
        self.replies = self.running.replies
        self.inspected = dict(self.running.seen())
        self.ranks: Ranks = list(self.running.ranks())
        self.groups = _by_group(self.ranks)
        ended = [(name, rank) for name, rank in self.ranks if rank.state in ENDED]
        self.ended = _by_group(sorted([*ended, *self._gone()], key=lambda ended: ended[1].finished_at or ""))
        self.failed = {group for group, reply in self.replies.items() if reply.problem is not None}
        self.causes = self._causes()
        self.explained = {found.rank.group for found in self.causes}

    def _gone(self) -> Iterator[tuple[str, RankSeen]]:
        """Ranks of the recorded release that are missing while others of it are present."""
        number = str(self.recorded.number) if self.recorded else None
        if self.recorded is None or all(rank.labels.get(LABEL_RELEASE) != number for _, rank in self.ranks):
            return
        present = {rank.name for _, rank in self.ranks}
        for name, node, container in self.recorded.containers():
            listed = name in self.inspected and not isinstance(self.inspected[name].ranks, Unread)
            if listed and container["name"] not in present:
                labels = {LABEL_GROUP: str(node.get("group")), LABEL_NODE: name}
                yield name, RankSeen(name=container["name"], state="gone", labels=labels)

    def _causes(self) -> list[Found]:
        found: dict[tuple[str, str, str], Found] = {}
        for group, ranks in self.groups.items():
            for name, rank in ranks if group in self.ended or group in self.failed else ():
                cause = self._cause(rank)
                if cause is not None and not cause.consequence:
                    node = self.node_of_line(name, cause.line)
                    found.setdefault((cause.code, node, group), Found(node, rank, cause))
        return list(found.values())

    def _cause(self, rank: RankSeen) -> Cause | None:
        if rank.oom_killed:
            return Cause("the kernel killed it because memory ran out", self.engine.memory_hint, "OOMKilled", "RUN-014")
        lines = plain(rank.lines[-LINES:])
        return next((cause for signature in self.engine.signatures if (cause := signature.match(lines))), None)

    def causes_of(self, code: str, hint: str = AGAIN) -> Iterator[Seen]:
        """Causes that the check ``code`` reports, as errors; ``hint`` for one without a remedy."""
        for found in self.causes:
            if found.cause.code == code:
                remedy = dict.fromkeys((found.cause.hint or hint, AGAIN))
                yield Seen(
                    found.cause.summary, clipped(found.cause.line), tuple(remedy), severity="error", node=found.node
                )

    @property
    def sick(self) -> bool:
        """Whether a rank is missing or a group gave no whole answer."""
        return bool(self.ended or self.failed) or any(reply.ttft_s is None for reply in self.replies.values())

    def node_at(self, address: str) -> str | None:
        """The node that has IPv4 ``address``, by its facts or by the recorded plan."""
        recorded = self.recorded.containers() if self.recorded else ()
        by_facts = (name for name, facts in self.facts.items() if facts.interface_of(address))
        by_plan = (name for name, _, container in recorded if container["launcher"].get("address") == address)
        return next(by_facts, None) or next(by_plan, None)

    def node_of_line(self, node: str, line: str) -> str:
        """The node that ``line`` in the log of ``node`` is about: Ray's head repeats its workers' lines, by address."""
        found = _ELSEWHERE.search(line)
        return (self.node_at(found[1]) if found else None) or node

    def lines(self, group: str) -> list[str]:
        """Log lines of all ranks of ``group``."""
        return [line for _, rank in self.groups.get(group, []) for line in plain(rank.lines)]

    def death(self, lines: Sequence[str]) -> str:
        """The last of ``lines`` that says that the engine died, or an empty string."""
        pattern = self.engine.dead
        return next((line.strip() for line in reversed(lines) if pattern and re.search(pattern, line)), "")

    def last_match(self, pattern: str) -> dict[str, tuple[re.Match[str], str]]:
        """By node, the last line of any rank's log that ``pattern`` is found in."""
        found: dict[str, tuple[re.Match[str], str]] = {}
        for name, rank in self.ranks:
            for line in plain(rank.lines):
                match = re.search(pattern, line)
                if match:
                    found[self.node_of_line(name, line)] = (match, line.strip())
        return found

    def counters(self, node: str) -> tuple[Counters, ...]:
        """Counters of the engine whose head ``node`` is."""
        value = self.inspected[node].counters if node in self.inspected else None
        return value if isinstance(value, tuple) else ()

    def gpus(self, node: str) -> tuple[GpuSample, ...]:
        """What the GPU of ``node`` did."""
        value = self.inspected[node].gpus if node in self.inspected else None
        return value if isinstance(value, tuple) else ()

    def traffic(self, node: str) -> tuple[Traffic, Traffic] | None:
        """What the ports of ``node`` had sent and its kernel swapped, first and last; None if not read twice."""
        value = self.inspected[node].traffic if node in self.inspected else None
        return (value[0], value[-1]) if isinstance(value, tuple) and len(value) > 1 else None

    def hangs(self, reply: Reply) -> str | None:
        """That the engine took a request and makes no token, in figures; None where it does or cannot be read.

        Its own count of running requests stands still as well, so it may be 0: the engine sets it after each step.
        """
        counters = self.counters(reply.head)
        if reply.problem != "timeout" or len(counters) < 2 or counters[-1].generated is None:
            return None
        first, last = counters[0], counters[-1]
        apart_s = last.at_s - first.at_s
        figures = f"{last.generated:.0f} tokens before and after {apart_s:.0f} s"
        if last.generated != first.generated:
            # Tokens that came between the two readings may have been the last.
            if reply.stalled_s is None or reply.stalled_s < apart_s:
                return None
            figures = f"{last.generated:.0f} tokens and no further one for {reply.stalled_s:.0f} s"
        if last.running:
            figures += f", {last.running:.0f} running"
        return f"{figures}; a request of doctor had no {'end' if reply.ttft_s else 'token'} in {reply.limit_s:.0f} s"

    def ready(self, rank: RankSeen) -> bool:
        """Whether the log says that the API has started."""
        text = self.engine.ready
        return text is not None and any(text in line for line in rank.lines)

    def unplaced(self, group: str) -> str | None:
        """The log line of a group that waits for its placement group, if that is its last."""
        for _, rank in self.groups.get(group, []):
            for line in reversed(plain(rank.lines[-40:])):
                if re.search(r"Waiting for creating a placement group|Cannot provide a placement group", line):
                    return None if self.ready(rank) else clipped(line.strip())
        return None


_of_running = functools.partial(check, stage="running")


def running_check(
    code: str, title: str, **declared: Unpack[Declared]
) -> Callable[[Callable[[RunningCluster], Iterable[Seen]]], None]:
    """Register a check of a running cluster; its function gets the diagnosis."""

    def register(body: Callable[[RunningCluster], Iterable[Seen]]) -> None:
        @_of_running(code, title, **declared)
        @functools.wraps(body)
        def of_context(context: Context) -> Iterable[Seen]:
            return body(RunningCluster(context))

    return register


def clipped(line: str) -> str:
    """``line`` as a finding shows it."""
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _by_group(ranks: Iterable[tuple[str, RankSeen]]) -> dict[str, Ranks]:
    found: dict[str, Ranks] = {}
    for name, rank in ranks:
        found.setdefault(rank.group, []).append((name, rank))
    return found
