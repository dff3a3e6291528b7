"""``upgrade``, ``rollback`` and ``restart``: choose the release to serve, and call ``up`` with it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import FoundErrors, UsageError
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View, connected, unset, view_cluster
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
    """Replace the running release by ``spec``, or roll back.

    Raises:
        RolledBack: the new release failed, and the old one serves again.
        SparkclusterError: as ``up``.
    """
    return up(fleet, Desired(spec, dataclasses.replace(options, replace=True), "upgrade"), report)


def resume(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """Finish an interrupted upgrade or rollback, in its direction.

    Without one, the newest release keeps serving, or is restarted.

    Raises:
        UsageError: there is no release yet, or the journal's playbook is not accepted.
    """
    view = _deployed(fleet, spec, report)
    switch = view.switch
    if switch is None:
        report.note(f"no interrupted upgrade or rollback; verifying release {view.source}")
        return rollback(fleet, spec, view.source, options, report)
    operator = switch.document["operator"]
    # A journal that is not on every node was just being written; rolling back is safe in any case.
    back = switch.document["back"] if switch.whole else switch.source
    if back is None:
        report.note(f"continuing the upgrade from release {switch.source}, started by {operator}")
        origin = spec_of(spec, switch.document, switch.document["number"])
        return upgrade(fleet, accept(origin, report, yes=options.yes), options, report)
    report.note(f"rolling back to release {back}: a rollback or upgrade by {operator} was interrupted")
    return rollback(fleet, spec, back, options, report)


def restart(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """Restart the recorded release, with the current API key.

    Raises:
        UsageError: no release is recorded, or an upgrade or rollback was interrupted; or as ``rollback``.
        RolledBack: the restart failed, and a second one succeeded.
    """
    view = _deployed(fleet, spec, report)
    if view.switch:
        raise UsageError("an upgrade or rollback was interrupted", hint="sparkcluster upgrade INVENTORY --resume")
    return rollback(fleet, spec, view.source, options, report, operation="restart")


def _deployed(fleet: Fleet, spec: Spec, report: Report) -> View:
    """The current view; UsageError if no release was ever recorded."""
    view = whole(connected(fleet, spec, report))
    if not view.source:
        raise UsageError(f"{spec.inventory.cluster} has no release yet", hint="sparkcluster up INVENTORY")
    return view


def rollback(
    fleet: Fleet, spec: Spec, number: int | None, options: Options, report: Report, *, operation: Operation = "rollback"
) -> Rollout:
    """Roll back to release ``number``; None for the last different one.

    With ``operation`` restart, its serving groups are restarted.

    Raises:
        UsageError: there is no such release, it is no longer kept, or it is not accepted.
        RolledBack: it failed, and the previous release serves again.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    records, _ = node_records(fleet, spec)
    if number is None:
        # After an interrupted switch, or if nothing runs, this is the release that served last.
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
    """The number of the newest kept release that differs from the last one.

    Releases in the middle of a switch, with an unverified group, or made by ``bench`` do not count.
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
    hint = "sparkcluster releases INVENTORY   lists the releases"
    raise UsageError(f"{spec.inventory.cluster} has no rollback target", hint=hint)


def _differ(one: ReleaseFact, other: ReleaseFact) -> bool:
    """Whether two releases differ; a release that serves again may have its arguments in another order."""
    old, new = ([group.plan for group in recorded_groups(each.record).values()] for each in (one, other))
    return len(old) != len(new) or any(difference(*plans) for plans in zip(old, new, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """The preview of an upgrade.

    Attributes:
        view: the current cluster, with the plan.
        serves: the first group of the newest release; None without one.
        differences: between the running and the new release, with their costs.
        staging: what would be copied.
        versions: changed versions inside the image, as lines; empty while no node has the image.
        start_s: duration of the last start of this model and image until it was verified, about the downtime; None if
            unknown.
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
    """Preview an upgrade to ``spec``.

    Raises:
        FoundErrors: a node did not answer.
        SparkclusterError: as ``stage --dry-run``.
    """
    view = view_cluster(fleet, spec)
    if view.collected.errors:
        raise FoundErrors([*view.collected.findings(), *unset(spec)], "nothing was changed")
    groups = states(view)
    recorded = [group.recorded for group in groups.values() if group.recorded]
    changed: list[str] = []
    # Without the image only the driver is known, which an upgrade does not change.
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
