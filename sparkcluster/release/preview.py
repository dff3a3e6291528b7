"""What ``upgrade`` would do, from a look that changes nothing."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sparkcluster.errors import FoundErrors
from sparkcluster.findings import Finding
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import view_cluster
from sparkcluster.plan import software
from sparkcluster.plan.compare import versions
from sparkcluster.plan.cost import Difference
from sparkcluster.release import stage
from sparkcluster.release.outcome import last_start_s
from sparkcluster.release.serving import states
from sparkcluster.release.states import differences, settings
from sparkcluster.report import Report
from sparkcluster.spec import Spec
from sparkcluster.staging.run import StageReport


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What would be done.

    Attributes:
        source: number of the release that serves; None without one.
        model, image: of that release, and what they would be.
        written: keys of the playbook's ``args`` and ``env`` that differ, with both values, in lines.
        differences: between what runs and what would, with what each costs.
        staging: what would move.
        versions: changes of versions inside the image, in lines; unknown, so none, while no node has the image.
        known: whether every node has the image.
        start_s: how long the last start of this model and image took, until its answer was verified: about the
            downtime; None if unknown.
        findings: what speaks against it.
    """

    source: int | None
    model: tuple[str | None, str]
    image: tuple[str | None, str | None]
    written: tuple[str, ...]
    differences: tuple[Difference, ...]
    staging: StageReport
    versions: tuple[str, ...]
    known: bool
    start_s: float | None
    findings: tuple[Finding, ...]

    def lines(self) -> list[str]:
        """What differs, without variables that sparkcluster sets whatever is written."""
        written = {line.split()[0] for line in self.written}
        found = [line for each in self.differences for line in each.shown()]
        variables = [re.search(r": env (\w+): ", line) for line in found]
        return [line for line, env in zip(found, variables, strict=True) if env is None or env[1] in written]

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
    written: dict[str, None] = {}
    plan = view.plan or view.draft
    old: dict[str, Any] = {}
    for name, group in groups.items():
        if group.recorded is None:
            continue
        now = software.versions(spec.playbook.engine, view.facts, [n for n in group.recorded.ranks if n in view.facts])
        # Without the image only the driver is known, which an upgrade leaves as it is.
        if view.plan is not None:
            changed += [f"{spec.inventory.called(name)}: {line}" for line in versions(group.recorded.versions, now)]
        old = group.recorded.plan
        written |= dict.fromkeys(settings(group.recorded.playbook or {}, spec))
        starts.append(last_start_s(view.newest, plan, name) if plan else None)
    known = [each for each in starts if each is not None]
    return Preview(
        source=view.newest.number if view.newest else None,
        model=(old.get("model"), spec.playbook.model_name),
        image=(old.get("image"), spec.reference if spec.inventory.runtime.kind == "docker" else None),
        written=tuple(written),
        differences=tuple(each for group in groups.values() for each in differences(view, group)),
        staging=stage.stage(fleet, spec, stage.Options(dry_run=True), report),
        versions=tuple(changed),
        known=view.plan is not None,
        start_s=max(known) if len(known) == len(starts) and known else None,
        findings=view.findings,
    )
