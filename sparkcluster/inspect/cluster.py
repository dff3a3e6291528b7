"""A cluster as its nodes describe it: facts, recorded release and running ranks; on request, findings and a plan."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.endpoint.find import Endpoint, recorded_endpoints
from sparkcluster.errors import (
    CommandFailed,
    DockerFailed,
    FoundErrors,
    HostError,
    PlanError,
    SparkclusterError,
    UsageError,
)
from sparkcluster.facts.collect import COLLECT_S, Collected, collect_facts, inspect_images
from sparkcluster.facts.engine import expected_images
from sparkcluster.facts.model import Facts, LeaseFact, ReleaseFact
from sparkcluster.facts.probe import Answer
from sparkcluster.facts.release_record import Record
from sparkcluster.findings import Finding, has_errors, remedies
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.output_file import state_home
from sparkcluster.plan.build import build as build_plan
from sparkcluster.plan.image import has_brought_ray, without_ray
from sparkcluster.plan.release_record import (
    ClusterRanks,
    RecordedGroup,
    cluster_ranks,
    current_lease,
    next_number,
    recorded_groups,
    recorded_release,
    runs_planned,
    unreadable,
)
from sparkcluster.plan.switch import Switch, pending
from sparkcluster.report import Report, count
from sparkcluster.runtime import secrets
from sparkcluster.spec import Spec

if TYPE_CHECKING:
    from sparkcluster.plan.model import Plan
    from sparkcluster.topology.model import Topology


@dataclasses.dataclass
class View:
    """The state of a cluster; only ``assess`` fills in the fields after ``facts``.

    Attributes:
        collected: the answers of the nodes, and the errors of nodes that did not answer.
        facts: the answers, with the content of images if it was read.
        topology: None if ``unplanned`` says why there is none.
        plan: the plan that ``up`` would deploy now; None as above, or while a node lacks the image.
        also: views of the same nodes for other specs.
        planned: as ``plan``, but also while a node lacks the image: then with another node's, or with its reference.
        bring_ray: whether the plan adds Ray to an image without Ray.
    """

    spec: Spec
    collected: Collected
    facts: dict[str, Facts]
    findings: tuple[Finding, ...] = ()
    topology: Topology | None = None
    plan: Plan | None = None
    unplanned: PlanError | None = None
    bring_ray: bool = False
    planned: Plan | None = None
    also: tuple[View, ...] = ()

    @functools.cached_property
    def ranks(self) -> ClusterRanks:
        """The ranks on the nodes that answered."""
        return cluster_ranks(self.spec.inventory.cluster, self.facts)

    @functools.cached_property
    def unread(self) -> dict[str, SparkclusterError]:
        """The error of each node whose ranks are unknown: it did not answer, or its Docker did not."""
        blind = {name: _blind(self.spec, name, self.facts[name], why) for name, why in unreadable(self.facts).items()}
        return {**self.collected.errors, **blind}

    @functools.cached_property
    def newest(self) -> ReleaseFact | None:
        """The newest recorded release, with each group as its own head recorded it; its ranks may be gone."""
        return recorded_release(self.spec.inventory, self.facts)

    @functools.cached_property
    def recorded(self) -> Record:
        """The record of ``newest`` if any of its ranks exists, even exited; else an empty record."""
        there = self.newest is not None and self.ranks.of_release(self.newest, exited=True)
        return self.newest.record if self.newest is not None and there else {}

    @functools.cached_property
    def groups(self) -> dict[str, RecordedGroup]:
        """The groups of ``recorded``, by name."""
        return recorded_groups(self.recorded)

    @functools.cached_property
    def endpoints(self) -> dict[str, Endpoint]:
        """The API endpoints of ``groups``, by name."""
        return recorded_endpoints(self.recorded) if self.groups else {}

    @property
    def lease(self) -> LeaseFact | None:
        """The lease that is held now."""
        return current_lease(self.facts)

    @functools.cached_property
    def switch(self) -> Switch | None:
        """An unfinished switch to another release."""
        return pending(self.facts, self.newest)

    @property
    def source(self) -> int:
        """The number of the release that served before the current operation; 0 if there is none."""
        return self.switch.source if self.switch else self.newest.number if self.newest else 0

    def ready(self) -> tuple[Topology, Plan]:
        """Topology and plan, for steps that need both.

        Raises:
            PlanError: there is no plan.
        """
        if self.topology is None or self.plan is None:
            raise self.unplanned or PlanError(
                "no plan can be made before every node has the image",
                step="plan",
                hint="sparkcluster stage INVENTORY   copies it; sparkcluster up also starts the model",
            )
        return self.topology, self.plan

    def findings_of(self, names: Collection[str]) -> list[Finding]:
        """Findings, without those about nodes of groups other than ``names``."""
        groups = self.topology.groups if self.topology else ()
        others = {node for group in groups if group.name not in names for node in group.names}
        return [finding for finding in self.findings if finding.node not in others]

    def stop_on_errors(self) -> None:
        """Raise FoundErrors if a finding prevents a launch, PlanError if there is no plan."""
        if has_errors(self.findings):
            raise FoundErrors([*self.findings, *unset(self.spec)], "no plan can be made")
        if self.unplanned:
            raise self.unplanned


def _blind(spec: Spec, name: str, facts: Facts, why: str) -> HostError:
    """The error for a node that answers but cannot list its ranks, as ``why`` says."""
    if spec.inventory.runtime.kind == "process":
        return CommandFailed(f"{name} cannot list its ranks: {why}", node=name, step="connect")
    from sparkcluster.checks.docker import unusable  # noqa: PLC0415 - as in assess

    seen = unusable(name, facts, why)
    first, *_ = remedies(seen.remedy or ())
    return DockerFailed(f"{seen.summary}: {why}", node=name, step="connect", hint=first.shown(name))


def connected(fleet: Fleet, spec: Spec, report: Report, **options: Any) -> View:
    """``see`` as the first step of a command; the step fails if a node does not answer."""
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = see(fleet, spec, fleet.names, **options)
    if view.collected.errors:
        report.failed()
    return view


def see(
    fleet: Fleet,
    spec: Spec,
    names: Sequence[str] | None = None,
    *,
    kernel_log: bool = False,
    limit_s: float = COLLECT_S,
    also: Sequence[Spec] = (),
) -> View:
    """Query every node (or ``names``) in one round trip, without checks or plan; see ``collect_facts``."""
    collected = collect_facts(fleet, spec, names, kernel_log=kernel_log, limit_s=limit_s, also=also)
    return View(spec, collected, collected.facts, tuple(collected.findings()))


def view_cluster(fleet: Fleet, spec: Spec, *, probes: Calls[Answer] | None = None, also: Sequence[Spec] = ()) -> View:
    """Query every node in one round trip; a second one, of seconds, inspects an image whose content is unknown.

    ``probes`` are probes that were already sent.
    """
    if not spec.kept_image_name:
        known = first_staged(spec.inventory.cluster).get(str(spec.reference), "")
        spec = dataclasses.replace(spec, image_build=known.rpartition(" ")[2])
    collected = collect_facts(fleet, spec, probes=probes, also=also)
    view = assess(spec, collected, inspect_images(fleet, spec, collected.facts))
    others = zip(also, collected.also, strict=True)
    view.also = tuple(assess(each, collected, inspect_images(fleet, each, found)) for each, found in others)
    return view


def staged_file(cluster: str) -> Path:
    """This machine's file about ``cluster``: commits of revisions, and IDs and builds of images, by their names."""
    return state_home() / "staged" / f"{cluster}.json"


