"""Derives the state of one group from events: whether it is ready, and which rank died and why. Pure.

The time is passed in. A node that does not report is silent, which does not mean that its rank is dead.
"""

from __future__ import annotations

import collections
import dataclasses
import re

from sparkcluster import engines
from sparkcluster.engines.causes import LINK, RankEnd, address_of, cause, first_failure, no_carrier
from sparkcluster.engines.phase import Progress, joined
from sparkcluster.engines.signature import Cause, plain
from sparkcluster.errors import LaunchError, Reason, SparkclusterError
from sparkcluster.plan.model import Plan
from sparkcluster.runtime.watching import SILENCE_S, Available, Event, RankReport, WatchReport
from sparkcluster.topology.model import Topology

KEPT_LINES = 400
SHOWN_LINES = 15
# After the first death, its last log lines and those of ranks that die with it still arrive.
LAST_LINES_S = 1.5
# A carrier that returns within this time was a flap, which NCCL survives.
LINK_GRACE_S = 3


@dataclasses.dataclass
class RankState:
    """One rank and its node, from the events so far.

    Attributes:
        down: interfaces of the group without carrier, with the time of the loss.
        reported: its state in the last report.
        memory: available memory of its node, as last reported.
        heard_at: time of the node's last report, or of the start of watching.
        longest_silence_s: longest time between two reports of its node.
    """

    node: str
    name: str
    address: str
    progress: Progress
    heard_at: float
    longest_silence_s: float = 0.0
    reported: RankReport = dataclasses.field(default_factory=RankReport)
    died_at: float | None = None
    listening: bool = False
    memory: Available | None = None
    down: dict[str, float] = dataclasses.field(default_factory=dict)
    lines: collections.deque[str] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=KEPT_LINES))

    @property
    def tail(self) -> tuple[str, ...]:
        """Its last log lines."""
        return tuple(self.lines)[-SHOWN_LINES:]

    @property
    def end(self) -> RankEnd:
        """How it ended, as far as known."""
        last, down = self.reported, tuple(self.down)
        return RankEnd(self.node, self.address, list(self.lines), self.died_at, last.exit_code, last.oom_killed, down)

    def reason(self, why: Cause | None) -> Reason | None:
        """The line of ``why`` (found in the log or its ``tail``) with its number in the kept log."""
        if why is None or not why.line:
            return None
        number = max(at for at, line in enumerate(self.lines, 1) if plain([line])[0].strip() == why.line)
        return Reason(self.node, why.line, number)

    def feed(self, report: WatchReport, now: float) -> None:
        """Process a report of its node."""
        self.longest_silence_s = max(self.longest_silence_s, now - self.heard_at)
        self.heard_at = now
        if report.rank == self.name:
            self.lines.extend(report.lines)
            for line in report.lines:
                self.progress.feed(line)
        self.reported = (report.states or {}).get(self.name, self.reported)
        if self.reported.state in {"exited", "dead", "gone"} and self.died_at is None:
            self.died_at = now
        for interface, carrier in report.links.items():
            if carrier:
                self.down.pop(interface, None)
            else:
                self.down.setdefault(interface, now)
        self.listening = self.listening or bool(report.listening)
        self.memory = report.memory or self.memory


def warnings(event: Event) -> list[str]:
    """Warnings of the launcher that do not stop the launch."""
    found = [re.search(r"phase=bind (?:missing|open): *(.*)", line) for line in event.report.lines]
    return [f"warning: {event.node}: sockets may be open to all: {match[1].strip()}" for match in found if match]


