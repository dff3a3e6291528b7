"""What a cluster is in, in one word, and what to type next. Pure; asked by ``status``, ``doctor``, ``ask`` and ``up``.

::

    serving    every group that is recorded answers                          ask
    starting   nothing answers yet, and an operation that starts it runs     logs -f
    orphaned   ranks that no release recorded: what started them has ended   up
    degraded   a recorded group does not answer, or a node cannot be read    doctor
    on demand  not loaded, and its guards load it when it is asked for      load
    down       no rank of the cluster is there                               up
    unknown    no node could be reached                                      preflight

The next ``up`` goes on with the ranks of an orphaned cluster, which may have loaded their weights.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sparkcluster.endpoint.dead import busy, shows_life
from sparkcluster.facts.base import read
from sparkcluster.facts.model import LeaseFact
from sparkcluster.facts.running import Reply
from sparkcluster.plan.release_record import Ranks, RecordedGroup, current_staging, unreadable

if TYPE_CHECKING:
    from sparkcluster.inspect.cluster import View

SERVING, STARTING, ORPHANED = "serving", "starting", "orphaned"
DEGRADED, DOWN, UNKNOWN, ON_DEMAND = "degraded", "down", "unknown", "on demand"

LEFT = "the command that started it ended before the model had answered"
"""Why a group is orphaned."""

# Operations that stop groups to start others.
STARTS = ("up", "upgrade", "rollback", "restart", "bench")

STATES = {
    SERVING: 'ask INVENTORY "Hello"',
    ON_DEMAND: "load INVENTORY NAME",
    STARTING: "logs INVENTORY -f",
    DOWN: "up INVENTORY",
    ORPHANED: "up INVENTORY",
    DEGRADED: "doctor INVENTORY",
    UNKNOWN: "preflight INVENTORY",
}
"""What to type in each; the best first."""


def responds(reply: Reply) -> bool:
    """Whether a group shows life, or is seen working for others."""
    return shows_life(reply) or busy(reply)


def states(view: View, responding: Collection[str]) -> tuple[dict[str, str], str]:
    """The state of every group by name, and that of the cluster; ``responding`` are the groups that show life."""
    staging = current_staging(view.facts)
    # What starts groups copies first, and has the lease of staging alone meanwhile.
    copying = staging is not None and staging.held and not view.ranks.anything
    starting = _starts(view.lease) or (copying and _starts(staging))
    ranks = view.ranks.groups()
    groups = {
        name: _of_group(view.groups.get(name), ranks.get(name, {}), answers=name in responding, starting=starting)
        for name in dict.fromkeys([*view.groups, *ranks])
    }
    found, blind = set(groups.values()), bool(view.collected.errors or unreadable(view.facts))
    if not view.facts:
        word = UNKNOWN
    elif found == {SERVING} and not blind:
        word = SERVING
    elif starting and SERVING not in found:
        word = STARTING
    elif ORPHANED in found and found <= {SERVING, ORPHANED} and not blind:
        word = ORPHANED
    elif is_unloaded(view) and not blind:
        word = ON_DEMAND
    else:
        word = DEGRADED if view.ranks.anything or blind else DOWN
    return groups, word


def is_unloaded(view: View) -> bool:
    """Whether it is on demand, no rank of it is there, and every guard would load what was recorded."""
    guards = [read(node.enabled) for node in view.facts.values()]
    ready = all(each and each.on_demand and each.runs and not each.stopped and not each.gave_up for each in guards)
    return ready and view.spec.idle_s is not None and view.newest is not None and not view.ranks.anything


def _of_group(recorded: RecordedGroup | None, ranks: Ranks, *, answers: bool, starting: bool) -> str:
    here = {rank.name for of_node in ranks.values() for rank in of_node}
    known = {rank for names in recorded.ranks.values() for rank in names} if recorded else set()
    if here and not known & here:
        return STARTING if starting else ORPHANED
    if answers:
        return SERVING
    return DOWN if not here else STARTING if starting else DEGRADED


def _starts(lease: LeaseFact | None) -> bool:
    """Whether the operation that has the lease starts groups."""
    return lease is not None and lease.operation in STARTS


def next_command(state: str, *, switch: bool = False, chats: bool = True) -> str:
    """What to type in ``state``; ``switch``: one to another release was cut off; ``chats``: the model writes text."""
    if state == SERVING and not chats:
        return "sparkcluster connect INVENTORY"
    return f"sparkcluster {'upgrade INVENTORY --resume' if switch and state != STARTING else STATES[state]}"
