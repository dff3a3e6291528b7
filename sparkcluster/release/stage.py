"""``stage``: copy weights, image and what the image lacks to every node; starts nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkcluster.errors import FoundErrors, PlanError, StageError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.engine import engine_of, expected_images
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View, changed, first_staged, staged_file, view_cluster
from sparkcluster.output_file import write
from sparkcluster.plan.image import ray_name
from sparkcluster.printable import shell
from sparkcluster.report import Report, count, size
from sparkcluster.runtime import Changer, observed
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec, consent, powers
from sparkcluster.spec.playbook import Companion
from sparkcluster.staging import ray
from sparkcluster.staging.artifacts import Artifact
from sparkcluster.staging.chain import last_rates
from sparkcluster.staging.copy_request import Settings
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.run import StageReport, bring, find
from sparkcluster.staging.transfers import Transfers


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``stage``.

    Attributes:
        what: weights, image or both; with the image also Ray, if the image lacks it.
        dry_run: only report what would be done.
        verify: compare the content of weights on all nodes, even if nothing is missing.
        encrypt: whether copies over cables are encrypted too; None for the inventory's setting.
        limit_bytes_s: limit of each node's sending rate; None for the inventory's setting.
        given: local copy of the one artifact of ``what``, used if no node has it.
        yes: accept an image that is copied to nodes without asking.
    """

    what: Sequence[Artifact] = ("weights", "image")
    dry_run: bool = False
    verify: bool = False
    encrypt: bool | None = None
    limit_bytes_s: int | None = None
    given: Path | None = None
    yes: bool = False


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
        raise FoundErrors(view.collected.findings(), "nothing was changed")
    if options.dry_run:
        return expected(fleet, view, options, report)
    with contextlib.ExitStack() as leases:
        lease = Lease(fleet, spec.inventory, "stage", "staging")
        acquire = functools.cache(lambda: leases.enter_context(lease.acquire(list(view.facts))).changer)
        done = copy(fleet, view, options, report, acquire)
        now = view_cluster(fleet, spec) if any(staging.missing for staging in done.stagings) else view
        compare_pinned(now, report)
        if "image" not in options.what:
            return done
        brought, _ = bring_ray(now, report, acquire, options)
    return dataclasses.replace(
        done,
        stagings=(*done.stagings, *brought.stagings),
        copied=(*done.copied, *brought.copied),
        warnings=(*done.warnings, *brought.warnings),
    )


def expected(fleet: Fleet, view: View, options: Options, report: Report) -> StageReport:
    """What ``stage`` would copy, including Ray, and from where each node would get it; changes nothing."""
    from sparkcluster.staging.expected import expect  # noqa: PLC0415 - few runs need it

    run = _transfers(Lease(fleet, view.spec.inventory, "stage", "staging").changer, view, options, report)
    stagings = find(run, view.spec, options.what, options.given)
    if "image" in options.what and (lacking := lacking_ray(view)) is not None:
        stagings.append(lacking)
    moves = {staging.name: found for staging in stagings if staging.missing and (found := expect(run, staging))}
    return StageReport(tuple(stagings), expected=moves)


def copy(fleet: Fleet, view: View, options: Options, report: Report, acquire: Callable[[], Changer]) -> StageReport:
    """Copy what is missing, except Ray, to every node; returns what was copied.

    ``acquire`` takes the staging lease; it is only called if there is something to do.

    Raises:
        LeaseHeld: something is missing, and another operator is staging.
        PlanError: no topology can be made.
        StageError: something did not reach a node.
        LeaseLost: another operator holds the lease.
    """
    report.step("copy", " and ".join(options.what))
    run = _transfers(Lease(fleet, view.spec.inventory, "stage", "staging").changer, view, options, report)
    done = StageReport(tuple(find(run, view.spec, options.what, options.given)))
    if options.verify or any(staging.missing for staging in done.stagings):
        changer = acquire()
        done = bring(_transfers(changer, view, options, report), changer, done.stagings)
    nodes = {copied.node for copied in done.copied}
    moved = f"{size(sum(copied.bytes for copied in done.copied))} to {count(len(nodes), 'Spark')}"
    report.step("copy", moved if nodes else "nothing is missing")
    return done