class Readiness:
    """Collects the events of one group's launch, which started at the monotonic time ``now`` in seconds.

    Attributes:
        ranks: by node, head first; every node of a group has one rank.
    """

    def __init__(self, plan: Plan, topology: Topology, *, now: float) -> None:
        self.started = now
        self.engine = engines.engine(plan.engine)
        self.ranks = {
            name: RankState(name, plan.nodes[name].containers[0].name, member.address, Progress(self.engine), now)
            for name, member in topology.members.items()
        }
        self.head = self.ranks[topology.groups[0].head.name]

    def feed(self, event: Event, now: float) -> list[RankState]:
        """Process an event; returns the ranks that it is about.

        The head's log also has lines of Ray workers on other nodes, with their addresses.
        """
        found = [self.ranks[event.node]]
        found[0].feed(event.report, now)
        addresses = {rank.address: rank for rank in self.ranks.values()}
        for line in event.report.lines:
            other = addresses.get(address_of(line) or "")
            if other is not None and other not in found and other.progress.feed(line):
                found.append(other)
        return found

    @property
    def slowest(self) -> RankState:
        """The rank with the least progress, the first of several; without Ray workers, which the head drives."""
        found = [rank for rank in self.ranks.values() if not rank.progress.joined_ray]
        return min(found, key=lambda rank: rank.progress.place, default=self.head)

    @property
    def ready(self) -> bool:
        """Whether the API accepts connections or reports that it has started."""
        return self.head.listening or self.head.progress.ready

    @property
    def footprint(self) -> dict[str, float]:
        """Memory figures from the logs of the ranks."""
        return joined(rank.progress.footprint for rank in self.ranks.values())

    @property
    def taken(self) -> dict[str, float]:
        """Memory that the ranks took on their nodes since watching began, by keys of ``FOOTPRINT``."""
        seen = [rank.memory for rank in self.ranks.values() if rank.memory is not None]
        fell = [{"peak_gib": each.before - each.lowest, "used_gib": each.before - each.now} for each in seen]
        return joined({key: round(max(0, took) / 2**30, 2) for key, took in each.items()} for each in fell)

    def failure(self, now: float) -> LaunchError | None:
        """Why the launch failed, once that is certain and the last log lines have arrived."""
        ranks = self.ranks.values()
        died_at = min((rank.died_at for rank in ranks if rank.died_at is not None), default=None)
        if died_at is not None and now - died_at >= LAST_LINES_S:
            return self._death()
        silent = self.silent(now)
        for rank in ranks:
            for interface, since in rank.down.items():
                if now - since >= LINK_GRACE_S and rank.node not in silent:
                    why = no_carrier(interface, rank.node)
                    return _error(f"{rank.node} has {why.summary}", rank, why.hint)
        return None

    def silent(self, now: float) -> dict[str, float]:
        """Seconds without a report by node, for nodes silent for ``SILENCE_S`` or longer."""
        silence_s = {name: now - rank.heard_at for name, rank in self.ranks.items()}
        return {name: seconds for name, seconds in silence_s.items() if seconds >= SILENCE_S}

    @property
    def dying(self) -> bool:
        """Whether a rank has ended, even if its last log lines are still missing."""
        return any(rank.died_at is not None for rank in self.ranks.values())

    def _death(self) -> LaunchError:
        """The error of the rank that failed first by itself, not as a consequence; or of the link."""
        failure = first_failure(self.engine, [rank.end for rank in self.ranks.values()])
        rank, reporter, why = self.ranks[failure.node], self.ranks[failure.reporter], failure.cause
        if why is not None and why.code == LINK:
            return _error(f"{rank.node} has {why.summary}", rank, why.hint)
        if why is not None and rank is not reporter:
            text = f"the rank on {rank.node} failed, according to the log of {reporter.node}"
            return _error(text, rank, None, reporter=reporter, why=why)
        code = "" if rank.reported.exit_code is None else f" with exit code {rank.reported.exit_code}"
        error = f" ({rank.reported.error})" if rank.reported.error else ""
        hint = f"its log: sparkcluster logs INVENTORY {rank.node} --failed"
        return _error(f"the rank on {rank.node} failed{code}{error}", rank, hint, why=why)

    def unanswered(self, error: SparkclusterError) -> LaunchError:
        """The error for a missing or wrong answer, with the cause from the head's log."""
        why = cause(self.engine, self.head.tail, None)
        return _error(error.message, self.head, error.hint, why=why, step=error.step)

    def overdue(self, limit_s: float) -> LaunchError:
        """The error for a group that did not answer within ``limit_s``, with the progress of each node."""
        where = "; ".join(f"{name}: {rank.progress.text}" for name, rank in self.ranks.items())
        why = cause(self.engine, self.head.tail, None)
        hint = "a larger model may need a larger ready_timeout_s in its playbook"
        return _error(f"no answer within {limit_s:.0f} s ({where})", self.head, hint, why=why)


def _error(
    text: str,
    rank: RankState,
    hint: str | None,
    *,
    reporter: RankState | None = None,
    why: Cause | None = None,
    step: str | None = "start",
) -> LaunchError:
    """The failure of ``rank``, with the last log lines of ``reporter`` (default: its own) and the line of ``why``.

    ``hint`` is used if ``why`` has no hint.
    """
    reporter = reporter or rank
    text, hint = (text, hint) if why is None else (f"{text}: {why.summary}", why.hint or hint)
    reason = reporter.reason(why)
    return LaunchError(text, node=rank.node, step=step, hint=hint, log=reporter.tail, reason=reason)
