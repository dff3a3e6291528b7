"""``stage``: copy weights, image and what the image lacks to every node; nothing is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import FoundErrors, PlanError, StageError
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View, view_cluster
from sparkcluster.release import pinned_revisions
from sparkcluster.report import Report, count, size
from sparkcluster.runtime import Changer, observed
from sparkcluster.runtime.lease import Lease, Operation
from sparkcluster.spec import Spec, consent
from sparkcluster.staging import playbook_files, ray, vocabulary
from sparkcluster.staging.artifacts import Artifact
from sparkcluster.staging.chain import last_rates
from sparkcluster.staging.copy import Step, stage_errors
from sparkcluster.staging.copy_request import Settings
from sparkcluster.staging.notes import HERE
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.run import StageReport
from sparkcluster.staging.run import stage as stage_all
from sparkcluster.staging.transfers import Copied
from sparkcluster.topology.model import Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``stage``.

    Attributes:
        what: weights, image or both; Ray for an image without one comes with the image.
        dry_run: only report what would be done.
        verify: compare the content of weights on all nodes, also where nothing is missing.
        encrypt: whether copies are encrypted on cables too; None as the inventory says.
        limit_bytes_s: the most that each node sends, likewise.
        given: where on this machine the one artifact of ``what`` is, for the case that no node has it.
        yes: accept without asking an image that is copied to nodes.
    """

    what: Sequence[Artifact] = ("weights", "image")
    dry_run: bool = False
    verify: bool = False
    encrypt: bool | None = None
    limit_bytes_s: int | None = None
    given: Path | None = None
    yes: bool = False

    def settings(self, spec: Spec) -> Settings:
        """How files are copied: as the flags say, else the inventory."""
        staging = spec.inventory.staging
        limit = int(staging.limit_mb_s * 1e6) if staging.limit_mb_s else None
        lines = observed.read(spec.inventory.cluster)[0]
        return Settings(
            encrypt=staging.encrypt if self.encrypt is None else self.encrypt,
            limit_bytes_s=self.limit_bytes_s or limit,
            rates=last_rates(lines),
            image_rates=last_rates(lines, "image"),
            yes=self.yes,
        )


def stage(fleet: Fleet, spec: Spec, options: Options, report: Report) -> StageReport:
    """Copy what is missing to every node.

    Raises:
        FoundErrors: a node cannot be reached; nothing was changed.
        LeaseHeld: another operator holds the lease.
        StageError: something did not reach a node.
    """
    if not options.dry_run:
        consent.require(spec)
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = view_cluster(fleet, spec)
    if view.collected.errors:
        raise FoundErrors(view.collected.findings())
    lease = staging_lease(fleet, spec, "stage")
    if options.dry_run:
        return copy_missing(lease.changer, view, options, report)[0]
    with lease.acquire(list(view.facts)):
        changer = dataclasses.replace(lease.changer, tell=report.note)
        # Facts from before the lease may be stale.
        return copy_missing(changer, _complete_view(changer, spec), options, report)[0]


def _complete_view(changer: Changer, spec: Spec, *, bring_ray: bool | None = None) -> View:
    """The cluster, of which every node has answered; StageError where one has not."""
    view = view_cluster(changer.fleet, spec, bring_ray=bring_ray)
    for name, error in view.collected.errors.items():
        with stage_errors(Step("stage", changer.lease, lambda: False), name):
            raise error
    return view


def staging_lease(fleet: Fleet, spec: Spec, operation: Operation) -> Lease:
    """The lease of staging, not yet acquired."""
    inventory = spec.inventory
    return Lease(fleet, cluster=inventory.cluster, state_dir=inventory.state_dir, operation=operation, kind="staging")


def copy_for_start(lease: Lease, view: View, report: Report, *, yes: bool = False) -> View:
    """Copy what a start misses; the cluster then. ``lease``, that of staging, is acquired where something is missing.

    It stays so until the caller closes it.

    Raises:
        LeaseHeld: something is missing, and another operator is staging.
        PlanError, StageError, LeaseLost: as ``copy_missing``.
    """
    options = Options(yes=yes)
    report.step("copy", " and ".join(options.what))
    found, _ = _copy(lease.changer, view, dataclasses.replace(options, dry_run=True), report)
    if not any(staging.missing for staging in found.stagings):
        pinned_revisions.compare(view, found.commits, report)
        _told(found, report)
        return view
    if not lease.epochs:
        lease.acquire(list(view.facts))
    changer = dataclasses.replace(lease.changer, tell=report.note)
    # What is missing may have been brought before the lease was ours.
    done, view = _copy(changer, _complete_view(changer, view.spec), options, report)
    _told(done, report)
    return view


def copy_missing(changer: Changer, view: View, options: Options, report: Report) -> tuple[StageReport, View]:
    """Copy what is missing to every node, unless in a dry run under a lease; what was done, and the cluster then.

    Raises:
        PlanError: no topology can be made.
        StageError: something did not reach a node, or a node is silent.
        LeaseLost: another operator has the lease.
    """
    if not options.dry_run:
        report.step("copy", " and ".join(options.what))
    done, view = _copy(changer, view, options, report)
    if not options.dry_run:
        _told(done, report)
    return done, view


