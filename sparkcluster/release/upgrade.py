"""``upgrade``, ``rollback`` and ``restart``: which release is to serve, and ``up`` to let it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import FoundErrors, UsageError
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.findings import Finding
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import see, view_cluster
from sparkcluster.inspect.releases import Records, as_recorded, node_records
from sparkcluster.plan import image as images
from sparkcluster.plan.compare import versions
from sparkcluster.plan.cost import Difference
from sparkcluster.plan.diff import difference
from sparkcluster.plan.release_record import recorded_groups
from sparkcluster.release import rollback_target, stage
from sparkcluster.release.rollback_target import accept, last_start_s, spec_of
from sparkcluster.release.rollout import Rollout
from sparkcluster.release.serving import states, whole
from sparkcluster.release.states import Options, brief, differences
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
    return up(fleet, spec, dataclasses.replace(options, replace=True), report, operation="upgrade")


def resume(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """End a switch that was cut off: forward if it went forward, back if it went back.

    Where none is under way the newest release serves on, or is started again.

    Raises:
        UsageError: nothing was ever deployed, or what was begun is not accepted.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = whole(see(fleet, spec))
    switch = view.switch
    if switch is None and view.newest is None:
        raise UsageError("no release was ever recorded, and no switch begun", hint="sparkcluster up INVENTORY")
    if switch is None:
        report.note(f"no switch was cut off; release {view.source} is verified")
        return rollback(fleet, spec, view.source, options, report)
    operator, back = switch.document["operator"], switch.document["back"]
    if switch.whole and back is None:
        report.note(f"going on with the switch from release {switch.source} that {operator} began")
        origin = spec_of(spec, switch.document, switch.document["number"])
        return upgrade(fleet, accept(origin, report, yes=options.yes), options, report)
    text = f"going on with the way back to release {back} that {operator} began"
    if not switch.whole:  # for the first time or for the way back: back is safe in both cases
        text, back = f"not every node has the switch that {operator} began", switch.source
        if not switch.source:
            raise UsageError(f"{text}, and nothing served before", hint="sparkcluster up INVENTORY")
        text += f": back to release {switch.source}"
    report.note(text)
    return rollback(fleet, spec, back, options, report)


