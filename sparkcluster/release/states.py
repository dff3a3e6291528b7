"""The state table that ``up`` walks, once for each group. Pure: facts, plan and record in, states and actions out.

::

    state     what is there of the group                                  what up does
    EMPTY     no rank of ours                                             start
    UNLOADED  no rank of ours, and guards load on demand what the plan    keep
              would do
    STARTED   the ranks of this plan run, and a node has no record that   watch
              they have answered
    SERVING   every rank that the newest release recorded runs, and the   ask
              plan would do the same
    OTHER     likewise, and the plan would do something else, or ranks    ask, if recorded
              of another plan run on every node
    REMAINS   anything else of ours: a rank is gone, or there are others  clean, then start
    TAKEN     ranks with our name and another state directory             refuse

After asking (``after_asking``) a group that answers is kept, a dead group (``endpoint.dead``) is cleaned, and any
other is refused, or cleaned with ``--replace``.

An ``up`` that was killed at any point leaves one of these states, from which the next ``up`` continues.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkcluster.errors import PlanError
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.running import Reply
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.state import is_unloaded
from sparkcluster.plan.build import build
from sparkcluster.plan.cost import Difference, classed, edited, missing_on
from sparkcluster.plan.diff import Change, changes
from sparkcluster.plan.model import GroupPlan, Plan
from sparkcluster.plan.release_record import (
    RecordedGroup,
    group_plan,
    recorded_groups,
    runs_planned,
    runs_recorded,
    written_network,
)
from sparkcluster.runtime.lease import Operation
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import ONLY_GROUP
from sparkcluster.topology.model import Group, Topology
from sparkcluster.topology.recorded import drift, restored

if TYPE_CHECKING:
    from sparkcluster.release.rollback_target import RollbackTarget


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``up``, ``upgrade``, ``rollback`` and ``restart``.

    Attributes:
        timeout_s: overrides the playbook's readiness limit.
        replace: whether to replace what serves another plan, has drifted, or does not answer as it should.
        rollback: whether to go back where a switch fails.
        yes: accept without asking what a kept release can do, and an image that is copied to nodes.
        min_speed: the least speed of a new release, as a share of the one before; 0 compares nothing.
        wait_s: how long to wait for the lease.
        order: groups that are switched first.
        max_unavailable: how many groups are switched at once, after the first one.
        pause_s: between groups that are switched.
        on_demand: names of the inventory's models on demand, by cluster. Beside one that is loaded nothing starts, and
            beside such models guards are installed where none run: after a reboot those would come back alone.
    """

    timeout_s: float | None = None
    clear_caches: bool = False
    replace: bool = False
    rollback: bool = True
    yes: bool = False
    min_speed: float = 0
    wait_s: float = 0
    order: tuple[str, ...] = ()
    max_unavailable: int = 1
    pause_s: float = 0
    on_demand: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Desired:
    """What is to serve.

    Attributes:
        release: the recorded release that ``spec`` is of, where one is to serve again: its groups start with the
            secrets that the nodes have of it, and whatever checks find. Others are not looked at.
    """

    spec: Spec
    options: Options
    operation: Operation = "up"
    release: RollbackTarget | None = None

    def restarts(self, group: GroupState) -> bool:
        """Whether a group is started anew though it serves as it should; one that was already has a later release."""
        since = group.recorded.release if group.recorded else 0
        return self.operation == "restart" and self.release is not None and since <= self.release.number


class State(enum.Enum):
    """What a group is in."""

    EMPTY = "empty"
    UNLOADED = "unloaded"
    STARTED = "started"
    SERVING = "serving"
    OTHER = "other"
    REMAINS = "remains"
    TAKEN = "taken"


class Action(enum.Enum):
    """What ``up`` does next."""

    START = "start"
    WATCH = "watch"
    KEEP = "keep"
    REFUSE = "refuse"
    CLEAN = "clean"


