"""The walk over the state table under one lease: clean, check, stage, start, watch, verify, record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sparkcluster
from sparkcluster.errors import FoundErrors, Interrupted, LaunchError, SparkclusterError
from sparkcluster.facts.engine import image_digest
from sparkcluster.facts.running import Reply
from sparkcluster.findings import Finding, has_errors
from sparkcluster.hosts.again import is_transient
from sparkcluster.hosts.program import standalone
from sparkcluster.inspect.cluster import View, view_cluster
from sparkcluster.inspect.doctor import observe_nodes, running_heads
from sparkcluster.inspect.preflight import between
from sparkcluster.launch import failed_logs
from sparkcluster.launch.group import Launch
from sparkcluster.launch.groups import Outcome, launch_groups
from sparkcluster.launch.stopping import stop
from sparkcluster.plan.records import KEEP, record, unreadable
from sparkcluster.release.down import down_there, former_nodes, shown
from sparkcluster.release.outcome import came_back, failure, newly_recorded
from sparkcluster.release.serving import OBSERVE_S, elsewhere, refuse, replies, stop_on_wrong_answers, survey
from sparkcluster.release.stage import copy_for_start, staging_lease
from sparkcluster.release.states import Action, GroupState, State
from sparkcluster.report import Report
from sparkcluster.runtime import Changer, secrets, start_steps
from sparkcluster.runtime.lease import this_operator
from sparkcluster.runtime.memory import evict
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Topology

# How long a node that is silent when a release is recorded is tried again.
RECORD_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``up``.

    Attributes:
        timeout_s: overrides the playbook's readiness limit.
        replace: whether to replace what serves another plan, has drifted, or does not answer as it should.
    """

    timeout_s: float | None = None
    clear_caches: bool = False
    replace: bool = False


def whole(view: View) -> View:
    """``view``, in which every node reports its ranks: a rank that is not seen is not gone.

    Raises:
        FoundErrors: a node cannot be reached, or has an error.
        LaunchError: a node cannot list its ranks.
    """
    blind = unreadable(view.facts)
    if view.collected.errors or (blind and has_errors(view.findings)):
        raise FoundErrors(view.findings)
    for name, why in blind.items():
        hint = f"on {name}: systemctl status docker"
        raise LaunchError(f"{name} cannot list its ranks: {why}", node=name, step="probe", hint=hint)
    return view


def relevant(findings: Sequence[Finding], view: View, names: Collection[str]) -> list[Finding]:
    """``findings`` without those about nodes of groups that are left alone."""
    groups = view.topology.groups if view.topology else ()
    others = {node for group in groups if group.name not in names for node in group.names}
    return [finding for finding in findings if finding.node not in others]


def stop_before_staging(view: View, names: Collection[str]) -> Topology:
    """The topology of the groups ``names``, unless a finding is an error that staging does not fix.

    Raises:
        FoundErrors: with every finding about them.
        PlanError: no topology can be made.
    """
    findings = relevant(view.findings, view, names)
    if has_errors([finding for finding in findings if not finding.code.startswith(("IMG-", "MDL-"))]):
        raise FoundErrors(findings)
    if view.topology is None:
        raise view.unplanned or LaunchError("no topology", step="plan")
    return view.topology.of_groups(names)


