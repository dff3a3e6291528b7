"""``upgrade``, ``rollback`` and ``restart``: which release is to serve, and ``up`` to let it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import FoundErrors, UsageError
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View, see, view_cluster
from sparkcluster.inspect.releases import Records, as_recorded, node_records
from sparkcluster.plan import image as images
from sparkcluster.plan.compare import versions
from sparkcluster.plan.cost import Difference
from sparkcluster.plan.diff import difference
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.release import rollback_target, stage
from sparkcluster.release.rollback_target import accept, last_start_s, spec_of
from sparkcluster.release.rollout import Rollout
from sparkcluster.release.serving import states, whole
from sparkcluster.release.states import Desired, Options, differences
from sparkcluster.release.up import up
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import Operation
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import ONLY_GROUP
from sparkcluster.staging.run import StageReport


def upgrade(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """Let ``spec`` serve in place of what does, or go back.

    Raises:
        RolledBack: the new release failed, and the old one serves again.
        SparkclusterError: as ``up``.
    """
    return up(fleet, Desired(spec, dataclasses.replace(options, replace=True), "upgrade"), report)


def resume(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """End a switch that was cut off: forward if it went forward, back if it went back.

    Where none is under way the newest release serves on, or is started again.

    Raises:
        UsageError: nothing was ever deployed, or what was begun is not accepted.
    """
    view = _deployed(fleet, spec, report)
    switch = view.switch
    if switch is None:
        report.note(f"no switch was cut off; release {view.source} is verified")
        return rollback(fleet, spec, view.source, options, report)
    operator = switch.document["operator"]
    # Not on every node for the first time or for the way back: back is safe in both cases.
    back = switch.document["back"] if switch.whole else switch.source
    if back is None:
        report.note(f"going on with the switch from release {switch.source} that {operator} began")
        origin = spec_of(spec, switch.document, switch.document["number"])
        return upgrade(fleet, accept(origin, report, yes=options.yes), options, report)
    report.note(f"going back to release {back}: {operator} began that, or a switch that not every node has")
    return rollback(fleet, spec, back, options, report)


def restart(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """Start anew what is recorded, with the API key of today.

    Raises:
        UsageError: nothing is recorded, or a switch was cut off; or as ``rollback``.
        RolledBack: it failed, and was started once more.
    """
    view = _deployed(fleet, spec, report)
    if view.switch:
        raise UsageError("a switch to another release was cut off", hint="sparkcluster upgrade INVENTORY --resume")
    return rollback(fleet, spec, view.source, options, report, operation="restart")


def _deployed(fleet: Fleet, spec: Spec, report: Report) -> View:
    """The cluster as it is; UsageError where no release was ever recorded."""
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = whole(see(fleet, spec))
    if not view.source:
        raise UsageError(f"{spec.inventory.cluster} has no release yet", hint="sparkcluster up INVENTORY")
    return view


def rollback(
    fleet: Fleet, spec: Spec, number: int | None, options: Options, report: Report, *, operation: Operation = "rollback"
) -> Rollout:
    """Let release ``number`` serve again; None stands for the last one that was another.

    With ``operation`` restart its groups that serve are started anew.

    Raises:
        UsageError: there is none, it is not kept any more, or it is not accepted.
        RolledBack: it failed, and what served before serves again.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    records, _ = node_records(fleet, spec)
    if number is None:
        # Where a switch was cut off, or nothing runs, that is the one that served last.
        view = _deployed(fleet, spec, report)
        number = view.source if view.switch or not view.ranks.anything else _before(records, spec)
    report.step("find", f"release {number}")
    target = rollback_target.find(spec, number, records, report, yes=options.yes)
    written = {group.name for group in spec.inventory.groups} or {ONLY_GROUP}
    gone = [name for name in target.groups if name not in written]
    if gone:
        text = f"release {number} has groups that are not in the inventory: {', '.join(gone)}"
        raise UsageError(text, hint="sparkcluster releases INVENTORY   lists others")
    options = dataclasses.replace(options, replace=True)
    return up(fleet, Desired(target.spec, options, operation, target), report)


