"""``preflight``: query every node, compare them, and report launch blockers; changes nothing on a node."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from sparkcluster import linting
from sparkcluster.checks import netplan, run_checks, run_stage
from sparkcluster.checks.catalogue import find
from sparkcluster.checks.check import CATALOGUE, UNPLANNED, Context, Stage, accepted
from sparkcluster.errors import LeaseHeld, PlanError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.between import Hashes, Measured, Reach
from sparkcluster.facts.collect import Collected, collect_facts, inspect_images, node_documents
from sparkcluster.facts.model import Facts
from sparkcluster.facts.probe import Answer
from sparkcluster.findings import Finding, has_errors, ordered
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect.cluster import View, assess, unset
from sparkcluster.inspect.hashes import hashes
from sparkcluster.inspect.reach import reach as ask_reach
from sparkcluster.report import Report, count
from sparkcluster.runtime import observed
from sparkcluster.runtime.lease import Lease
from sparkcluster.spec import Spec, consent
from sparkcluster.staging.ray_archive import cache_directory
from sparkcluster.topology.build import build as build_topology
from sparkcluster.topology.model import EMPTY, Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Unasked:
    """Something that cannot be determined yet for a node (None: all nodes), and why."""

    node: str | None
    what: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Preflight:
    """The result of ``preflight``.

    Attributes:
        view: with the topology of the nodes that could be placed.
        checks: number of checks that ran.
        seconds: how long it took.
    """

    view: View
    reach: Reach | None
    measured: Measured | None
    hashes: Hashes | None
    findings: tuple[Finding, ...]
    checks: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing prevents a launch."""
        return not has_errors(self.findings)

    @property
    def next(self) -> str:
        """The next command: a fix for errors, else ``status`` or ``up``."""
        if not self.ok:
            fixes = any(each.severity == "error" and each.fixed_by_setup for each in self.findings)
            return f"sparkcluster preflight INVENTORY{' --fix' * fixes}"
        return f"sparkcluster {'status' if self.view.ranks.running else 'up'} INVENTORY"

    @property
    def unasked(self) -> list[Unasked]:
        """What cannot be determined before image and weights are on the nodes."""
        found: list[Unasked] = []
        for name, node in self.view.facts.items():
            image, weights = read(node.image), read(node.weights)
            if self.view.spec.inventory.runtime.kind == "docker" and image is None:
                absent = f"{self.view.spec.reference} is not on the node yet"
                why = node.image.unread if isinstance(node.image, Unread) else absent
                found.append(Unasked(name, "the image's content", why))
            if weights is None or weights.path is None:
                why = node.weights.unread if isinstance(node.weights, Unread) else "the weights are not on the node yet"
                found.append(Unasked(name, "whether the weights are complete", why))
        return found

    def as_json(self) -> dict[str, Any]:
        """The document of ``preflight --json``."""
        view = self.view
        return {
            "ok": self.ok,
            "cluster": view.spec.inventory.cluster,
            "findings": [finding.as_json() for finding in self.findings],
            "nodes": node_documents(view.spec, view.facts, view.collected.errors),
            "topology": view.topology and dataclasses.asdict(view.topology),
            "netplan": netplan.files(Context(view.spec, view.facts, view.topology)) if view.topology else {},
            "reach": self.reach and dataclasses.asdict(self.reach),
            "measured": self.measured and dataclasses.asdict(self.measured),
            "hashes": self.hashes and dataclasses.asdict(self.hashes),
            "unasked": [dataclasses.asdict(gap) for gap in self.unasked],
            "checks": self.checks,
            "seconds": round(self.seconds, 3),
        }


