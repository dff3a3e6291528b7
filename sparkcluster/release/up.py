"""``up``: probe, check, plan, stage, start, watch, verify, record, following the state table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from sparkcluster.errors import FoundErrors, LeaseHeld, PlanError
from sparkcluster.facts.probe import Answer
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect.cluster import View, view_cluster
from sparkcluster.inspect.state import left_by
from sparkcluster.plan.release_record import current_lease
from sparkcluster.plan.switch import anything, pending
from sparkcluster.release import rollback_target
from sparkcluster.release.deploy import Options, stop_before_staging, whole
from sparkcluster.release.rollback_target import Kept
from sparkcluster.release.rollout import Target, Walk
from sparkcluster.release.serving import note_differences, refuse, replies, stop_on_wrong_answers, survey
from sparkcluster.release.states import Action, GroupState, State
from sparkcluster.report import Report, count
from sparkcluster.runtime import observed, secrets
from sparkcluster.runtime.lease import Lease, Operation
from sparkcluster.spec import Spec, consent

# An engine that dies closes its API first; its rank is gone some seconds later.
DYING_S = 5.0
LEASE_AGAIN_S = 2.0

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Up:
    """How ``up`` ended: serving, and whether that took a change.

    Attributes:
        view: the cluster as it was last seen.
        answers: what each group answered, by name.
        drift: addresses and GID indices that changed since a group was started, in lines, by group.
        source: the release that served before; 0 without one.
        downtime_s: from the begin of the stop of a group that served to its next verified answer, by group.
        speed: tokens/s before and after, by group; None where it was not measured.
        moved_bytes: of image and weights, that an upgrade copied while the release before served.
        restored: the release that a rollback let serve again; 0 without one.
    """

    view: View
    changed: bool
    release: int
    answers: Mapping[str, Reply]
    seconds: float
    drift: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    source: int = 0
    downtime_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    speed: Mapping[str, tuple[float | None, float | None]] = dataclasses.field(default_factory=dict)
    moved_bytes: int = 0
    restored: int = 0


def up(
    fleet: Fleet,
    spec: Spec,
    options: Options,
    report: Report,
    probes: Calls[Answer] | None = None,
    *,
    operation: Operation = "up",
    target: Target | None = None,
    back: Kept | None = None,
) -> Up:
    """Bring the cluster from whatever it is in to a verified endpoint for every group.

    ``probes`` are those that were sent already. With ``target``, ``spec`` is that of a kept release. ``back`` is what
    serves, where it was accepted before as what a switch that fails goes back to.

    Raises:
        RolledBack: what was to be replaced serves again.
        FoundErrors: findings of severity error; nothing was changed.
        OtherPlan, NotServing: a group serves something else or not as expected, and is not dead; nothing was changed.
        LeaseHeld: another operator has the lease.
        StageError, LaunchError: with node, step and hint; no rank of the group that failed is left running.
    """
    consent.require(spec)
    began = time.monotonic() - report.asked_s
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view, groups = see(fleet, spec, options, report, probes=probes, target=target)
    actions = {group.action for group in groups.values()}
    # With the lease held, what is refused may be about ranks that its holder is starting: a guard, say.
    changing = Action.REFUSE in actions and current_lease(view.facts) is not None
    if not changing:
        refuse(view, groups)
    note_differences(view, groups, report)
    left = [name for name, group in groups.items() if group.state is State.STARTED]
    if left and current_lease(view.facts) is None:
        names = ", ".join(map(spec.inventory.called, left))
        report.note(f"{names}: {left_by(view.facts)}; continuing with the ranks that it started")
    source = view.newest.number if view.newest else 0
    unfinished = anything(view.facts) or any(group.lacking for group in groups.values())
    if not changing and not unfinished and not {Action.START, Action.WATCH, Action.CLEAN} & actions:
        stop_on_wrong_answers(view, groups)
        return Up(
            view,
            changed=False,
            release=source,
            source=source,
            answers=replies(groups),
            seconds=time.monotonic() - report.asked_s - began,
            drift={name: group.drift for name, group in groups.items() if group.drift},
        )
    if target is None:
        secrets.check(spec)
    starting = [name for name, group in groups.items() if group.action is Action.START or group.replaced]
    if starting and target is None:
        # Fail before taking a lease, and before stopping what serves.
        try:
            stop_before_staging(view, starting)
        except (FoundErrors, PlanError):
            # With the lease held, what was found may be about ranks that its holder is starting.
            if current_lease(view.facts) is None:
                raise
    kept = [each for each in (back, target and target.kept) if each]
    kept = _with_what_serves(kept, fleet, view, groups, options=options, report=report)
    inventory = spec.inventory

    def take() -> Lease:
        lease = Lease(fleet, cluster=inventory.cluster, state_dir=inventory.state_dir, operation=operation)
        return lease.acquire(list(view.facts))

    with until_free(take, options.wait_s, report) as lease:
        report.step("check", count(len(view.facts), "Spark"))
        walk = Walk(lease.changer, spec, options, report, target=target, kept=kept)
        try:
            with walk.staging:
                answers = walk.to_serving({} if changing else groups)
        except KeyboardInterrupt:
            raise walk.interrupted() from None
        done = Up(
            walk.new.view,
            changed=walk.changed,
            release=walk.number,
            answers=answers,
            seconds=time.monotonic() - report.asked_s - began,
            source=source,
            downtime_s=walk.measured.downtime_s,
            speed=walk.measured.speed,
        )
    observed.note(
        spec.inventory.cluster, "up", operation=operation, model=spec.playbook.model_name,
        seconds=round(done.seconds, 1), clear_caches=options.clear_caches,
        hub_offline=_offline(done.view),
    )  # fmt: skip
    return done


def _with_what_serves(
    kept: list[Kept], fleet: Fleet, view: View, groups: Mapping[str, GroupState], *, options: Options, report: Report
) -> list[Kept]:
    """``kept``, and what a switch goes back to: what it can do is asked about before anything is locked or stopped."""
    number = rollback_target.source(view)
    switches = options.rollback and any(group.replaced and group.seen for group in groups.values())
    if not switches or number in {0, *(each.number for each in kept)}:
        return kept
    return [*kept, rollback_target.find_kept(fleet, view.spec, number, report, yes=options.yes)]


def _offline(view: View) -> bool:
    """Whether every rank was told to ask no hub (``HF_HUB_OFFLINE``)."""
    return all(node.env.get("HF_HUB_OFFLINE") == "1" for node in (view.plan.nodes.values() if view.plan else ()))


def until_free(take: Callable[[], T], wait_s: float, report: Report) -> T:
    """What ``take`` returns, which is tried again for ``wait_s`` while another operator has the lease.

    Raises:
        LeaseHeld: another operator still has it.
    """
    until, waiting = time.monotonic() + wait_s, False
    while True:
        try:
            return take()
        except LeaseHeld as held:
            if not wait_s:
                held.hint = f"add --wait 600; or {held.hint}"
            if time.monotonic() >= until:
                raise
            if not waiting:
                report.note(f"{held.message}: waiting up to {wait_s:g} s")
            waiting = True
            time.sleep(min(LEASE_AGAIN_S, max(0.0, until - time.monotonic())))


def see(
    fleet: Fleet,
    spec: Spec,
    options: Options,
    report: Report,
    *,
    probes: Calls[Answer] | None,
    target: Target | None,
) -> tuple[View, dict[str, GroupState]]:
    """The cluster and what each group answers; looked at again where an engine may be dying."""
    # First of all: an engine that has lost a node may keep a request waiting.
    view = whole(view_cluster(fleet, spec, probes=probes))
    goal = target.survey if target else {}
    cut_off = pending(view.facts, view.newest)
    abandoned = cut_off.groups if cut_off else ()
    groups = survey(fleet, view, report, replace=options.replace, abandoned=abandoned, **goal)
    if any(reply.problem in {"refused", "lost"} for reply in replies(groups).values()):
        time.sleep(DYING_S)
        view = whole(view_cluster(fleet, spec))
        groups = survey(fleet, view, report, replace=options.replace, before=groups, abandoned=abandoned, **goal)
    if not options.replace:  # what is refused then is no failure of this step
        report.done()
    return view, groups
