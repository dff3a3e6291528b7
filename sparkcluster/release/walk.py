"""The walk over the state table under one lease: clean, check, stage, start, watch, verify, record."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import sparkcluster
from sparkcluster.errors import FoundErrors, Interrupted, LaunchError, SparkclusterError, StageError
from sparkcluster.facts.engine import image_digest
from sparkcluster.facts.running import Reply
from sparkcluster.findings import Finding, has_errors
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import standalone
from sparkcluster.inspect.cluster import View, look
from sparkcluster.inspect.preflight import between
from sparkcluster.launch import group as launching
from sparkcluster.launch import last_words
from sparkcluster.node.shared import LABEL_PLAN, LABEL_RELEASE, LABEL_STATE_DIR
from sparkcluster.plan.records import KEEP, Holding, record
from sparkcluster.release import ray
from sparkcluster.release.settled import healthy, settled
from sparkcluster.release.states import TABLE, Action, State, state_of
from sparkcluster.report import Report
from sparkcluster.runtime import Changer, secrets, start_steps
from sparkcluster.runtime.lease import this_operator
from sparkcluster.runtime.ranks import KILL_GRACE_S
from sparkcluster.spec import Spec
from sparkcluster.staging.run import stage
from sparkcluster.topology.model import Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``up``; ``timeout_s`` overrides the playbook's readiness limit."""

    timeout_s: float | None = None
    clear_caches: bool = False


def elsewhere(view: View) -> tuple[str, ...]:
    """Nodes that hold ranks of the release that is here, by its record, and that the inventory has no more.

    To start anything beside them would leave them behind: the next record would not name them.
    """
    if view.newest is None:
        return ()
    here = {rank.labels.get(LABEL_PLAN) for ranks in view.held.own.values() for rank in ranks}
    if view.newest.plan_hash not in here:
        return ()
    recorded = view.newest.record.get("plan", {}).get("nodes", {})
    present = {node.label for node in view.spec.inventory.nodes}
    return tuple(name for name in recorded if name not in present)


def stop_before_staging(view: View) -> Topology:
    """The topology, where nothing is wrong but what staging mends.

    Raises:
        FoundErrors: with every finding.
        PlanError: nobody can be seated.
    """
    before = [finding for finding in view.findings if not finding.code.startswith(("IMG-", "MDL-"))]
    if has_errors(before):
        raise FoundErrors(view.findings)
    if view.topology is None:
        raise view.unplanned or LaunchError("no topology", step="plan")
    return view.topology


