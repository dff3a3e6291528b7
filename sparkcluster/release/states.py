"""The state table of ``up``, applied to each group. Pure: facts, plan and record in, states and actions out.

::

    state     ranks of the group                                          action of up
    EMPTY     no rank of ours                                             start
    UNLOADED  no rank of ours, and guards would load the same plan        keep
    STARTED   the ranks of this plan run, and a node has no record of     watch
              their verification
    SERVING   every rank of the newest release runs, and the plan is      ask
              the same
    OTHER     every rank of the newest release runs, and the plan         ask, if recorded
              differs; or ranks of another plan run on every node
    REMAINS   any other ranks of ours: some are missing or additional     clean, then start
    TAKEN     ranks with our name and another state directory             refuse

After asking (``after_asking``), a group that answers is kept, a dead group (``endpoint.dead``) is cleaned, and any
other group is refused, or cleaned with ``--replace``.

An ``up`` that was killed at any point leaves one of these states, from which the next ``up`` continues.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sparkcluster import engines
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
        replace: whether to replace groups that serve another plan, have drifted, or answer wrongly.
        rollback: whether to roll back if a switch fails.
        yes: accept a kept release, and an image that is copied to nodes, without asking.
        min_speed: minimum speed of a new release, relative to the previous one; 0 disables the comparison.
        wait_s: how long to wait for the lease.
        order: groups to switch first.
        max_unavailable: number of groups to switch at the same time, after the first one.
        pause_s: pause between switched groups.
        on_demand: names of the inventory's on-demand models, by cluster. Nothing starts on the nodes of a loaded one.
            If there are any, models without guards get guards: after a reboot only models with guards come back.
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
    """The desired state.

    Attributes:
        release: the recorded release of ``spec`` when rolling back: only its groups are considered. They start with the
            secrets that the nodes kept of it, regardless of findings.
    """

    spec: Spec
    options: Options
    operation: Operation = "up"
    release: RollbackTarget | None = None

    def restarts(self, group: GroupState) -> bool:
        """Whether to restart a group although it serves as desired; a restarted group has a later release."""
        since = group.recorded.release if group.recorded else 0
        return self.operation == "restart" and self.release is not None and since <= self.release.number


class State(enum.Enum):
    """The state of a group."""

    EMPTY = "empty"
    UNLOADED = "unloaded"
    STARTED = "started"
    SERVING = "serving"
    OTHER = "other"
    REMAINS = "remains"
    TAKEN = "taken"


class Action(enum.Enum):
    """The next action of ``up``."""

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
"""The action for a group that does not serve; for others see ``after_asking``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """A group's reply, and the judgement of it.

    Attributes:
        reply: the reply; None if the group could not be asked.
        wrong: why it is not what the group's release expects, or None.
        dead: why the group is dead, or None.
    """

    reply: Reply | None
    wrong: str | None = None
    dead: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GroupState:
    """A group as it was found.

    Attributes:
        ranks: its ranks by node, whatever their state.
        recorded: its record in the newest release; None without one.
        planned: what the plan would change of a serving group.
        drift: addresses and GID indices that have changed since its ranks were started, as lines.
        verdict: how it answered; None if it was not asked.
        rotated: secrets whose values have changed since its ranks were started.
        action: the action of ``up``; set by ``serving.survey``.
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
        """Why it is dead, if it was asked."""
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
        """Whether ``--replace`` cleans it, although it serves a release and is not dead."""
        return self.action is Action.CLEAN and self.verdict is not None and not self.dead


def after_asking(group: GroupState, *, again: bool, replace: bool) -> Action:
    """The action for a SERVING or OTHER group, which was asked if it is recorded.

    ``replace`` allows to replace groups that are not dead; with ``again``, also groups that serve as desired.
    """
    if group.dead:
        return Action.CLEAN
    as_wanted = group.state is State.SERVING and group.answers and not group.rotated
    if as_wanted and not (replace and (again or group.drift)):
        return Action.KEEP
    return Action.CLEAN if replace else Action.REFUSE


def group_states(view: View) -> dict[str, GroupState]:
    """The state of every group that is planned, recorded and running, or has ranks; by name."""
    present = view.ranks.groups()
    recorded = recorded_groups(view.newest.record) if view.newest else {}
    names = [group.name for group in view.spec.inventory.groups] or [ONLY_GROUP]
    return {
        name: _group(view, name, present.get(name, {}), recorded.get(name))
        for name in dict.fromkeys([*names, *present])
    }


def _now(view: View, name: str) -> Group | None:
    """The group of that name in the current topology."""
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
    # They may answer although they are not recorded.
    if not runs_plan and all_running(ranks) and ranks.keys() == nodes:
        why = f"{view.spec.inventory.called(name)} runs a plan that is not in any readable record"
        return GroupState(name, State.OTHER, ranks, planned=(Change("arguments", why),))
    return GroupState(name, State.STARTED if runs_plan else State.REMAINS, ranks, recorded)


def _unrecorded_on_a_node(view: View, recorded: RecordedGroup) -> bool:
    """Whether a node of the group lacks its release's record, because ``up`` was killed while recording."""
    found = [view.facts[node].release for node in recorded.ranks if node in view.facts]
    return any(each is None or (isinstance(each, ReleaseFact) and each.number < recorded.release) for each in found)


def all_running(ranks: Mapping[str, tuple[Rank, ...]]) -> bool:
    """Whether no rank has ended."""
    return all(rank.state == "running" for found in ranks.values() for rank in found)


def differences(view: View, group: GroupState) -> tuple[Difference, ...]:
    """All differences between a serving group and the files, by class, with their cost."""
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
    """The differences of ``spec`` from the record: model, image, and the first setting; ``more`` shows the others."""
    old = recorded.plan if recorded else {}
    image = spec.reference if spec.inventory.runtime.kind == "docker" else None
    for word, new in (("model", spec.playbook.model_name), ("image", image)):
        if old.get(word) != new:
            yield word, f"{old.get(word) or 'none'} → {new or 'none'}"
    found = list(_settings((recorded and recorded.playbook) or {}, spec))
    if found:
        yield "settings", found[0] + (f"; {len(found) - 1} more: {more}" if found[1:] else "")


def _settings(recorded: Mapping[str, Any], spec: Spec) -> Iterator[str]:
    """A line per argument and variable that differs from the ``recorded`` playbook; the context length first."""
    now = spec.playbook.model_dump(mode="json", exclude_defaults=True)
    context = engines.engine(spec.playbook.engine).common_arguments.get("context")
    for section in ("args", "env"):
        old, new = recorded.get(section) or {}, now.get(section) or {}
        for name in sorted(old.keys() | new.keys(), key=lambda name: (name != context, name)):
            if recorded and old.get(name) != new.get(name):
                yield f"{name} {_shown(old.get(name))} → {_shown(new.get(name))}"


def _shown(value: object) -> str:
    return "unset" if value is None else f"{value:,}" if type(value) is int else str(value)


def compared(view: View, recorded: RecordedGroup) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """What the plan would change of a recorded group, and what has drifted since its start.

    If the plan differs but the inventory's network section does not, the plan is compared with the addresses,
    interfaces and GID indices of the group's start: if nothing differs then, it has drifted.
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
    """The plan with this topology for ``group``."""
    topology = view.topology or Topology(view.spec.inventory.cluster, (group,), ())
    groups = tuple(group if other.name == group.name else other for other in topology.groups)
    now = dataclasses.replace(topology, groups=groups)
    try:
        return build(view.spec, view.facts, now, release=0, bring_ray=view.bring_ray)
    except (PlanError, LookupError, ValueError):
        return None
