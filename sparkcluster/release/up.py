"""``up``: probe, check, plan, stage, start, watch, verify, record, as the state table says."""

from __future__ import annotations

import dataclasses
import time

from sparkcluster.errors import FoundErrors
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect.cluster import View, look
from sparkcluster.probing.start import Answer
from sparkcluster.release.settled import settled
from sparkcluster.release.states import TABLE, Action, state_of
from sparkcluster.release.walk import Options, Walk, stop_before_staging
from sparkcluster.report import Report, count
from sparkcluster.runtime import secrets
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec


@dataclasses.dataclass(frozen=True, slots=True)
class Up:
    """How ``up`` ended: serving, and whether that took a change.

    Attributes:
        view: the cluster as it was last looked at.
        answers: what each group answered, by name.
    """

    view: View
    changed: bool
    release: int
    answers: dict[str, Reply]
    seconds: float


def up(fleet: Fleet, spec: Spec, options: Options, report: Report, asked: Calls[Answer] | None = None) -> Up:
    """Bring the cluster from whatever it is in to a verified endpoint.

    Args:
        fleet: the nodes.
        spec: inventory and playbook.
        options: the user's flags.
        report: where progress is reported.
        asked: the probe, if it was sent already.

    Raises:
        FoundErrors: findings of severity error; nothing was changed.
        OtherPlan: healthy, but serving something else; nothing was changed.
        LeaseHeld: another operator is at it.
        StageError, LaunchError: with node, step and hint; no rank is left running.
    """
    began = time.monotonic()
    report.step("probe", count(len(fleet.hosts), "node"))
    view = look(fleet, spec, asked=asked)
    if view.collected.errors:
        # Not asked first: an engine that has lost a node may keep whoever asks it waiting.
        raise FoundErrors(view.findings)
    answers = settled(fleet, view, report)
    if answers is not None:
        number = view.held.release() or 0
        return Up(view, changed=False, release=number, answers=answers, seconds=time.monotonic() - began)
    secrets.check(spec)
    if TABLE[state_of(view)][0] is Action.START:
        # Not even a lease is taken for what would stop anyway.
        stop_before_staging(view)
    with Lease(fleet, cluster=spec.inventory.cluster, state_dir=spec.inventory.state_dir, operation="up").acquire(
        list(view.facts)
    ) as lease:
        report.step("lease", f"epoch {lease.epoch}")
        walk = Walk(fleet, spec, options, report, lease.epoch)
        try:
            answers = walk.to_serving()
        except KeyboardInterrupt:
            raise walk.interrupted() from None
        return Up(walk.view, changed=True, release=walk.number, answers=answers, seconds=time.monotonic() - began)


__all__ = ["Options", "Up", "up"]