class Walk:
    """The walk over the state table under one lease.

    Args:
        fleet: the nodes.
        spec: inventory and playbook.
        options: the user's flags.
        report: where to tell what is going on.
        epoch: of the lease.
    """

    def __init__(self, fleet: Fleet, spec: Spec, options: Options, report: Report, epoch: int) -> None:
        self.fleet = fleet
        self.spec = spec
        self.options = options
        self.report = report
        self.epoch = epoch
        self.changer = Changer(fleet, cluster=spec.inventory.cluster, state_dir=spec.inventory.state_dir, epoch=epoch)
        # What was seen before the lease was ours may have changed since.
        self.view = look(fleet, spec)
        self.number = 0
        self.doing = "probe"

    def step(self, name: str, text: str = "") -> None:
        """Tell that a step begins, and remember it for who interrupts it."""
        self.doing = name
        self.report.step(name, text)

    def interrupted(self) -> Interrupted:
        """What an interruption outside of the launch itself leaves behind."""
        left = {
            "clean": "old ranks may be left; sparkcluster up or down goes on from there",
            "launch": "ranks may still run: sparkcluster down INVENTORY stops them",
            "record": "the model serves, and sparkcluster up again records it",
        }
        return Interrupted(f"interrupted; {left.get(self.doing, 'no rank was started')}", step=self.doing)

    def to_serving(self) -> dict[str, Reply]:
        """Walk until the state is SERVING; answers by group."""
        cleaned = False
        while True:
            found = state_of(self.view)
            action, _ = TABLE[found]
            if action is Action.ASK:
                answers = healthy(self.fleet, self.spec, self.view.ready()[1], self.report)
                if answers is not None:
                    self.number = self.view.held.release() or 0
                    return answers
                self.report.note("the model does not answer any more: starting it again")
                action = Action.CLEAN
            if found is State.OTHER:
                settled(self.fleet, self.view, self.report)
                self.report.note("what runs there does not answer: replacing it")
                action = Action.CLEAN
            if action is Action.CLEAN and not cleaned:
                self.clean(self.view.held)
                cleaned = True
            elif action is Action.START:
                return self.start()
            elif action is Action.WATCH:
                self.report.note("the ranks of this plan run already: going on from there")
                self.number = self.view.held.release() or 1
                return self.watch(None)
            else:
                raise self.taken()
            self.view = look(self.fleet, self.spec)

    def taken(self) -> SparkclusterError:
        """Ranks with our cluster's name that are not ours to touch, or that would not go away."""
        node, ranks = next(
            ((name, ranks) for name, ranks in self.view.held.stray.items() if ranks),
            next(((name, ranks) for name, ranks in self.view.held.own.items() if ranks), ("", ())),
        )
        rank = ranks[0] if ranks else None
        where = rank.labels.get(LABEL_STATE_DIR, "?") if rank else "?"
        if rank and not any(self.view.held.stray.values()):
            return LaunchError(
                f"{rank.name} on {node} was removed and is there again, {rank.state}",
                node=node,
                step="clean",
                hint=f"on {node}: docker rm -f {rank.name}, and see what starts it",
            )
        return LaunchError(
            f"{rank.name if rank else 'a rank'} on {node} belongs to a cluster of this name with state_dir {where}",
            node=node,
            step="clean",
            hint="give this cluster another name, or use that state_dir in the inventory",
        )

    def clean(self, held: Holding) -> None:
        """Remove every rank of ours, whatever its state."""
        self.step("clean", "removing ranks that do not serve")
        former = elsewhere(self.view)
        if former:
            raise LaunchError(
                f"what runs here runs on {' and '.join(former)} too, which the inventory does not name any more",
                step="clean",
                hint=f"sparkcluster down {self.spec.inventory_path}, which stops it there as well, then up again",
            )
        left = launching.stop(self.changer, held.own, grace_s=KILL_GRACE_S)
        if left:
            name, error = next(iter(left.items()))
            raise LaunchError(f"old ranks stay on {name}: {error.message}", node=name, step="clean", hint=error.hint)

    def start(self) -> dict[str, Reply]:
        """Check, stage, start, watch, verify, record."""
        self.step("check")
        reached = self.check()
        self.stage()
        _, plan = self.view.ready()
        self.view.stop_on_errors()
        for finding in [*self.view.findings, *reached]:
            if finding.severity == "warning":
                self.report.note(f"warning: {finding.code} {finding.node or ''}: {finding.summary}")
        values = secrets.values(self.spec, plan)
        self.number = int(next(iter(plan.nodes.values())).containers[0].labels[LABEL_RELEASE])
        entry = standalone("entry", self.spec.playbook.engine)
        steps = {
            name: [
                *self.cache_steps(name),
                *start_steps(node, entry=entry, secrets=values),
            ]
            for name, node in plan.nodes.items()
        }
        return self.watch(steps)

    def check(self) -> list[Finding]:
        """Stop where something is wrong that staging does not mend, before anything is changed.

        Returns:
            Findings about what the nodes reach of one another, which the view does not have.
        """
        topology = stop_before_staging(self.view)
        _, reached = between(self.fleet, self.spec, self.view.facts, topology, self.report, epoch=self.epoch)
        if has_errors(reached):
            raise FoundErrors([*self.view.findings, *reached])
        return reached

    def stage(self) -> None:
        """Bring image and weights to the nodes that lack them, then look again."""
        if self.view.topology is None:
            raise self.view.unplanned or LaunchError("no topology", step="plan")
        self.step("stage", "image and weights, where they are missing")
        done = stage(
            self.fleet,
            self.view.facts,
            self.view.topology,
            self.spec,
            epoch=self.epoch,
            progress=self.report.progress,
        )
        if done.changed:
            self.view = look(self.fleet, self.spec)
        self.stage_ray()
        self.view.ready()

    def stage_ray(self) -> None:
        """Bring Ray to an image without, or go on without it where the playbook leaves that open."""
        topology = self.view.topology
        if topology is None or not self.view.bring_ray:
            return
        try:
            if ray.bring(self.changer, self.spec, self.view.facts, topology, self.report):
                self.view = look(self.fleet, self.spec)
        except StageError as error:
            if not ray.can_do_without(self.spec, error):
                raise
            self.report.note(f"{error.message}: the ranks use executor native")
            self.view = look(self.fleet, self.spec, bring_ray=False)

    def cache_steps(self, name: str) -> list[dict[str, Any]]:
        """Steps that throw the compile caches of the plan's image away, where the user asks for it."""
        if not self.options.clear_caches or self.view.plan is None:
            return []
        # Those of other images may be in use by another cluster of the same user.
        caches = f"{self.view.facts[name].state_dir}/caches/"
        return [
            {"do": "delete", "path": path}
            for one in self.view.plan.nodes[name].containers
            for path in one.directories
            if path.startswith(caches)
        ]

    def watch(self, steps: dict[str, list[dict[str, Any]]] | None) -> dict[str, Reply]:
        """Start ``steps`` (or nothing), watch until every group has answered, and record the release."""
        topology, plan = self.view.ready()
        launch = launching.Launch(
            plan,
            topology,
            self.spec.playbook.verify,
            self.options.timeout_s or self.spec.playbook.ready_timeout_s,
            last_words.directory(self.spec.inventory.cluster),
        )
        self.doing = "launch"
        answers = launching.run(self.fleet, self.changer, launch, steps, self.report)
        self.step("record", f"release {self.number}")
        document = record(
            self.spec,
            plan,
            number=self.number,
            operator=this_operator(),
            verified_at=time.time(),
            version=sparkcluster.__version__,
            digest=image_digest(self.view.facts.values()),
        )
        step = {"do": "record", "number": self.number, "record": document, "keep": KEEP}
        self.changer.apply({name: [step] for name in plan.nodes})
        return answers