def first_staged(cluster: str) -> dict[str, str]:
    """The content of ``staged_file``: what branches and tags named when they were staged; empty without a file."""
    try:
        found = json.loads(staged_file(cluster).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def assess(spec: Spec, collected: Collected, facts: dict[str, Facts]) -> View:
    """A ``View`` with topology, plan and findings derived from the facts. Pure."""
    # Imported late: commands that only see do not need them.
    from sparkcluster.checks import run_checks  # noqa: PLC0415
    from sparkcluster.topology.build import build as build_topology  # noqa: PLC0415
    from sparkcluster.topology.model import EMPTY  # noqa: PLC0415

    view = View(spec, collected, facts)
    try:
        if not collected.errors:
            view.topology = build_topology(spec, facts)
            _make_plan(view, view.topology, bring_ray=_brings_ray(view, view.topology))
    except PlanError as error:
        view.unplanned = error
    view.findings = (*collected.findings(), *run_checks(spec, facts, view.topology or EMPTY))
    return view


def unset(spec: Spec) -> list[Finding]:
    """A secret without a value on this machine: ``up`` would refuse it before changing anything."""
    try:
        secrets.check(spec)
    except UsageError as error:
        return [error.finding("SPEC-010", why="up does not start without it")]
    return []


def changed(view: View, facts: dict[str, Facts], *, bring_ray: bool | None = None) -> View:
    """``view`` after its nodes were changed, with their new ``facts``; findings stay the same. Pure."""
    now = dataclasses.replace(view, facts=facts)
    if view.topology is not None and view.unplanned is None:
        _make_plan(now, view.topology, bring_ray=view.bring_ray if bring_ray is None else bring_ray)
    return now


def _make_plan(view: View, topology: Topology, *, bring_ray: bool) -> None:
    """Make the plan with the next release number; groups that already run it keep their number.

    Names and paths contain the release number, and running ranks are found by them.
    """
    spec, facts, ranks = view.spec, view.facts, view.ranks.groups()
    following = next_number(facts, spec.inventory.cluster)
    view.bring_ray = bring_ray
    view.planned = build_plan(spec, facts, topology, release=following, bring_ray=bring_ray)
    running = {each.name: runs_planned(view.planned, each, ranks.get(each.name, {})) for each in view.planned.groups}
    if any(running.values()):
        releases = {name: number or following for name, number in running.items()}
        view.planned = build_plan(spec, facts, topology, release=releases, bring_ray=bring_ray)
    there = expected_images(spec, facts, topology.by_rank)
    if spec.inventory.runtime.kind == "process" or there.keys() >= topology.members.keys():
        view.plan = view.planned


def _brings_ray(view: View, topology: Topology) -> bool:
    """Whether Ray is added to the ranks' image.

    With executor ``ray`` it must be. With ``auto``, a running and recorded release keeps its choice: whether a package
    index responds today must not change the plan. Otherwise Ray is added if a node has it, since the others can copy
    it; while nothing runs, it is assumed to be available.
    """
    wanting = without_ray(view.spec, view.facts, topology)
    if not wanting or view.spec.playbook.executor == "ray":
        return bool(wanting)
    if view.newest is not None and view.ranks.of_release(view.newest):
        return any(container["launcher"].get("ray_path") for *_, container in view.newest.containers())
    return any(has_brought_ray(view.facts[name]) for name in wanting) or not view.ranks.anything
