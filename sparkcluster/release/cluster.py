"""One look at a cluster: facts, topology, findings, plan, what runs there, and the state that makes."""

from __future__ import annotations

import dataclasses
import getpass
import os
import socket

from sparkcluster.checks import check_hosts, run_checks
from sparkcluster.errors import FoundErrors, PlanError
from sparkcluster.facts.model import Facts, Image, ReleaseFact, read
from sparkcluster.findings import Finding, has_errors
from sparkcluster.gather import Gathered, gather, look_inside
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.plan.build import build as build_plan
from sparkcluster.plan.model import Plan
from sparkcluster.release import ray
from sparkcluster.release.records import Holding, holding, newest, next_number
from sparkcluster.release.states import State, state
from sparkcluster.spec import Spec
from sparkcluster.topology.build import build as build_topology
from sparkcluster.topology.model import Topology


def operator() -> str:
    """Who is changing the cluster, as user@host (pid), for those who wait."""
    return f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A cluster as it was found.

    Attributes:
        topology: None where ``unplanned`` says why there is none.
        plan: what ``up`` would deploy now; None likewise, or while a node lacks the image.
        draft: the plan as far as it can be said while a node lacks the image: by its reference, and as if it had Ray.
        bring_ray: whether the plan counts on a Ray that is brought to an image without one.
    """

    spec: Spec
    gathered: Gathered
    facts: dict[str, Facts]
    held: Holding
    newest: ReleaseFact | None
    topology: Topology | None
    plan: Plan | None
    unplanned: PlanError | None
    findings: tuple[Finding, ...]
    state: State
    bring_ray: bool = False
    draft: Plan | None = None

    def ready(self) -> tuple[Topology, Plan]:
        """Topology and plan, for steps that stand on them.

        Raises:
            PlanError: there are none, because.
        """
        if self.topology is None or self.plan is None:
            raise self.unplanned or PlanError(
                "no plan can be made before every node has the image",
                step="plan",
                hint="sparkcluster stage INVENTORY   brings it and starts nothing; sparkcluster up does both",
            )
        return self.topology, self.plan

    def stop_on_errors(self) -> None:
        """Raise FoundErrors where a finding stops a launch, PlanError where none can be planned."""
        if has_errors(self.findings):
            raise FoundErrors(self.findings)
        if self.unplanned:
            raise self.unplanned


def look(fleet: Fleet, spec: Spec, *, inside: bool = True, bring_ray: bool | None = None) -> View:
    """Ask every node and make of it what can be made; one round trip, and a second for an image never seen.

    Args:
        fleet: the nodes.
        spec: inventory and playbook.
        inside: whether an image that was never asked what it holds is asked now (seconds).
        bring_ray: whether an image without Ray gets one; None leaves it to what is found.
    """
    gathered = gather(fleet, spec)
    facts = look_inside(fleet, spec, gathered.facts) if inside else gathered.facts
    return assess(spec, gathered, facts, bring_ray=bring_ray)


def assess(spec: Spec, gathered: Gathered, facts: dict[str, Facts], *, bring_ray: bool | None = None) -> View:
    """Everything that follows from the facts. Pure."""
    cluster = spec.inventory.cluster
    held = holding(cluster, facts)
    known = newest(facts.values())
    topology: Topology | None = None
    plan: Plan | None = None
    draft: Plan | None = None
    unplanned: PlanError | None = None
    findings = gathered.findings()
    brought = False
    if gathered.errors:
        findings += check_hosts(spec, facts)
    else:
        try:
            topology = build_topology(spec, facts)
            findings += run_checks(spec, facts, topology)
            if images_present(spec, facts):
                brought = ray.decided(spec, facts, topology, held, known) if bring_ray is None else bring_ray
                plan = build_plan(spec, facts, topology, release=next_number(facts.values()), bring_ray=brought)
                running = held.release()
                if running is not None and held.runs(plan):
                    # Names and paths carry the release: these ranks are watched and asked under theirs.
                    plan = build_plan(spec, facts, topology, release=running, bring_ray=brought)
            else:
                draft = build_plan(spec, facts, topology, release=next_number(facts.values()))
        except PlanError as error:
            unplanned = error
    return View(
        spec=spec,
        gathered=gathered,
        facts=facts,
        held=held,
        newest=known,
        topology=topology,
        plan=plan,
        unplanned=unplanned,
        findings=tuple(findings),
        state=state(plan, held, known),
        bring_ray=brought,
        draft=draft,
    )


def images_present(spec: Spec, facts: dict[str, Facts]) -> bool:
    """Whether every node has what holds a rank: the image, or with runtime process nothing."""
    if spec.inventory.runtime.kind == "process":
        return True
    return all(isinstance(read(one.image), Image) for one in facts.values())