def _before(answers: Mapping[str, Records], spec: Spec) -> int:
    """The number of the newest release that is another than the last one, and is kept.

    None counts that is in the middle of a switch, or has a group that has not answered, or that ``bench`` made.
    """
    documents = [document for answer in answers.values() for document in answer.records]
    found: list[ReleaseFact] = []
    for number in sorted({each["number"] for each in documents if isinstance(each.get("number"), int)}, reverse=True):
        with contextlib.suppress(UsageError):  # it cannot be read
            found.append(as_recorded(answers, number)[1])
    kept = {int(number) for answer in answers.values() for number in answer.images or {}}
    for release in found[1:]:
        ended = not release.record.get("partial") and release.record.get("operation") != "bench"
        answered = all(group.verified for group in recorded_groups(release.record).values())
        if ended and answered and (not kept or release.number in kept) and _differ(release, found[0]):
            return release.number
    hint = "sparkcluster releases INVENTORY   lists what was deployed"
    raise UsageError(f"{spec.inventory.cluster} has no release to go back to", hint=hint)


def _differ(one: ReleaseFact, other: ReleaseFact) -> bool:
    """Whether two releases run something else: what serves again has its arguments in another order."""
    old, new = ([group.plan for group in recorded_groups(each.record).values()] for each in (one, other))
    return len(old) != len(new) or any(difference(*plans) for plans in zip(old, new, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What would be done.

    Attributes:
        view: the cluster as it is, with the plan.
        serves: what the newest release recorded of its first group; None without one.
        differences: between what runs and what would, with what each costs.
        staging: what would move.
        versions: changes of versions inside the image, in lines; unknown, so none, while no node has the image.
        start_s: how long the last start of this model and image took, until its answer was verified: about the
            downtime; None if unknown.
    """

    view: View
    serves: RecordedGroup | None
    differences: tuple[Difference, ...]
    staging: StageReport
    versions: tuple[str, ...]
    start_s: float | None

    def as_json(self) -> dict[str, Any]:
        """The document of ``upgrade --dry-run``."""
        return {
            "from": self.view.newest.number if self.view.newest else None,
            "differences": [each.as_json() for each in self.differences],
            **{key: value for key, value in self.staging.as_json().items() if key in {"staging", "expected"}},
            "versions": list(self.versions),
            "image_known": self.view.plan is not None,
            "expected_downtime_s": self.start_s,
            "findings": [each.as_json() for each in self.view.findings],
        }


def preview(fleet: Fleet, spec: Spec, report: Report) -> Preview:
    """Look at the cluster as an upgrade to ``spec`` would find it.

    Raises:
        FoundErrors: a node did not answer.
        SparkclusterError: as ``stage --dry-run``.
    """
    view = view_cluster(fleet, spec)
    if view.collected.errors:
        raise FoundErrors(view.collected.findings())
    groups = states(view)
    recorded = [group.recorded for group in groups.values() if group.recorded]
    changed: list[str] = []
    # Without the image only the driver is known, which an upgrade leaves as it is.
    for old in recorded if view.plan else ():
        now = images.versions(spec.playbook.engine, view.facts, [node for node in old.ranks if node in view.facts])
        changed += [f"{spec.inventory.called(old.name)}: {line}" for line in versions(old.versions, now)]
    starts = [last_start_s(view.newest, view.planned, each.name) for each in recorded if view.planned]
    return Preview(
        view,
        serves=recorded[0] if recorded else None,
        differences=tuple(each for group in groups.values() for each in differences(view, group)),
        staging=stage.expected(fleet, view, stage.Options(), report),
        versions=tuple(changed),
        start_s=max(filter(None, starts), default=None) if all(starts) else None,
    )