TABLE: dict[State, Action] = {
    State.EMPTY: Action.START,
    State.UNLOADED: Action.KEEP,
    State.STARTED: Action.WATCH,
    State.REMAINS: Action.CLEAN,
    State.TAKEN: Action.REFUSE,
}
"""What ``up`` does with a group that does not serve; see ``after_asking`` for others."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a group that was asked replied, and how that was judged.

    Attributes:
        reply: what it replied, None if it could not be asked.
        wrong: why that is not what its release expects, or None.
        dead: why it is dead, or None.
    """

    reply: Reply | None
    wrong: str | None = None
    dead: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GroupState:
    """A group as it was found.

    Attributes:
        ranks: its ranks by node, whatever their state.
        recorded: what the newest release recorded of it; None where it has no record.
        planned: what the plan would change of a group that serves.
        drift: addresses and GID indices that are not those its ranks were started with, in lines.
        verdict: how it answered; None where it was not asked.
        rotated: names of secrets that have another value than its ranks were started with.
        action: what ``up`` does with it; set by ``serving.survey``.
    """

    name: str
    state: State
    ranks: Mapping[str, tuple[Rank, ...]]
    recorded: RecordedGroup | None = None
    planned: tuple[Change, ...] = ()
    drift: tuple[str, ...] = ()
    verdict: Verdict | None = None
    rotated: tuple[str, ...] = ()
    action: Action | None = None

    @property
    def dead(self) -> str | None:
        """Why it is dead, where it was asked."""
        return self.verdict.dead if self.verdict else None

    @property
    def answers(self) -> bool:
        """Whether it was asked, and answered as its release expects."""
        return self.verdict is not None and self.verdict.wrong is None

    @property
    def may_answer(self) -> bool:
        """Whether requests may be in flight that it can still answer."""
        return all_running(self.ranks) and not self.dead

    @property
    def replaced(self) -> bool:
        """Whether it is cleaned because the user said ``--replace``, though a release of it serves and is not dead."""
        return self.action is Action.CLEAN and self.verdict is not None and not self.dead


def after_asking(group: GroupState, *, again: bool, replace: bool) -> Action:
    """What to do with a group that is SERVING or OTHER, and was asked if a release recorded it.

    ``replace`` allows to replace what is not dead; then ``again`` is whether it is, though it serves as it should.
    """
    if group.dead:
        return Action.CLEAN
    as_wanted = group.state is State.SERVING and group.answers and not group.rotated
    if as_wanted and not (replace and (again or group.drift)):
        return Action.KEEP
    return Action.CLEAN if replace else Action.REFUSE


def group_states(view: View) -> dict[str, GroupState]:
    """The state of every group that is planned, recorded and still running, or has ranks; by name."""
    present = view.ranks.groups()
    recorded = recorded_groups(view.newest.record) if view.newest else {}
    names = [group.name for group in view.spec.inventory.groups] or [ONLY_GROUP]
    return {
        name: _group(view, name, present.get(name, {}), recorded.get(name))
        for name in dict.fromkeys([*names, *present])
    }


def _now(view: View, name: str) -> Group | None:
    """The group of that name in the topology of today."""
    return next((group for group in view.topology.groups if group.name == name), None) if view.topology else None


def _planned(plan: Plan | None, name: str) -> GroupPlan | None:
    return next((group for group in plan.groups if group.name == name), None) if plan else None


def _group(view: View, name: str, ranks: Mapping[str, tuple[Rank, ...]], recorded: RecordedGroup | None) -> GroupState:
    planned = _planned(view.planned, name)
    nodes = set(planned.nodes) if planned else {*ranks, *view.ranks.stray}
    if any(view.ranks.stray.get(node) for node in nodes):
        return GroupState(name, State.TAKEN, ranks)
    if not ranks:
        if recorded and recorded.verified and is_unloaded(view) and not any(compared(view, recorded)):
            return GroupState(name, State.UNLOADED, ranks, recorded)
        return GroupState(name, State.EMPTY, ranks)
    runs_plan = bool(view.planned and planned and runs_planned(view.planned, planned, ranks))
    if recorded is not None and recorded.verified and runs_recorded(recorded, ranks, view.ranks.ours):
        changes, drifted = compared(view, recorded)
        serving = State.STARTED if runs_plan and _unrecorded_on_a_node(view, recorded) else State.SERVING
        return GroupState(name, State.OTHER if changes else serving, ranks, recorded, changes, drifted)
    # They may answer, though no release recorded them.
    if not runs_plan and all_running(ranks) and ranks.keys() == nodes:
        why = f"{view.spec.inventory.called(name)} runs a plan that no release recorded, as far as records can be read"
        return GroupState(name, State.OTHER, ranks, planned=(Change("arguments", why),))
    return GroupState(name, State.STARTED if runs_plan else State.REMAINS, ranks, recorded)


