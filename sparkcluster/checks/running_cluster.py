"""What the checks of a running cluster share: dead ranks, groups that fail, and the causes. Pure."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
"""As many of a log's last lines as a launch keeps, too."""

ENDED = frozenset({"exited", "dead", "gone", "created"})
SHOWN = 300

Ranks = list[tuple[str, RankSeen]]
"""Ranks with the names of their nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A rank that failed, and the cause from its log or exit.

    Attributes:
        node: of the rank that failed, by what the line says.
        reporter: the node in whose log that is.
        rank: that of ``reporter``.
    """

    node: str
    reporter: str
    rank: RankSeen
    cause: Cause


class RunningCluster:
    """A running cluster, as its checks see it.

    Attributes:
        ranks: every rank that is present; ``groups`` has them by group.
        ended: by group, every rank that should run and does not, in the order they ended.
        failed: groups that gave no whole answer, or were not asked: no release has recorded them, or a rank is gone.
        unlinked: by group that fails or has lost a rank, its first link without a carrier, and the node.
        firsts: the rank that failed first of each such group, and why.
        causes: causes in the logs of these groups: each once, with its node. What may follow from another rank or a
            link, and exceptions without a signature, count only of the rank that failed first.
        explained: groups that have a cause.
    """

    def __init__(self, context: Context) -> None:
        self.facts, self.spec, self.engine = context.facts, context.spec, context.engine
        self.called = self.spec.inventory.called
        self.running: Running = context.running
        self.recorded: ReleaseFact | None = self.running.recorded
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

    def _unlinked(self, group: str, ranks: Ranks) -> tuple[str, str] | None:
        """Node and interface of a link that ``group`` was started on and that has no carrier now."""
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
        """The rank of a group that failed first."""
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
                again = UP if found.rank.group in self.ended else AGAIN  # up starts again what has ended
                remedy = [found.cause.hint or LOGS_OF_NODE, again]
                seen = clipped(found.cause.line) or f"{found.rank.name}: OOMKilled"
                yield Seen(found.cause.summary, seen, remedy, severity="error", node=found.node)

    def unexplained_end(self, group: str) -> bool:
        """Whether no log and no link says why ``group`` fails."""
        return group not in self.explained and group not in self.unlinked

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
        address = address_of(line)
        return (self.node_at(address) if address else None) or node

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
        return (read(self.inspected[node].counters or ()) or ()) if node in self.inspected else ()

    def gpus(self, node: str) -> tuple[GpuSample, ...]:
        """What the GPU of ``node`` did."""
        return (read(self.inspected[node].gpus or ()) or ()) if node in self.inspected else ()

    def traffic(self, node: str) -> tuple[Traffic, Traffic] | None:
        """What the ports of ``node`` had sent and its kernel swapped, first and last; None if not read twice."""
        value = (read(self.inspected[node].traffic or ()) or ()) if node in self.inspected else ()
        return (value[0], value[-1]) if len(value) > 1 else None

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


@functools.lru_cache(maxsize=1)
def _diagnosis(context: Context) -> RunningCluster:
    """One for all checks of a run, since every known cause is searched for in every log."""
    return RunningCluster(context)


running_check = functools.partial(check, stage="running", given=_diagnosis)


def _number(rank: RankSeen) -> int:
    label = rank.labels.get(LABEL_RANK, "")
    return int(label) if re.fullmatch("[0-9]{1,4}", label) else 0


def clipped(line: str) -> str:
    """``line`` as a finding shows it."""
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _by_group(ranks: Iterable[tuple[str, RankSeen]]) -> dict[str, Ranks]:
    found: dict[str, Ranks] = {}
    for name, rank in ranks:
        found.setdefault(rank.group, []).append((name, rank))
    return found
