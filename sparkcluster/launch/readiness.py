"""From events to a verdict on one group: whether it is ready, which rank is dead and why. Pure; time is passed in."""

from __future__ import annotations

import collections
import dataclasses

from sparkcluster import engines
from sparkcluster.engines.phase import Progress
from sparkcluster.errors import LaunchError
from sparkcluster.launch.causes import cause, failed_rank
from sparkcluster.launch.watching import Event, Gone, Lines, Tick
from sparkcluster.plan.model import Plan
from sparkcluster.topology.model import Topology

KEPT_LINES = 400
SHOWN_LINES = 15
# After the first death its last log lines, and those of the ranks that die with it, are still on their way.
LAST_LINES_S = 1.5
# A carrier that returns within this time was a flap, which NCCL survives.
LINK_GRACE_S = 3
# A Docker engine that is restarted is back within a few seconds, and its containers may have lived on.
UNREADABLE_GRACE_S = 15
# SIGKILL, SIGSEGV and SIGABRT, as a container's exit code tells them.
KILLED = frozenset({137, 139, 134})


@dataclasses.dataclass
class RankState:
    """One rank as the events so far tell."""

    node: str
    state: str = "unknown"
    exit_code: int | None = None
    oom_killed: bool = False
    died_at: float | None = None
    unreadable_since: float | None = None
    error: str = ""
    lines: collections.deque[str] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=KEPT_LINES))


def warnings(event: Event) -> list[str]:
    """Warnings of the launcher that do not stop the launch."""
    mark = "phase=bind missing:"
    if not isinstance(event, Lines):
        return []
    return [
        f"warning: {event.node}: {line.partition(mark)[2].strip()}: sockets of Ray and torch listen on all addresses"
        for line in event.lines
        if mark in line
    ]


