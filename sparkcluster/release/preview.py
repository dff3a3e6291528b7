"""What ``upgrade`` would do, from a look that changes nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkcluster.errors import FoundErrors
from sparkcluster.findings import Finding
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import view_cluster
from sparkcluster.plan import image as images
from sparkcluster.plan.compare import versions
from sparkcluster.plan.cost import Difference
from sparkcluster.release import stage
from sparkcluster.release.outcome import last_start_s
from sparkcluster.release.serving import states
from sparkcluster.release.states import brief, differences
from sparkcluster.report import Report
from sparkcluster.spec import Spec
from sparkcluster.staging.run import StageReport


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
    starts = []
    plan = view.planned
    recorded = next((group.recorded for group in groups.values() if group.recorded), None)
    for name, group in groups.items():
        if group.recorded is None:
            continue
        now = images.versions(spec.playbook.engine, view.facts, [n for n in group.recorded.ranks if n in view.facts])
        # Without the image only the driver is known, which an upgrade leaves as it is.
        if view.plan is not None:
            changed += [f"{spec.inventory.called(name)}: {line}" for line in versions(group.recorded.versions, now)]
        starts.append(last_start_s(view.newest, plan, name) if plan else None)
    known = [each for each in starts if each is not None]
    return Preview(
        source=view.newest.number if view.newest else None,
        model=recorded.plan.get("model") if recorded else None,
        changes=tuple(brief(recorded, spec, "-v")),
        differences=tuple(each for group in groups.values() for each in differences(view, group)),
        staging=stage.stage(fleet, spec, stage.Options(dry_run=True), report),
        versions=tuple(changed),
        known=view.plan is not None,
        start_s=max(known) if len(known) == len(starts) and known else None,
        findings=view.findings,
    )
