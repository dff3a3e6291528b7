"""What a cluster is in, in one word, and what to type next. Pure; asked by ``status``, ``doctor``, ``ask`` and ``up``.

::

    serving    every group that is recorded answers                          ask
    starting   nothing answers yet, and an operation that starts it runs     logs -f
    orphaned   ranks that no release recorded: what started them has ended   up
    degraded   a recorded group does not answer, or a node cannot be read    doctor
    down       no rank of the cluster is there                               up
    unknown    no node could be reached                                      preflight

The next ``up`` goes on with the ranks of an orphaned cluster, which may have loaded their weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparkcluster.endpoint.dead import busy, shows_life
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts, LeaseFact, ReleaseFact
from sparkcluster.facts.release_record import Record
from sparkcluster.facts.running import Reply
from sparkcluster.plan.release_record import ClusterRanks, RecordedGroup, unreadable

SERVING, STARTING, ORPHANED = "serving", "starting", "orphaned"
DEGRADED, DOWN, UNKNOWN = "degraded", "down", "unknown"
STATES = (SERVING, STARTING, ORPHANED, DEGRADED, DOWN, UNKNOWN)

# Operations that stop groups to start others.
STARTS = ("up", "upgrade", "rollback", "restart")

_NEXT = {
    SERVING: 'ask INVENTORY "Hello"',
    STARTING: "logs INVENTORY -f",
    ORPHANED: "up INVENTORY",
    DEGRADED: "doctor INVENTORY",
    DOWN: "up INVENTORY",
    UNKNOWN: "preflight INVENTORY",
}


def present_record(present: ClusterRanks, latest: ReleaseFact | None) -> Record:
    """The newest record, if a rank of it is there, exited ones included; else an empty one."""
    return latest.record if latest is not None and present.of_release(latest, exited=True) else {}


def is_starting(lease: LeaseFact | None) -> bool:
    """Whether the operation that has the lease starts groups."""
    return lease is not None and lease.operation in STARTS


def responds(reply: Reply | None) -> bool:
    """Whether a group shows life, or is seen working for others."""
    return reply is not None and (shows_life(reply) or busy(reply))


def states(
    facts: Mapping[str, Facts],
    present: ClusterRanks,
    recorded: Mapping[str, RecordedGroup],
    responding: Collection[str],
    *,
    lease: LeaseFact | None,
    errors: Collection[str],
) -> tuple[dict[str, str], str]:
    """The state of every group by name, and that of the cluster.

    Args:
        facts: of the nodes that answered.
        present: their ranks.
        recorded: groups of the record, as ``present_record`` has it.
        responding: groups that answered, as in ``responds``.
        lease: the one that is held right now.
        errors: nodes that did not answer.
    """
    starting = is_starting(lease)
    groups = _of_groups(recorded, present, responding, starting=starting)
    blind = bool(errors or unreadable(facts))
    return groups, _of_cluster(groups, present, blind=blind, starting=starting) if facts else UNKNOWN


def _of_groups(
    recorded: Mapping[str, RecordedGroup], present: ClusterRanks, responding: Collection[str], *, starting: bool
) -> dict[str, str]:
    """The state of every group that is ``recorded`` or has ranks."""
    ranks = present.groups()
    found = {}
    for name in dict.fromkeys([*recorded, *ranks]):
        here = [rank for of_node in ranks.get(name, {}).values() for rank in of_node]
        known = {rank for names in recorded[name].ranks.values() for rank in names} if name in recorded else set()
        unrecorded = bool(here) and not known.intersection(rank.name for rank in here)
        if name in responding and not unrecorded:
            found[name] = SERVING
        elif unrecorded:
            found[name] = STARTING if starting else ORPHANED
        elif not here:
            found[name] = DOWN
        else:
            found[name] = STARTING if starting else DEGRADED
    return found


def _of_cluster(groups: Mapping[str, str], present: ClusterRanks, *, blind: bool, starting: bool) -> str:
    """The state of a cluster of which a node was reached; ``blind``: the ranks of some node could not be read."""
    found = set(groups.values())
    if found == {SERVING} and not blind:
        return SERVING
    if starting and SERVING not in found:
        return STARTING
    if ORPHANED in found and found <= {SERVING, ORPHANED} and not blind:
        return ORPHANED
    return DEGRADED if present.anything or blind else DOWN


def next_command(state: str, *, switch: bool = False) -> str:
    """What to type in ``state``; ``switch``: one to another release was cut off."""
    return f"sparkcluster {'upgrade INVENTORY --resume' if switch and state != STARTING else _NEXT[state]}"


def left_by(facts: Mapping[str, Facts]) -> str:
    """What left ranks that no release recorded: the operation that had the lease last, and of whom."""
    leases = [lease for node in facts.values() if (lease := read(node.lease)) is not None and is_starting(lease)]
    if not leases:
        return "the command that started it ended before the model had answered"
    last = max(leases, key=lambda lease: (lease.since or 0.0, lease.epoch))
    by = f" by {last.operator}" if last.operator else ""
    return f"`{last.operation}`{by} ended before the model had answered"
