"""Data shared by the checks of a running cluster: dead ranks, failed groups and causes. Pure."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparkcluster import engines
from sparkcluster.checks.check import AGAIN, UP, Context, Seen, check
from sparkcluster.engines.causes import Failure, RankEnd, address_of, first_failure, logged
from sparkcluster.engines.signature import Cause, plain
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.running import Counters, GpuSample, RankSeen, Reply, Running, Traffic
from sparkcluster.findings import here
from sparkcluster.node.shared import LABEL_GROUP, LABEL_NODE, LABEL_RANK, LABEL_RELEASE
from sparkcluster.topology.candidates import is_up
from sparkcluster.topology.recorded import restored

LOGS = here("sparkcluster logs INVENTORY")
LOGS_OF_NODE = here("sparkcluster logs INVENTORY {node}")

LINES = 400
"""Number of last log lines to search; a launch keeps as many."""

ENDED = frozenset({"exited", "dead", "gone", "created"})
SHOWN = 300

Ranks = list[tuple[str, RankSeen]]
"""Ranks with the names of their nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A rank that failed, and the cause from its log or exit.

    Attributes:
        node: node of the rank that failed, according to the log line.
        reporter: node whose log has the line.
        rank: the rank on ``reporter``.
    """

    node: str
    reporter: str
    rank: RankSeen
    cause: Cause


class RunningCluster:
    """A running cluster, for its checks.

    Attributes:
        ranks: all present ranks; ``groups`` has them by group.
        ended: by group, ranks that should run but do not, in the order in which they ended.
        failed: groups without a complete answer, including groups that are not recorded or have lost a rank.
        unlinked: by failed group, the node and interface of its first link without a carrier.
        firsts: by failed group, the rank that failed first and why.
        engine: of the recorded release; the inventory may have another one by now.
        causes: causes in the logs of these groups, without duplicates. Possible consequences and exceptions without a
            signature count only for the rank that failed first.
        explained: groups with a known cause.
    """

    def __init__(self, context: Context) -> None:
        self.facts, self.spec = context.facts, context.spec
        self.called = self.spec.inventory.called
        self.running: Running = context.running
        self.recorded: ReleaseFact | None = self.running.recorded
        playbook = self.recorded.record.get("playbook", {}) if self.recorded else {}
        self.engine = engines.engine(playbook["engine"]) if "engine" in playbook else context.engine
        self.replies = self.running.replies
        self.inspected = dict(self.running.seen())
        self.ranks: Ranks = list(self.running.ranks())
        self.groups = _by_group(self.ranks)
        ended = [(name, rank) for name, rank in self.ranks if rank.state in ENDED]
        self.ended = _by_group(sorted([*ended, *self._gone()], key=lambda ended: ended[1].finished_at or ""))
        self.failed = {group for group, reply in self.replies.items() if reply.problem is not None}
        self.failed |= self.groups.keys() - self.replies.keys()
        sick = {group: ranks for group, ranks in self.groups.items() if group in self.ended or group in self.failed}
        self.unlinked = {group: down for group, ranks in sick.items() if (down := self._unlinked(group, ranks))}
        self.firsts = {group: self._first(group, ranks) for group, ranks in sick.items()}
        self.causes = self._causes(sick)
        self.explained = {found.rank.group for found in self.causes}

    def _gone(self) -> Iterator[tuple[str, RankSeen]]:
        """Missing ranks of the recorded release, if other ranks of it are present."""
        number = str(self.recorded.number) if self.recorded else None
        if self.recorded is None or all(rank.labels.get(LABEL_RELEASE) != number for _, rank in self.ranks):
            return
        present = {rank.name for _, rank in self.ranks}
        for name, node, container in self.recorded.containers():
            listed = name in self.inspected and not isinstance(self.inspected[name].ranks, Unread)
            if listed and container["name"] not in present:
                labels = {LABEL_GROUP: str(node.get("group")), LABEL_NODE: name}
                yield name, RankSeen(name=container["name"], state="gone", labels=labels)

    def _unlinked(self, group: str, ranks: Ranks) -> tuple[str, str] | None:
        """Node and interface of a link of ``group`` that has lost its carrier since the start."""
        groups = self.recorded.record.get("groups", {}) if self.recorded else {}
        network = restored(groups.get(group, {}).get("network") or {})
        nodes = {name for name, _ in ranks} & self.facts.keys()
        links = (
            (member.name, link.interface)
            for member in (network.members if network is not None else ())
            for link in (member.links if member.name in nodes else ())
        )
        seen = ((name, self.facts[name].interface(interface)) for name, interface in links)
        return next(((name, each.name) for name, each in seen if each is not None and not is_up(each)), None)

    def _first(self, group: str, ranks: Ranks) -> Failure:
        """The first failure in a group."""
        order = [rank.name for _, rank in self.ended.get(group, ())]
        down_on, interface = self.unlinked.get(group, (None, ""))
        return first_failure(
            self.engine,
            [
                RankEnd(
                    name,
                    str(rank.launcher.get("address") or ""),
                    rank.lines[-LINES:],
                    float(order.index(rank.name)) if rank.name in order else None,
                    rank.exit_code if rank.name in order else None,
                    rank.oom_killed,
                    (interface,) if name == down_on else (),
                )
                for name, rank in sorted(ranks, key=lambda each: _number(each[1]))
            ],
        )

    def _causes(self, sick: Mapping[str, Ranks]) -> list[Found]:
        found: dict[tuple[str, str, str], Found] = {}
        for group, ranks in sick.items():
            first = self.firsts[group]
            for name, rank in ranks:
                exit_code = rank.exit_code if rank.state in ENDED else None
                why = logged(self.engine, rank.lines[-LINES:], exit_code, rank.oom_killed)
                is_first = first.reporter == name and first.cause == why
                if why is None or why.consequence or (why.order and not is_first):
                    continue
                blamed = first.node if is_first else name
                node = blamed if blamed != name else self.node_of_line(name, why.line)
                found.setdefault((why.code, node, group), Found(node, name, rank, why))
        return list(found.values())

    def causes_of(self, code: str) -> Iterator[Seen]:
        """Causes that the check ``code`` reports, as errors."""
        for found in self.causes:
            if found.cause.code == code:
                again = UP if found.rank.group in self.ended else AGAIN  # up restarts ended groups
                remedy = [found.cause.hint or LOGS_OF_NODE, again]
                seen = clipped(found.cause.line) or f"{found.rank.name}: OOMKilled"
                yield Seen(found.cause.summary, seen, remedy, severity="error", node=found.node)

    def unexplained_end(self, group: str) -> bool:
        """Whether neither a log nor a link explains the failure of ``group``."""
        return group not in self.explained and group not in self.unlinked

    @property
    def sick(self) -> bool:
        """Whether a rank is missing or a group gave no complete answer."""
        return bool(self.ended or self.failed) or any(reply.ttft_s is None for reply in self.replies.values())

    def node_at(self, address: str) -> str | None:
        """The node with IPv4 ``address``, by its facts or by the recorded plan."""
        recorded = self.recorded.containers() if self.recorded else ()
        by_facts = (name for name, facts in self.facts.items() if facts.interface_of(address))
        by_plan = (name for name, _, container in recorded if container["launcher"].get("address") == address)
        return next(by_facts, None) or next(by_plan, None)

    def node_of_line(self, node: str, line: str) -> str:
        """The node that ``line`` in the log of ``node`` is about: Ray's head repeats its workers' lines, by address."""
        address = address_of(line)
        return (self.node_at(address) if address else None) or node

    def lines(self, group: str) -> list[str]:
        """Log lines of all ranks of ``group``."""
        return [line for _, rank in self.groups.get(group, []) for line in plain(rank.lines)]

    def death(self, lines: Sequence[str]) -> str:
        """The last of ``lines`` that reports the engine's death, or an empty string."""
        pattern = self.engine.dead
        return next((line.strip() for line in reversed(lines) if pattern and re.search(pattern, line)), "")

    def last_match(self, pattern: str) -> dict[str, tuple[re.Match[str], str]]:
        """By node, the last log line that matches ``pattern``."""
        found: dict[str, tuple[re.Match[str], str]] = {}
        for name, rank in self.ranks:
            for line in plain(rank.lines):
                match = re.search(pattern, line)
                if match:
                    found[self.node_of_line(name, line)] = (match, line.strip())
        return found

    def counters(self, node: str) -> tuple[Counters, ...]:
        """Counters of the engine whose head ``node`` is."""
        return (read(self.inspected[node].counters or ()) or ()) if node in self.inspected else ()

    def gpus(self, node: str) -> tuple[GpuSample, ...]:
        """GPU samples of ``node``."""
        return (read(self.inspected[node].gpus or ()) or ()) if node in self.inspected else ()

    def traffic(self, node: str) -> tuple[Traffic, Traffic] | None:
        """First and last traffic counters of ``node``; None if they were not read twice."""
        value = (read(self.inspected[node].traffic or ()) or ()) if node in self.inspected else ()
        return (value[0], value[-1]) if len(value) > 1 else None

    def hangs(self, reply: Reply) -> str | None:
        """Figures of an engine that accepted a request but generates no tokens; None if it does, or is unknown.

        Its count of running requests may be 0: the engine updates it after each step, so it does not change either.
        """
        counters = self.counters(reply.head)
        if reply.problem != "timeout" or len(counters) < 2 or counters[-1].generated is None:
            return None
        first, last = counters[0], counters[-1]
        apart_s = last.at_s - first.at_s
        figures = f"{last.generated:.0f} tokens before and after {apart_s:.0f} s"
        # Some engines count tokens when a request ends; their other counters change before.
        if reply.stalled_s is not None and reply.stalled_s < apart_s:
            return None
        if last.generated != first.generated:
            # Tokens between the two readings may have been the last.
            if reply.stalled_s is None:
                return None
            figures = f"{last.generated:.0f} tokens and no further one for {reply.stalled_s:.0f} s"
        if last.running:
            figures += f", {last.running:.0f} running"
        return f"{figures}; a request of doctor had no {'end' if reply.ttft_s else 'token'} in {reply.limit_s:.0f} s"

    def ready(self, rank: RankSeen) -> bool:
        """Whether the log reports that the API has started."""
        text = self.engine.ready
        return text is not None and any(text in line for line in rank.lines)

    def unplaced(self, group: str) -> str | None:
        """The last log line of a group that waits for its placement group; None if it does not wait."""
        for _, rank in self.groups.get(group, []):
            for line in reversed(plain(rank.lines[-40:])):
                if re.search(r"Waiting for creating a placement group|Cannot provide a placement group", line):
                    return None if self.ready(rank) else clipped(line.strip())
        return None


@functools.lru_cache(maxsize=1)
def _diagnosis(context: Context) -> RunningCluster:
    """Cached for all checks of a run, since it searches every log for every known cause."""
    return RunningCluster(context)


running_check = functools.partial(check, stage="running", given=_diagnosis)


def _number(rank: RankSeen) -> int:
    label = rank.labels.get(LABEL_RANK, "")
    return int(label) if re.fullmatch("[0-9]{1,4}", label) else 0


def clipped(line: str) -> str:
    """``line``, shortened for a finding."""
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _by_group(ranks: Iterable[tuple[str, RankSeen]]) -> dict[str, Ranks]:
    found: dict[str, Ranks] = {}
    for name, rank in ranks:
        found.setdefault(rank.group, []).append((name, rank))
    return found
