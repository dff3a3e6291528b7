"""The state of a cluster in one word, and the next command. Pure; used by ``status``, ``doctor``, ``ask`` and ``up``.

::

    serving    every recorded group answers                                    ask
    starting   nothing answers yet, and an operation that starts it is running logs -f
    orphaned   unrecorded ranks: the command that started them has ended       up
    degraded   a recorded group does not answer, or a node cannot be read      doctor
    on demand  not loaded; a request loads it                                  load
    down       no rank of the cluster exists                                   up
    unknown    no node could be reached                                        preflight

The next ``up`` continues with the ranks of an orphaned cluster, which may have loaded their weights.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sparkcluster.endpoint.dead import busy, shows_life
from sparkcluster.facts.base import read
from sparkcluster.facts.model import LeaseFact
from sparkcluster.facts.running import Reply
from sparkcluster.plan.release_record import Ranks, RecordedGroup, current_staging

if TYPE_CHECKING:
    from sparkcluster.inspect.cluster import View

SERVING, STARTING, ORPHANED = "serving", "starting", "orphaned"
DEGRADED, DOWN, UNKNOWN, ON_DEMAND = "degraded", "down", "unknown", "on demand"

LEFT = "the command that started it ended before the model was ready"
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
"""The next command in each state; the best state first."""


def responds(reply: Reply) -> bool:
    """Whether a group shows life, or is busy with other requests."""
    return shows_life(reply) or busy(reply)


def states(view: View, responding: Collection[str]) -> tuple[dict[str, str], str]:
    """The state of each group, and of the cluster; ``responding`` are the groups that show life."""
    staging = current_staging(view.facts)
    # An operation that starts groups copies first, and then holds only the staging lease.
    copying = staging is not None and staging.held and not view.ranks.anything
    starting = _starts(view.lease) or (copying and _starts(staging))
    ranks = view.ranks.groups()
    groups = {
        name: _of_group(view.groups.get(name), ranks.get(name, {}), answers=name in responding, starting=starting)
        for name in dict.fromkeys([*view.groups, *ranks])
    }
    found, blind = set(groups.values()), bool(view.unread)
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
    """Whether it is on demand, none of its ranks exists, and every guard would load the recorded release."""
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
    """Whether the operation that holds the lease starts groups."""
    return lease is not None and lease.operation in STARTS


def next_command(state: str, *, switch: bool = False, chats: bool = True) -> str:
    """The next command in ``state``; ``switch``: a switch was interrupted; ``chats``: the model generates text."""
    if state == SERVING and not chats:
        return "sparkcluster connect INVENTORY"
    return f"sparkcluster {'upgrade INVENTORY --resume' if switch and state != STARTING else STATES[state]}"