def _told(done: StageReport, report: Report) -> None:
    """Report what was copied, in place of what was to be."""
    nodes = {copied.node for copied in done.copied}
    moved = f"{size(sum(copied.bytes for copied in done.copied))} to {count(len(nodes), 'Spark')}"
    report.step("copy", moved if nodes else "nothing is missing")


def _copy(changer: Changer, view: View, options: Options, report: Report) -> tuple[StageReport, View]:
    if view.topology is None:
        raise view.unplanned or PlanError("these nodes have no usable topology", step="copy")
    done = stage_all(
        changer,
        view.facts,
        view.topology,
        view.spec,
        what=options.what,
        dry_run=options.dry_run,
        verify=options.verify,
        progress=report.progress,
        report=report,
        settings=options.settings(view.spec),
        given=options.given,
    )
    # An image that is there under no name is brought without a byte.
    if done.copied or (any(staging.missing for staging in done.stagings) and not options.dry_run):
        view = _complete_view(changer, view.spec)
    if not options.dry_run:
        pinned_revisions.compare(view, done.commits, report)
    if "weights" in options.what:
        done, view = _vocabularies(changer, view, done, options, report)
        done, view = _beside(changer, view, done, options, report)
    if "image" not in options.what or view.topology is None or not view.bring_ray:
        return done, view
    lacking = ray.find_missing(view.spec, view.facts, view.topology)
    if lacking is None:
        return done, view
    done = dataclasses.replace(done, stagings=(*done.stagings, lacking))
    if options.dry_run or not lacking.missing:
        return _with_ray(done, view, view.topology, lacking, options) if lacking.missing else done, view
    report.step("copy", lacking.name)
    try:
        copied = ray.stage(changer, view.facts, view.topology, lacking, progress=report.progress)
    except StageError as error:
        if not can_do_without_ray(view.spec, error):
            raise
        report.note(f"warning: {error.message}; the ranks will use executor native")
        return done, _complete_view(changer, view.spec, bring_ray=False)
    return dataclasses.replace(done, copied=(*done.copied, *copied)), _complete_view(changer, view.spec)


def _vocabularies(
    changer: Changer, view: View, done: StageReport, options: Options, report: Report
) -> tuple[StageReport, View]:
    """Bring what the engine would download when it starts."""
    lacking = vocabulary.find_missing(view.spec, view.facts)
    copied = list(done.copied)
    for each, staging in lacking if not options.dry_run else ():
        copied += vocabulary.stage(changer, view.facts, each, staging, report.progress)
    changed = len(copied) > len(done.copied)
    done = _from_here(done, [staging for _, staging in lacking], copied, options)
    return done, _complete_view(changer, view.spec) if changed else view


def _beside(
    changer: Changer, view: View, done: StageReport, options: Options, report: Report
) -> tuple[StageReport, View]:
    """Bring what the playbook mounts from its own directory."""
    lacking = playbook_files.find_missing(view.spec, view.facts)
    copied = list(done.copied)
    for each, staging in lacking if not options.dry_run else ():
        copied += playbook_files.stage(changer, view.facts, each, staging, report.progress)
    changed = len(copied) > len(done.copied)
    done = _from_here(done, [staging for _, staging in lacking], copied, options)
    return done, _complete_view(changer, view.spec) if changed else view


def _with_ray(done: StageReport, view: View, topology: Topology, lacking: Staging, options: Options) -> StageReport:
    """``done`` with what would move of Ray."""
    from sparkcluster.staging.expected import moves  # noqa: PLC0415 - few runs need it

    names = [name for name, _ in lacking.missing]
    sizes = dict.fromkeys(names, ray.archive_bytes(view.facts[names[0]]))
    settings = options.settings(view.spec)
    found = moves(lacking, view.facts, topology, settings, sizes=sizes, outside=HERE)
    return dataclasses.replace(done, expected={**done.expected, lacking.name: found})


def _from_here(
    done: StageReport, stagings: Sequence[Staging], copied: Sequence[Copied], options: Options
) -> StageReport:
    """``done`` with ``stagings``, which this machine sends to every node that lacks them, or would in a dry run."""
    expected = dict(done.expected)
    if options.dry_run and stagings:
        from sparkcluster.staging.expected import from_outside  # noqa: PLC0415 - few runs need it

        for each in stagings:
            expected[each.name] = tuple(from_outside(node, HERE, each.size_bytes) for node, _ in each.missing)
    all_stagings = (*done.stagings, *stagings)
    return dataclasses.replace(done, stagings=all_stagings, copied=tuple(copied), expected=expected)


def can_do_without_ray(spec: Spec, error: StageError) -> bool:
    """Whether executor native may replace Ray where it could not be fetched.

    Not where a copy to a node failed: that is an error to fix.
    """
    return spec.playbook.executor == "auto" and error.node is None