def restart(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Rollout:
    """Start anew what is recorded, with the API key of today.

    Raises:
        UsageError: nothing is recorded, or a switch was cut off; or as ``rollback``.
        RolledBack: it failed, and was started once more.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = whole(see(fleet, spec))
    if view.switch:
        raise UsageError("a switch to another release was cut off", hint="sparkcluster upgrade INVENTORY --resume")
    if view.newest is None:
        raise UsageError(f"{spec.inventory.cluster} has no release yet", hint="sparkcluster up INVENTORY")
    return rollback(fleet, spec, view.newest.number, options, report, operation="restart")


def rollback(
    fleet: Fleet,
    spec: Spec,
    number: int | None,
    options: Options,
    report: Report,
    *,
    operation: Operation = "rollback",
) -> Rollout:
    """Let release ``number`` serve again; None stands for the last one that was another.

    With ``operation`` restart its groups that serve are started anew.

    Raises:
        UsageError: there is none, it is not kept any more, or it is not accepted.
        RolledBack: it failed, and what served before serves again.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    records, _ = node_records(fleet, spec)
    report.step("find", f"release {number}" if number else "the release before")
    number = number or _stopped(fleet, spec) or _before(records, spec)
    report.step("find", f"release {number}")
    target = rollback_target.find(spec, number, records, report, yes=options.yes)
    written = {group.name for group in spec.inventory.groups} or {ONLY_GROUP}
    gone = [name for name in target.groups if name not in written]
    if gone:
        text = f"release {number} has groups that are not in the inventory: {', '.join(gone)}"
        raise UsageError(text, hint="sparkcluster releases INVENTORY   lists others")
    options = dataclasses.replace(options, replace=True, clear_caches=False)
    done = up(fleet, target.spec, options, report, operation=operation, release=target)
    done.restored = number
    return done


def _stopped(fleet: Fleet, spec: Spec) -> int | None:
    """The number of the release that served last, if a switch was begun and not ended, or nothing runs."""
    view = whole(see(fleet, spec))
    if view.switch is not None and view.switch.source:
        return view.switch.source
    return view.newest.number if view.newest and not view.ranks.anything else None


def _before(answers: Mapping[str, Records], spec: Spec) -> int:
    """The number of the newest release that is another than the last one, and is kept.

    None counts that is in the middle of a switch, or has a group that has not answered.
    """
    records: dict[int, ReleaseFact] = {}
    documents = [document for answer in answers.values() for document in answer.records]
    for number in {each["number"] for each in documents if isinstance(each.get("number"), int)}:
        with contextlib.suppress(UsageError):  # it cannot be read
            if found := as_recorded(answers, number):
                records[number] = found[1]
    last = max(records, default=0)
    kept = {int(number) for answer in answers.values() for number in answer.images or {}} or records.keys()
    others = [
        number
        for number, release in records.items()
        if number < last
        and number in kept
        and not release.record.get("partial")
        and all(group.verified for group in recorded_groups(release.record).values())
        and _differ(release, records[last])
    ]
    if not others:
        raise UsageError(
            f"{spec.inventory.cluster} has no release to go back to",
            hint="sparkcluster releases INVENTORY   lists what was deployed",
        )
    return max(others)


def _differ(one: ReleaseFact, other: ReleaseFact) -> bool:
    """Whether two releases run something else: what serves again has its arguments in another order."""
    old, new = ([group.plan for group in recorded_groups(each.record).values()] for each in (one, other))
    return len(old) != len(new) or any(difference(*plans) for plans in zip(old, new, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What would be done.

    Attributes:
        source: number of the release that serves; None without one.
        model: that it serves; None likewise.
        changes: of model, image and settings, each with what it is called.
        differences: between what runs and what would, with what each costs.
        staging: what would move.
        versions: changes of versions inside the image, in lines; unknown, so none, while no node has the image.
        known: whether every node has the image.
        start_s: how long the last start of this model and image took, until its answer was verified: about the
            downtime; None if unknown.
        findings: what speaks against it.
    """

    source: int | None
    model: str | None
    changes: tuple[tuple[str, str], ...]
    differences: tuple[Difference, ...]
    staging: StageReport
    versions: tuple[str, ...]
    known: bool
    start_s: float | None
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """The document of ``upgrade --dry-run``."""
        return {
            "from": self.source,
            "differences": [each.as_json() for each in self.differences],
            **{key: value for key, value in self.staging.as_json().items() if key in {"staging", "expected"}},
            "versions": list(self.versions),
            "image_known": self.known,
            "expected_downtime_s": self.start_s,
            "findings": [each.as_json() for each in self.findings],
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
    changed: list[str] = []
    plan = view.planned
    recorded = next((group.recorded for group in groups.values() if group.recorded), None)
    for name, group in groups.items():
        if group.recorded is None:
            continue
        now = images.versions(spec.playbook.engine, view.facts, [n for n in group.recorded.ranks if n in view.facts])
        # Without the image only the driver is known, which an upgrade leaves as it is.
        if view.plan is not None:
            changed += [f"{spec.inventory.called(name)}: {line}" for line in versions(group.recorded.versions, now)]
    starts = [last_start_s(view.newest, plan, name) for name, each in groups.items() if each.recorded and plan]
    known = [each for each in starts if each is not None]
    return Preview(
        source=view.newest.number if view.newest else None,
        model=recorded.plan.get("model") if recorded else None,
        changes=tuple(brief(recorded, spec, "-v")),
        differences=tuple(each for group in groups.values() for each in differences(view, group)),
        staging=stage.expected(fleet, view, stage.Options(), report),
        versions=tuple(changed),
        known=view.plan is not None,
        start_s=max(known) if len(known) == len(starts) and known else None,
        findings=view.findings,
    )