def _unrecorded_on_a_node(view: View, recorded: RecordedGroup) -> bool:
    """Whether a node of the group has no record of its release: ``up`` was killed while it recorded it."""
    found = [view.facts[node].release for node in recorded.ranks if node in view.facts]
    return any(each is None or (isinstance(each, ReleaseFact) and each.number < recorded.release) for each in found)


def all_running(ranks: Mapping[str, tuple[Rank, ...]]) -> bool:
    """Whether no rank has ended."""
    return all(rank.state == "running" for found in ranks.values() for rank in found)


def differences(view: View, group: GroupState) -> tuple[Difference, ...]:
    """Everything in which a group that serves differs from what is written, by class, with what it costs."""
    if group.state not in {State.SERVING, State.OTHER}:
        return ()
    found = [*group.planned, *(Change("addresses", line) for line in group.drift)]
    if group.recorded is not None:
        name = view.spec.inventory.called(group.name)
        found += [Change("secrets", f"{name}: {variable} has a new value") for variable in group.rotated]
        verify = group.recorded.verify != view.spec.playbook.verifying
        found += edited(group.recorded.playbook or {}, view.spec, verify=verify)
    now, missing = _now(view, group.name), set()
    if now is not None and view.topology is not None:
        missing = missing_on(view.spec, view.facts, view.topology, now.names, bring_ray=view.bring_ray)
    return classed(group.name, found, missing)


def brief(recorded: RecordedGroup | None, spec: Spec, more: str) -> Iterator[tuple[str, str]]:
    """In what ``spec`` is another than what is recorded: model, image, and the first setting; ``more`` shows others."""
    old = recorded.plan if recorded else {}
    image = spec.reference if spec.inventory.runtime.kind == "docker" else None
    for word, new in (("model", spec.playbook.model_name), ("image", image)):
        if old.get(word) != new:
            yield word, f"{old.get(word) or 'none'} → {new or 'none'}"
    found = list(_settings((recorded and recorded.playbook) or {}, spec))
    if found:
        yield "settings", found[0] + (f"; {len(found) - 1} more: {more}" if found[1:] else "")


def _settings(recorded: Mapping[str, Any], spec: Spec) -> Iterator[str]:
    """A line for each argument and variable that differs from the ``recorded`` playbook; the context first."""
    now = spec.playbook.model_dump(mode="json", exclude_defaults=True)
    for section in ("args", "env"):
        old, new = recorded.get(section) or {}, now.get(section) or {}
        for name in sorted(old.keys() | new.keys(), key=lambda name: (name != "max-model-len", name)):
            if recorded and old.get(name) != new.get(name):
                yield f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}"


def _shown(value: object) -> str:
    return "unset" if value is None else f"{value:,}" if type(value) is int else str(value)


def compared(view: View, recorded: RecordedGroup) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """What the plan would change of a recorded group, and what has drifted since it was started.

    If the plan differs and the network section of the inventory does not, the plan is compared with the addresses,
    interfaces and GID indices that the group was started with: where nothing differs then, it has drifted.
    """
    found = _changes(recorded, view.planned)
    before = restored(recorded.network) if recorded.network else None
    if not found or before is None or recorded.written != written_network(view.spec):
        return found, ()
    if _changes(recorded, _plan_with(view, before)):
        return found, ()
    return (), tuple(drift(before, _now(view, recorded.name)))


def _changes(recorded: RecordedGroup, plan: Plan | None) -> tuple[Change, ...]:
    if plan is None:
        return (Change("arguments", "no plan can be made from the playbook and the facts of the nodes"),)
    if _planned(plan, recorded.name) is None:
        return (Change("arguments", f"group {recorded.name} is no longer in the inventory"),)
    return tuple(changes(recorded.plan, group_plan(plan.as_json(), recorded.name)))


def _plan_with(view: View, group: Group) -> Plan | None:
    """The plan where ``group`` has the topology given."""
    topology = view.topology or Topology(view.spec.inventory.cluster, (group,), ())
    groups = tuple(group if other.name == group.name else other for other in topology.groups)
    now = dataclasses.replace(topology, groups=groups)
    try:
        return build(view.spec, view.facts, now, release=0, bring_ray=view.bring_ray)
    except (PlanError, LookupError, ValueError):
        return None