class Readiness:
    """Accumulates events of the launch of one group.

    Attributes:
        head: the node with rank 0.

    Args:
        plan: of the group.
        topology: of the group.
        now: monotonic time in seconds at which it was started.
    """

    def __init__(self, plan: Plan, topology: Topology, *, now: float) -> None:
        self.started = now
        self.plan = plan
        self.head = topology.groups[0].head.name
        self.engine = engines.engine(plan.engine)
        self.ranks = {rank.name: RankState(node.node) for node in plan.nodes.values() for rank in node.containers}
        self.progress = {name: Progress(self.engine) for name in plan.nodes}
        self._interfaces = {
            member.name: {link.interface for link in member.links} for member in topology.members.values()
        }
        self._addresses = {member.name: member.address for member in topology.members.values()}
        self._down: dict[tuple[str, str], float] = {}
        self._gone: dict[str, Gone] = {}
        self._ready: set[str] = set()

    def feed(self, event: Event, now: float) -> None:
        """Take in one event."""
        if isinstance(event, Lines):
            rank = self.ranks.get(event.rank)
            if rank is None:
                return
            rank.lines.extend(event.lines)
            for line in event.lines:
                self.progress[event.node].feed(line)
        elif isinstance(event, Tick):
            self._tick(event, now)
        else:
            self._gone[event.node] = event

    def _tick(self, tick: Tick, now: float) -> None:
        for name, said in tick.states.items():
            rank = self.ranks.get(name)
            if rank is None:
                continue
            rank.state = str(said.get("state", "unknown"))
            rank.exit_code = said.get("exit_code")
            rank.oom_killed = bool(said.get("oom_killed"))
            if rank.state in {"exited", "dead", "gone"} and rank.died_at is None:
                rank.died_at = now
            if rank.state != "unreadable":
                rank.unreadable_since = None
            elif rank.unreadable_since is None:
                rank.unreadable_since = now
            rank.error = str(said.get("error") or "")
        for interface, carrier in tick.links.items():
            key = (tick.node, interface)
            if carrier or interface not in self._interfaces[tick.node]:
                self._down.pop(key, None)
            else:
                self._down.setdefault(key, now)
        if tick.listening:
            self._ready.add(tick.node)

    @property
    def ready(self) -> bool:
        """Whether the API takes connections or says that it has started."""
        return self.head in self._ready or self.progress[self.head].ready

    def failure(self, now: float) -> LaunchError | None:
        """Why the launch has failed, once that is certain and the last log lines are in."""
        if self._gone:
            gone = next(iter(self._gone.values()))
            failure = self._error(gone.error.message, gone.node, gone.error.hint)
            failure.__cause__ = gone.error
            return failure
        dead = sorted(
            (rank for rank in self.ranks.values() if rank.died_at is not None),
            key=lambda rank: rank.died_at or 0,
        )
        if dead and now - (dead[0].died_at or 0) >= LAST_LINES_S:
            return self._death(dead)
        for (node, interface), since in self._down.items():
            if now - since >= LINK_GRACE_S:
                return self._error(
                    f"{node} has no carrier on {interface}: the cable is out or the other end is down",
                    node,
                    f"check the cable and the other Spark; on {node}: ip link show {interface}",
                )
        for name, rank in self.ranks.items():
            if rank.unreadable_since is not None and now - rank.unreadable_since >= UNREADABLE_GRACE_S:
                return self._error(
                    f"Docker on {rank.node} has not reported the state of {name} for {UNREADABLE_GRACE_S} s"
                    + (f": {rank.error}" if rank.error else ""),
                    rank.node,
                    f"on {rank.node}: systemctl status docker",
                )
        return None

    @property
    def dying(self) -> bool:
        """Whether a rank has ended, also before its last log lines are in."""
        return any(rank.died_at is not None for rank in self.ranks.values())

    def _death(self, dead: list[RankState]) -> LaunchError:
        """The rank that died first for a reason of its own, not one that died because of it."""
        found = [
            (rank, known) for rank in dead if (known := cause(self.engine, list(rank.lines), None, rank.oom_killed))
        ]
        explained = {id(rank) for rank, _ in found}
        killed = [rank for rank in dead if rank.exit_code in KILLED and id(rank) not in explained]
        if killed or not found:
            # Only the kernel or a person ends a rank like this; what the others log are consequences.
            rank = (killed or dead)[0]
            known = cause(self.engine, list(rank.lines), rank.exit_code)
        else:
            rank, known = found[0]
            reporter, rank = rank, self._failed_first(rank)
            if rank is not reporter:
                summary = f"the rank on {rank.node} failed, according to the log of {reporter.node}: {known.summary}"
                return self._error(summary, rank.node, known.hint, reporter.node)
        how = "is gone" if rank.state == "gone" else "ended"
        died = f"the rank on {rank.node} {how}"
        if rank.exit_code is not None:
            died += f" with exit code {rank.exit_code}"
        if rank.error:
            died += f" ({rank.error})"
        if known is None:
            return self._error(died, rank.node, f"its log: sparkcluster logs INVENTORY {rank.node}")
        return self._error(f"{died}: {known.summary}", rank.node, known.hint)

    def _failed_first(self, reporter: RankState) -> RankState:
        """The rank that the log of ``reporter`` blames, by default itself."""
        number = failed_rank(self.engine, list(reporter.lines), list(self._addresses.values()))
        if number is None:
            return reporter
        node = list(self._addresses)[number]
        return next(rank for rank in self.ranks.values() if rank.node == node)

    def _error(self, text: str, node: str, hint: str | None, reporter: str | None = None) -> LaunchError:
        """The failure of ``node``, with the last log lines of ``reporter``, by default of the node itself."""
        return LaunchError(text, node=node, step="watch", hint=hint, log=self.tail(reporter or node))

    def tail(self, node: str) -> tuple[str, ...]:
        """The last log lines of ``node``'s ranks."""
        lines: list[str] = []
        for rank in self.ranks.values():
            if rank.node == node:
                lines += list(rank.lines)[-SHOWN_LINES:]
        return tuple(lines[-SHOWN_LINES:])

    def logs(self) -> dict[str, tuple[str, ...]]:
        """Every line that was kept, by node."""
        return {
            name: tuple(line for rank in self.ranks.values() if rank.node == name for line in rank.lines)
            for name in self.plan.nodes
        }

    def overdue(self, limit_s: float) -> LaunchError:
        """The group did not answer within ``limit_s``: how far each node got."""
        where = "; ".join(f"{name}: {progress.text}" for name, progress in self.progress.items())
        found = cause(self.engine, list(self.tail(self.head)), None, False)
        hint = "a larger model may need a larger ready_timeout_s in its playbook, or --timeout"
        text = f"no answer within {limit_s:.0f} s ({where})"
        if found is None:
            return self._error(text, self.head, hint)
        return self._error(f"{text}: {found.summary}", self.head, found.hint)