class Walk:
    """The walk over the state table under one lease."""

    def __init__(self, changer: Changer, spec: Spec, options: Options, report: Report) -> None:
        self.changer = dataclasses.replace(changer, tell=report.note)
        self.fleet = changer.fleet
        self.spec = spec
        self.options = options
        self.report = report
        # Facts from before the lease may be stale.
        self.view = whole(view_cluster(self.fleet, spec))
        # After down no rank is left, here or on nodes that are no longer in the inventory.
        before = self.view.newest.record if self.view.newest and self.view.ranks.anything else {}
        self.former = {node.label: {"host": node.host} for node in former_nodes(spec, {"": before})}
        self.number = 0
        self.doing = "probe"
        # From what is copied while a group still serves until it is stopped and all is there: nobody comes between.
        self.staging = staging_lease(changer.fleet, spec, "up")

    def step(self, name: str, text: str = "") -> None:
        """Report that a step begins, and remember it for an interruption."""
        self.doing = name
        self.report.step(name, text)

    def interrupted(self) -> Interrupted:
        """What an interruption outside of the launch itself leaves behind."""
        remains = {
            "clean": "old ranks may remain; sparkcluster up or down continues from there",
            "launch": "ranks may still run: sparkcluster down INVENTORY stops them",
            "record": "the model serves, and sparkcluster up again records it",
        }
        return Interrupted(f"interrupted; {remains.get(self.doing, 'no rank was started')}", step=self.doing)

    def survey(self, before: Mapping[str, GroupState]) -> dict[str, GroupState]:
        """Every group as it is now, and what to do with each; raises if a group conflicts with the plan."""
        groups = survey(self.fleet, self.view, self.report, replace=self.options.replace, before=before)
        refuse(self.view, groups)
        return groups

    def to_serving(self, before: Mapping[str, GroupState]) -> dict[str, Reply]:
        """Walk until every group serves; replies by group. ``before`` was seen before the lease was taken.

        Raises:
            NotServing: a group that was left alone does not answer as it should.
        """
        groups = self.survey(before)
        dirty = {name: group for name, group in groups.items() if group.action is Action.CLEAN}
        if dirty:
            replaced = any(group.replaced for group in dirty.values())
            if replaced:
                # While they still serve.
                stop_before_staging(self.view, dirty)
                self.copy_missing()
            self.clean(dirty)
            self.view = whole(view_cluster(self.fleet, self.spec))
            groups = self.survey(groups)
            for group in groups.values():
                if group.action is Action.CLEAN:
                    raise came_back(group)
        launches = {name: group for name, group in groups.items() if group.action in {Action.START, Action.WATCH}}
        kept = {name: group for name, group in groups.items() if name not in launches}
        found = replies(kept)
        if launches:
            found |= self.launch(launches, kept)
        else:
            self.number = self.view.newest.number if self.view.newest else 0
        stop_on_wrong_answers(self.view, groups)
        return found

    def clean(self, groups: Mapping[str, GroupState]) -> None:
        """Remove every rank of ``groups``, whatever its state."""
        for name, group in groups.items():
            if group.seen:
                dead = group.seen.dead
                self.report.note(f"{name} is dead ({dead}): starting it again" if dead else f"{name} is replaced")
        self.step("clean", f"removing ranks of {', '.join(groups)}")
        former = elsewhere(self.view, groups)
        if former:
            raise LaunchError(
                f"ranks of this release also run outside of the inventory, on {' and '.join(map(shown, former))}",
                step="clean",
                hint=f"{down_there(self.spec, former)}   stops them there as well; then up again",
            )
        ranks = {
            node: tuple(rank for each in groups.values() for rank in each.ranks.get(node, ()))
            for node in self.view.ranks.ours
        }
        failed = stop(self.changer, ranks, self.report)
        if failed:
            name, error = next(iter(failed.items()))
            raise LaunchError(f"old ranks remain on {name}: {error.message}", node=name, step="clean", hint=error.hint)

    def launch(self, groups: Mapping[str, GroupState], kept: Mapping[str, GroupState]) -> dict[str, Reply]:
        """Check, stage, start, watch and verify ``groups``, and record them beside ``kept``; their replies.

        Raises:
            SparkclusterError: a group failed; those that came up serve and are recorded.
        """
        starting = [name for name, each in groups.items() if each.state is State.EMPTY]
        if starting:
            self.prepare(starting)
        if len(starting) < len(groups):
            self.report.note("the ranks of this plan are already running: continuing with them")
        topology, plan = self.view.ready()
        values = secrets.values(self.spec, plan.of_groups(groups))
        hashes = secrets.keyed_hashes(values)
        started_with = self.hashes_of_running([group for name, group in groups.items() if name not in starting])
        started_with |= dict.fromkeys(starting, hashes)
        entry = standalone("launcher", self.spec.playbook.engine)
        # Apart from the start, which is sent again where its answer is lost: caches in use must not be deleted.
        self.changer.apply({node: self.cache_steps(node) for node in plan.of_groups(starting).nodes})
        launches = []
        expect_at = ":".join(map(str, self.spec.places.get(("verify", "expect"), ("the playbook",))))
        for name in groups:
            part = plan.of_groups([name])
            steps = None
            if name in starting:
                steps = {
                    node: start_steps(planned, entry=entry, secrets=values, hashes=hashes)
                    for node, planned in part.nodes.items()
                }
            launches.append(
                Launch(
                    name,
                    part,
                    topology.of_groups([name]),
                    self.spec.playbook.verify,
                    self.options.timeout_s or self.spec.playbook.ready_timeout_s,
                    steps,
                    expect_at,
                )
            )
        self.doing = "launch"
        logs = failed_logs.directory(self.spec.inventory.cluster)
        outcomes = launch_groups(self.changer, launches, self.report, logs=logs)
        return self.finish(outcomes, kept, started_with)

    def hashes_of_running(self, groups: Collection[GroupState]) -> dict[str, dict[str, Any]]:
        """Salt and hashes of the secrets that ranks which run already were started with, by group."""
        facts = {node: self.view.facts[node] for group in groups for node in group.ranks}
        observations = observe_nodes(self.fleet, self.spec, facts, OBSERVE_S)
        heads = [rank for _, rank in running_heads(self.spec, facts, observations)]
        return {rank.group: dict(rank.launcher.get("secrets") or {}) for rank in heads}

    def prepare(self, names: Collection[str]) -> None:
        """Check and stage for the groups ``names``."""
        self.step("check")
        reached = self.check(names)
        self.copy_missing()
        self.staging.close()
        self.view.ready()
        findings = relevant(self.view.findings, self.view, names)
        if has_errors(findings):
            raise FoundErrors(findings)
        for finding in [*findings, *reached]:
            if finding.severity == "warning":
                self.report.note(f"warning: {finding.code} {finding.node or ''}: {finding.summary}")
        nodes = self.view.ready()[1].of_groups(names).nodes
        evict(self.changer, self.spec.playbook, nodes, self.view.facts, self.report)

    def copy_missing(self) -> None:
        """Copy weights, image and Ray to the nodes that lack them."""
        self.doing = "stage"
        self.view = copy_for_start(self.changer, self.staging, self.view, self.report)

    def check(self, names: Collection[str]) -> list[Finding]:
        """Stop on errors that staging does not fix, before anything is changed.

        Returns:
            Findings about the connections between the nodes, which the view does not have.
        """
        topology = stop_before_staging(self.view, names)
        _, reached = between(self.fleet, self.spec, self.view.facts, topology, self.report, epochs=self.changer.epochs)
        if has_errors(reached):
            raise FoundErrors([*relevant(self.view.findings, self.view, names), *reached])
        return reached

    def cache_steps(self, name: str) -> list[dict[str, Any]]:
        """Steps that throw the compile caches of the plan's image away, where the user asks for it."""
        if not self.options.clear_caches or self.view.plan is None:
            return []
        # Those of other images may be in use by another cluster of the same user.
        caches = f"{self.view.facts[name].state_dir}/caches/"
        return [
            {"do": "delete", "path": path, "image": rank.image}
            for rank in self.view.plan.nodes[name].containers
            for path in rank.directories
            if path.startswith(caches)
        ]

    def finish(
        self, outcomes: Mapping[str, Outcome], kept: Mapping[str, GroupState], hashes: Mapping[str, dict[str, Any]]
    ) -> dict[str, Reply]:
        """Record what came up; replies by group, or the failure of those that did not come up."""
        topology, plan = self.view.ready()
        replies = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Reply)}
        groups = newly_recorded(
            self.spec, plan, topology, facts=self.view.facts, replies=replies, secrets=hashes, kept=kept
        )
        started = [group.release for group in groups if group.name in outcomes]
        self.number = max([*started, self.view.newest.number + 1 if self.view.newest else 0])
        failed = failure(outcomes, self.number)
        if replies:
            self.step("record", f"release {self.number}")
            document = record(
                self.spec,
                groups,
                number=self.number,
                plan_hash=plan.hash,
                operator=this_operator(),
                verified_at=time.time(),
                version=sparkcluster.__version__,
                digest=image_digest(self.view.facts.values()),
                former=self.former,
            )
            step = {"do": "record", "number": self.number, "record": document, "keep": KEEP}
            # The launch has waited for a node that was silent when its model answered.
            changer = dataclasses.replace(self.changer, patience_s=RECORD_S)
            try:
                changer.apply({name: [step] for name in plan.nodes})
            except SparkclusterError as error:
                raise failed or _unrecorded(error) from error
        if failed:
            raise failed
        return replies


def _unrecorded(error: SparkclusterError) -> SparkclusterError:
    """The error where the model answers, and a node could not be reached to record that."""
    if not is_transient(error):
        return error
    return LaunchError(
        f"the model answers, and {error.node} could not be recorded: {error.message}",
        node=error.node,
        step="record",
        hint="run sparkcluster up again once it can be reached: it verifies and records what runs",
    )