def _transfers(changer: Changer, view: View, options: Options, report: Report) -> Transfers:
    """Transfers to the nodes of ``view``, with settings from the flags, else the inventory."""
    if view.topology is None:
        raise view.unplanned or PlanError("these nodes have no usable topology", step="copy")
    staging, lines = view.spec.inventory.staging, observed.read(view.spec.inventory.cluster)
    limit = int(staging.limit_mb_s * 1e6) if staging.limit_mb_s else None
    settings = Settings(
        encrypt=staging.encrypt if options.encrypt is None else options.encrypt,
        limit_bytes_s=options.limit_bytes_s or limit,
        rates=last_rates(lines),
        image_rates=last_rates(lines, "image"),
        yes=options.yes,
        verify=options.verify,
    )
    return Transfers(changer.fleet, dict(view.facts), view.topology, changer.lease, report.progress, report, settings)


def lacking_ray(view: View) -> Staging | None:
    """The nodes that lack the Ray to be added to their image; None if none is added."""
    return ray.find_missing(view.spec, view.facts, view.topology) if view.topology and view.bring_ray else None


def bring_ray(
    view: View, report: Report, acquire: Callable[[], Changer], options: Options | None = None
) -> tuple[StageReport, View]:
    """Copy Ray to the nodes that lack it; returns what was copied and the updated view. ``acquire`` as in ``copy``.

    If Ray cannot be downloaded, executor native may be used instead; a failed copy to a node is an error.
    """
    lacking = lacking_ray(view)
    if lacking is None or not lacking.missing:
        return StageReport((lacking,) if lacking else ()), view
    report.step("copy", lacking.name)
    changer = acquire()
    run = _transfers(changer, view, options or Options(), report)
    try:
        ray.stage(changer, run, lacking)
    except StageError as error:
        if view.spec.playbook.executor != "auto" or error.node is not None:
            raise
        report.note(f"warning: {error.message}; the ranks will use executor native")
        return StageReport((lacking,)), changed(view, view.facts, bring_ray=False)
    for name in lacking.nodes:
        if (engine := engine_of(run.facts[name])) is not None:
            run.facts[name] = run.facts[name].model_copy(update={"rays": (*run.facts[name].rays, ray_name(engine))})
    return StageReport((lacking,), tuple(run.copied), warnings=tuple(run.warnings)), changed(view, run.facts)


def compare_pinned(view: View, report: Report) -> None:
    """Record the commits and the image that were staged; report names that now mean something else than at first.

    A new image replaces its entry: the user was asked before other nodes got it.

    Raises:
        StageError: code of a repository would run, and it is not what was first staged.
    """
    if view.topology is None or view.spec.kept_image_name:
        return
    head, playbook = view.facts[view.topology.groups[0].head.name], view.spec.playbook
    names, first = dict[str, str](), first_staged(view.spec.inventory.cluster)
    beside = read(head.companions) or {}
    for model in (playbook.model, *playbook.companions):
        weights = beside.get(str(model.id)) if isinstance(model, Companion) else read(head.weights)
        if weights is not None and weights.complete and weights.revision and model.id:
            names[f"{model.revision} of {model.id}"] = weights.revision
    path, newer = staged_file(view.spec.inventory.cluster), dict[str, str]()
    image = next(iter(expected_images(view.spec, view.facts, view.topology.by_rank).values()), None)
    # Images built on the nodes are named by their content.
    if image is not None and playbook.image and view.spec.build is None:
        newer[playbook.image] = f"{image.id} {image.build}"
        if first.get(playbook.image, image.build).rpartition(" ")[2] != image.build:
            report.note(f"warning: {playbook.image} is a different image than the one staged before: {image.id[:19]}")
    asked = {power.kind for power in powers.of(playbook, view.spec.inventory) if power.asks} - {"image"}
    unpinned = [each for each in view.findings if asked and each.code == "MDL-004"]
    for name, found in names.items():
        if first.get(name, found) != found:
            text = f"{name} changed since it was first staged: was {first[name]}, now {found}"
            # An adapter has no code.
            for finding in (each for each in unpinned if name.rpartition(" ")[2] in each.summary.split()):
                hint = f"{finding.remedy[0]}; or accept the change: {shell('rm', path)}"
                raise StageError(f"{text}; the new code would run", step="copy", hint=hint)
            report.note(f"warning: {text}; to accept the change: {shell('rm', path)}")
    with contextlib.suppress(OSError, UsageError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(path, lambda file: file.write(json.dumps({**names, **first, **newer}, indent=1).encode()), private=True)