def preflight(
    fleet: Fleet,
    spec: Spec,
    report: Report,
    *,
    deep: bool = False,
    hashing: bool = False,
    ignore: Collection[str] = (),
    probes: Calls[Answer] | None = None,
) -> Preflight:
    """Query all nodes in parallel and run every check that can run; a node that fails does not stop the others.

    Args:
        fleet: the nodes.
        spec: inventory and playbook.
        report: receives the steps.
        deep: whether to measure bandwidth, which takes minutes and runs containers.
        hashing: whether to compare the weights' SHA-256, which reads all of them.
        ignore: codes to ignore in addition to the inventory's.
        probes: probes already sent by ``facts.probe.begin``.

    Raises:
        UsageError: ``ignore`` names an unknown code.
    """
    if deep:
        consent.require(spec)
    began = time.monotonic()
    ignored = [*spec.inventory.ignore, *(find(code).code for code in ignore)]
    judged = dataclasses.replace(spec, inventory=spec.inventory.model_copy(update={"ignore": ignored}))
    report.step("connect", count(len(fleet.hosts), "Spark"))
    collected = collect_facts(fleet, spec, probes=probes)
    facts = inspect_images(fleet, spec, collected.facts, kept=cache_directory() / "images")
    if collected.errors:
        report.failed()
    if facts:
        report.step("check", count(len(facts), "Spark"))
    view = examine(judged, collected, facts)
    view.spec = spec
    findings = [*view.findings, *(accepted(each, judged) for each in unset(spec))]
    if collected.errors:  # perhaps addresses of the example inventory
        findings += linting.unchanged(spec.inventory_path)
    stages: list[Stage] = ["written", "facts"]
    reach, measured, hashed = None, None, None
    if view.topology is not None:
        reach, more = between(fleet, judged, facts, view.topology, report)
        findings += more
        stages.append("reach")
    if deep and view.topology is not None:
        measured = measure(fleet, spec, facts, view.topology, report, whole=not has_errors(findings))
        mtu = {
            name: {each.name: each.mtu for each in read(node.interfaces) or () if each.carrier}
            for name, node in facts.items()
        }
        observed.note(spec.inventory.cluster, "deep", **dataclasses.asdict(measured), mtu=mtu)
    if hashing:
        hashed = hashes(fleet, facts, report, spec.playbook.choice)
    if deep or hashing:
        stages.append("deep")
        topology, rates, weights = view.topology or EMPTY, measured or Measured(), hashed or Hashes()
        findings += run_stage(Context(judged, facts, topology, measured=rates, hashes=weights), ["deep"])
    return Preflight(
        view,
        reach,
        measured,
        hashed,
        findings=tuple(ordered(findings)),
        checks=number_of(spec, stages),
        seconds=time.monotonic() - began,
    )


def examine(spec: Spec, collected: Collected, facts: dict[str, Facts]) -> View:
    """``assess``; if nodes did not answer or cannot be placed, with the topology of the others. Pure."""
    view = assess(spec, collected, facts)
    missing = {node.label for node in spec.inventory.nodes if node.label not in facts}
    wrong = [] if view.unplanned is None or view.topology is None else [view.unplanned]
    while view.topology is None and len(missing) < len(spec.inventory.nodes):
        try:
            view.topology = build_topology(spec, facts, missing=missing)
            view.findings = (*collected.findings(), *run_checks(spec, facts, view.topology))
        except PlanError as error:
            wrong.append(error)
            if error.node is None or error.node in missing:
                break
            missing.add(error.node)
    why = "nothing can be started without a plan"
    found = [error.finding(UNPLANNED, seen=f"during {error.step or 'plan'}", why=why) for error in wrong]
    view.findings += tuple(accepted(each, spec) for each in found)
    return view


def between(
    fleet: Fleet,
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    report: Report,
    *,
    epochs: Mapping[str, int] | None = None,
) -> tuple[Reach, list[Finding]]:
    """Which nodes of ``topology`` reach one another, and findings about it.

    ``epochs`` belong to our own lease, if we hold it.
    """
    reach = ask_reach(fleet, spec, facts, topology, report, epochs=epochs)
    found = run_stage(Context(spec, facts, topology, reach=reach), ["reach"])
    errors = [each for each in found if each.severity == "error"]
    outcome = count(len(errors), "error") if errors else "each Spark reaches the others" if reach.paths else ""
    report.step("check", ", ".join(filter(None, [f"{number_of(spec, ['written', 'facts', 'reach'])} checks", outcome])))
    if errors:
        report.failed()
    return reach, found


def number_of(spec: Spec, stages: Collection[Stage]) -> int:
    """The number of checks in ``stages`` for the engine of ``spec``."""
    engines = {None, spec.playbook.engine}
    return sum(check.stage in stages and check.engine in engines for check in CATALOGUE.values())


def measure(
    fleet: Fleet, spec: Spec, facts: dict[str, Facts], topology: Topology, report: Report, *, whole: bool
) -> Measured:
    """Bandwidth and latency of the links, measured by ``inspect.deep``.

    ``whole``: no error prevents starting a container on every node, under the lease.
    """
    from sparkcluster.inspect.deep import deep  # noqa: PLC0415 - only --deep needs it

    with contextlib.ExitStack() as stack:
        epochs: Mapping[str, int] = {}
        refused = None if whole else "skipped: fix the errors above first"
        if whole and any(len(group.members) > 1 for group in topology.groups):
            lease = partial(Lease, fleet, spec.inventory, "measure")
            try:
                taken = stack.enter_context(lease().acquire(list(facts)))
                stack.enter_context(lease("staging").acquire(list(facts)))  # a copy would use the same links
                epochs = taken.changer.epochs
            except LeaseHeld as error:
                stack.close()
                refused = error.message
        return deep(fleet, spec, facts, topology, report, epochs=epochs, refused=refused)
