"""The state table that ``up`` walks. Pure: facts and plan in, state of the cluster and what to do out.

::

    state       what is there                                          what up does      goes to
    EMPTY       no rank of ours                                        check stage start STARTED
    STARTED     the ranks of this plan run, no verified record of it   watch verify      SERVING
    SERVING     the ranks of this plan run and their release is recorded  ask            - (nothing changes)
    OTHER       another recorded plan runs and answers                 refuse, show diff -
    REMAINS     anything else of ours: dead, half, or not answering    clean             EMPTY
    TAKEN       ranks that are not ours to touch                       refuse            -

``up`` that was killed at any point leaves one of these, so the next one knows how to go on. A later
``upgrade`` starts from OTHER and walks the same table.
"""

from __future__ import annotations

import enum

from sparkcluster.facts.model import ReleaseFact
from sparkcluster.inspect.cluster import View
from sparkcluster.plan.model import Plan
from sparkcluster.plan.records import Holding


class State(enum.Enum):
    """What a cluster is in."""

    EMPTY = "empty"
    STARTED = "started"
    SERVING = "serving"
    OTHER = "other"
    REMAINS = "remains"
    TAKEN = "taken"


class Action(enum.Enum):
    """What ``up`` does about it."""

    START = "start"
    WATCH = "watch"
    ASK = "ask"
    REFUSE = "refuse"
    CLEAN = "clean"


TABLE: dict[State, tuple[Action, State | None]] = {
    State.EMPTY: (Action.START, State.STARTED),
    State.STARTED: (Action.WATCH, State.SERVING),
    State.SERVING: (Action.ASK, None),
    State.OTHER: (Action.REFUSE, None),
    State.REMAINS: (Action.CLEAN, State.EMPTY),
    State.TAKEN: (Action.REFUSE, None),
}


def state(plan: Plan | None, held: Holding, newest: ReleaseFact | None) -> State:
    """The state that facts alone show; whether the model answers is asked afterwards.

    Args:
        plan: what this ``up`` would deploy; None where that cannot be said yet (no node has the image).
        held: the ranks on all nodes.
        newest: the newest recorded release.
    """
    if any(held.stray.values()):
        return State.TAKEN
    if not held.anything:
        return State.EMPTY
    if plan is not None and held.runs(plan):
        recorded = newest is not None and newest.plan_hash == plan.hash and newest.number == held.release()
        return State.SERVING if recorded else State.STARTED
    same = plan is not None and newest is not None and newest.plan_hash == plan.hash
    if newest is not None and not same and held.hashes() == {newest.plan_hash} and complete(newest, held):
        return State.OTHER
    return State.REMAINS


def state_of(view: View) -> State:
    """The state of the cluster that ``view`` shows."""
    return state(view.plan, view.held, view.newest)


def complete(release: ReleaseFact, held: Holding) -> bool:
    """Whether every rank that ``release`` recorded runs, as far as the inventory still has its nodes."""
    nodes = release.record.get("plan", {}).get("nodes", {})
    known = {name: node for name, node in nodes.items() if name in held.own}
    return bool(known) and all(
        {one["name"] for one in node["containers"]} == {rank.name for rank in held.own[name] if rank.state == "running"}
        for name, node in known.items()
    )
