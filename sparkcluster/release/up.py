"""``up``: probe, check, plan, stage, start, watch, verify, record, following the state table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from sparkcluster.errors import FoundErrors, PlanError
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect.cluster import View, view_cluster
from sparkcluster.plan.records import current_lease
from sparkcluster.probing.start import Answer
from sparkcluster.release.serving import note_differences, refuse, replies, stop_on_wrong_answers, survey
from sparkcluster.release.states import Action, GroupState
from sparkcluster.release.walk import Options, Walk, stop_before_staging, whole
from sparkcluster.report import Report, count
from sparkcluster.runtime import observed, secrets
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec

# An engine that dies closes its API first; its rank is gone some seconds later.
DYING_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Up:
    """How ``up`` ended: serving, and whether that took a change.

    Attributes:
        view: the cluster as it was last seen.
        answers: what each group answered, by name.
        drift: addresses and GID indices that changed since a group was started, in lines, by group.
    """

    view: View
    changed: bool
    release: int
    answers: Mapping[str, Reply]
    seconds: float
    drift: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def up(fleet: Fleet, spec: Spec, options: Options, report: Report, probes: Calls[Answer] | None = None) -> Up:
    """Bring the cluster from whatever it is in to a verified endpoint for every group.

    ``probes`` are those that were sent already.

    Raises:
        FoundErrors: findings of severity error; nothing was changed.
        OtherPlan, NotServing: a group serves something else or not as expected, and is not dead; nothing was changed.
        LeaseHeld: another operator has the lease.
        StageError, LaunchError: with node, step and hint; no rank of the group that failed is left running.
    """
    began = time.monotonic()
    report.step("probe", count(len(fleet.hosts), "node"))
    view, groups = see(fleet, spec, options, report, probes)
    refuse(view, groups)
    note_differences(view, groups, report)
    if not {Action.START, Action.WATCH, Action.CLEAN} & {group.action for group in groups.values()}:
        stop_on_wrong_answers(view, groups)
        return Up(
            view,
            changed=False,
            release=view.newest.number if view.newest else 0,
            answers=replies(groups),
            seconds=time.monotonic() - began,
            drift={name: group.drift for name, group in groups.items() if group.drift},
        )
    secrets.check(spec)
    starting = [name for name, group in groups.items() if group.action is Action.START or group.replaced]
    if starting:
        # Fail before taking a lease, and before stopping what serves.
        try:
            stop_before_staging(view, starting)
        except (FoundErrors, PlanError):
            # With the lease held, what was found may be about ranks that its holder is starting.
            if current_lease(view.facts) is None:
                raise
    lease = Lease(fleet, cluster=spec.inventory.cluster, state_dir=spec.inventory.state_dir, operation="up")
    with lease.acquire(list(view.facts)):
        report.step("lease", count(len(view.facts), "node"))
        walk = Walk(lease.changer, spec, options, report)
        try:
            with walk.staging:
                answers = walk.to_serving(groups)
        except KeyboardInterrupt:
            raise walk.interrupted() from None
        done = Up(walk.view, changed=True, release=walk.number, answers=answers, seconds=time.monotonic() - began)
    observed.note(
        spec.inventory.cluster, "up", model=spec.playbook.model_name, seconds=round(done.seconds, 1),
        clear_caches=options.clear_caches, hub_offline=_offline(done.view),
    )  # fmt: skip
    return done


def _offline(view: View) -> bool:
    """Whether every rank was told to ask no hub (``HF_HUB_OFFLINE``)."""
    return all(node.env.get("HF_HUB_OFFLINE") == "1" for node in (view.plan.nodes.values() if view.plan else ()))


def see(
    fleet: Fleet, spec: Spec, options: Options, report: Report, probes: Calls[Answer] | None
) -> tuple[View, dict[str, GroupState]]:
    """The cluster and what each group answers; looked at again where an engine may be dying."""
    # First of all: an engine that has lost a node may keep a request waiting.
    view = whole(view_cluster(fleet, spec, probes=probes))
    groups = survey(fleet, view, report, replace=options.replace)
    if any(reply.problem in {"refused", "lost"} for reply in replies(groups).values()):
        time.sleep(DYING_S)
        view = whole(view_cluster(fleet, spec))
        groups = survey(fleet, view, report, replace=options.replace, before=groups)
    return view, groups
