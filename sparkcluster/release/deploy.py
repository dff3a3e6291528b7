"""One spec on the nodes of a cluster, under its lease: look, clean, check, stage, start, watch, verify, record."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sparkcluster
from sparkcluster.errors import FoundErrors, HostSilent, LaunchError, SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.collect import without_gpu
from sparkcluster.facts.engine import image_digest
from sparkcluster.facts.running import Reply
from sparkcluster.findings import Finding, has_errors
from sparkcluster.hosts.program import standalone
from sparkcluster.inspect.cluster import View, view_cluster
from sparkcluster.inspect.observing import observe_nodes, running_heads
from sparkcluster.inspect.preflight import between
from sparkcluster.inspect.selection import hints
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import KEEP, KEEP_IMAGES, RecordedGroup, kept_rank, record, unreadable
from sparkcluster.release.down import down_there, shown
from sparkcluster.release.enabled import start_documents
from sparkcluster.release.group import Launch
from sparkcluster.release.groups import Outcome, launch_groups
from sparkcluster.release.outcome import failure, last_start_s, newly_recorded
from sparkcluster.release.rollback_target import Kept, accepted_image, build_of
from sparkcluster.release.serving import OBSERVE_S, elsewhere
from sparkcluster.release.stage import copy_for_start
from sparkcluster.release.states import GroupState, State
from sparkcluster.release.stopping import stop
from sparkcluster.release.verify import remedies
from sparkcluster.report import Report, count
from sparkcluster.runtime import Changer, failed_logs, secrets, start_steps
from sparkcluster.runtime.change import Step
from sparkcluster.runtime.lease import Lease, this_operator
from sparkcluster.runtime.memory import evict
from sparkcluster.spec import Spec, consent
from sparkcluster.topology.model import Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The flags of ``up``, ``upgrade``, ``rollback`` and ``restart``.

    Attributes:
        timeout_s: overrides the playbook's readiness limit.
        replace: whether to replace what serves another plan, has drifted, or does not answer as it should.
        rollback: whether to go back where a switch fails.
        yes: accept without asking what a kept release can do, and an image that is copied to nodes.
        min_speed: the least speed of a new release, as a share of the one before; 0 compares nothing.
        wait_s: how long to wait for the lease.
        order: groups that are switched first.
        max_unavailable: how many groups are switched at once, after the first one.
        pause_s: between groups that are switched.
    """

    timeout_s: float | None = None
    clear_caches: bool = False
    replace: bool = False
    rollback: bool = True
    yes: bool = False
    min_speed: float = 0
    wait_s: float = 0
    order: tuple[str, ...] = ()
    max_unavailable: int = 1
    pause_s: float = 0


@dataclasses.dataclass(slots=True)
class Doing:
    """The step that is under way, for whoever is interrupted."""

    step: str = "connect"


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
        raise LaunchError(f"{name} cannot list its ranks: {why}", node=name, step="connect", hint=hint)
    return view


def stop_before_staging(view: View, names: Collection[str]) -> Topology:
    """The topology of the groups ``names``, unless a finding is an error that staging does not fix.

    Raises:
        FoundErrors: with every finding about them.
        PlanError: no topology can be made.
    """
    findings = view.findings_of(names)
    if has_errors([finding for finding in findings if not finding.code.startswith(("IMG-", "MDL-"))]):
        raise FoundErrors(findings)
    if view.topology is None:
        raise view.unplanned or LaunchError("no topology", step="plan")
    return view.topology.of_groups(names)


class Deployment:
    """One spec under one lease.

    Attributes:
        view: the cluster as it was last seen.
        measured: of each group, how long it took to start and its speed before and after a switch.
        number: of the release that it has recorded last.
        kept: the kept release that the spec is of, if it is of one: its groups start with the secrets that the nodes
            have of it, and whatever checks find.
    """

    def __init__(
        self,
        changer: Changer,
        spec: Spec,
        options: Options,
        report: Report,
        *,
        staging: Lease,
        doing: Doing,
        kept: Kept | None = None,
    ) -> None:
        self.changer = dataclasses.replace(changer, tell=report.note)
        self.fleet = changer.fleet
        self.spec = spec
        self.options = options
        self.report = report
        self.staging = staging
        self.doing = doing
        self.kept = kept
        self.number = 0
        self.measured: dict[str, dict[str, Any]] = {}
        # Facts from before the lease may be stale.
        self.view = whole(view_cluster(self.fleet, spec))

    def step(self, name: str, text: str = "") -> None:
        """Report that a step begins, and remember it for an interruption."""
        self.doing.step = name
        self.report.step(name, text)

    def look(self) -> None:
        """Look at the cluster again."""
        self.view = whole(view_cluster(self.fleet, self.spec))

    def clean(self, groups: Mapping[str, GroupState]) -> None:
        """Remove every rank of ``groups``, whatever its state."""
        for name, group in groups.items():
            if group.seen and group.seen.dead:
                self.report.note(f"{self.spec.inventory.called(name)} is dead ({group.seen.dead}): starting it again")
        number = sum(len(found) for group in groups.values() for found in group.ranks.values())
        self.step("stop", count(number, "rank") + (f" of {', '.join(groups)}" if self.spec.inventory.groups else ""))
        self.refuse_elsewhere(groups)
        failed: dict[str, SparkclusterError] = {}
        for drain in (True, False):
            ranks = {
                node: tuple(
                    rank for each in groups.values() if each.may_answer is drain for rank in each.ranks.get(node, ())
                )
                for node in self.view.ranks.ours
            }
            if any(ranks.values()):
                failed |= stop(self.changer, ranks, self.report, drain=drain)
        for error in failed.values():
            if isinstance(error, HostSilent):
                raise error
        if failed:
            name, error = next(iter(failed.items()))
            raise LaunchError(f"old ranks remain on {name}: {error.message}", node=name, step="stop", hint=error.hint)

    def refuse_elsewhere(self, names: Collection[str]) -> None:
        """Raise LaunchError where ranks of the groups ``names`` run on machines that left the inventory."""
        former = elsewhere(self.view, names)
        if former:
            raise LaunchError(
                f"ranks of this release also run outside of the inventory, on {' and '.join(map(shown, former))}",
                step="stop",
                hint=f"{down_there(former)}   stops them there as well; then up again",
            )

    def prepare(self, names: Collection[str]) -> None:
        """Check and stage for the groups ``names``; of a kept release errors are only reported.

        Raises:
            FoundErrors: an error that staging does not fix; nothing was changed.
        """
        if self.kept is None:
            self.step("check")
        reached = self.check(names)
        self.copy_missing()
        self.staging.close()
        self.view.ready()
        findings = self.view.findings_of(names)
        if has_errors(findings) and self.kept is None:
            raise FoundErrors(findings)
        for finding in [*findings, *reached]:
            if finding.severity in {"warning", "error"}:
                for line in finding.notes(hints(self.spec)):
                    self.report.note(line)

    def prove_gpu(self, names: Collection[str]) -> None:
        """Raise LaunchError where a container of the image has no GPU; of a kept release that is only reported."""
        nodes = self.view.ready()[1].of_groups(names).nodes
        images = {node: image.id for node in nodes if (image := read(self.view.facts[node].image)) is not None}
        for node, why in without_gpu(self.fleet, images).items():
            text = f"a container of {self.spec.reference} has no GPU on {node}: {why}"
            if self.kept is None:
                hint = f"on {node}: docker run --rm --gpus all --entrypoint nvidia-smi {self.spec.reference}"
                raise LaunchError(text, node=node, step="check", hint=hint)
            self.report.note(f"warning: {text}")

    def copy_missing(self) -> None:
        """Copy weights, image and Ray to the nodes that lack them."""
        self.doing.step = "copy"
        self.view = copy_for_start(self.staging, self.view, self.report, yes=self.options.yes)

    def check(self, names: Collection[str]) -> list[Finding]:
        """Stop on errors that staging does not fix, before anything is changed.

        Returns:
            Findings about the connections between the nodes, which the view does not have.
        """
        if self.kept is not None:
            return []
        topology = stop_before_staging(self.view, names)
        _, reached = between(self.fleet, self.spec, self.view.facts, topology, self.report, epochs=self.changer.epochs)
        if has_errors(reached):
            raise FoundErrors([*self.view.findings_of(names), *reached])
        return reached

    def launch(
        self, groups: Mapping[str, GroupState], *, left: bool = False
    ) -> tuple[dict[str, Outcome], dict[str, dict[str, Any]]]:
        """Start those of ``groups`` that are empty, watch and verify all; outcomes, and hashes of secrets, by group.

        ``left``: ranks that fail are left as they are.
        """
        starting = [name for name, each in groups.items() if each.state is State.EMPTY]
        if len(starting) < len(groups):
            self.report.note("the ranks of this plan are already running: continuing with them")
        topology, plan = self.view.ready()
        evict(self.changer, self.spec.playbook, plan.of_groups(starting).nodes, self.view.facts, self.report)
        hashes = self.hashes_of_running([group for name, group in groups.items() if name not in starting])
        # A guard would start the release before where this start fails, or is cut off.
        enabled = [node for node in plan.of_groups(starting).nodes if read(self.view.facts[node].enabled) is not None]
        self.changer.apply({node: [{"do": "stay-down"}] for node in enabled})
        self.changer.apply({node: self.cache_steps(node) for node in plan.of_groups(starting).nodes})
        steps, started_with = self.steps(starting, plan)
        expect_at = ":".join(map(str, self.spec.places.get(("verify", "expect"), ("the playbook",))))
        launches = [
            Launch(
                name,
                plan.of_groups([name]),
                topology.of_groups([name]),
                self.spec.playbook.verifying,
                self.options.timeout_s or self.spec.playbook.ready_timeout_s,
                steps.get(name),
                expect_at,
                left,
                last_start_s(self.view.newest, plan, name),
                functools.partial(remedies, self.spec.playbook),
            )
            for name in groups
        ]
        self.doing.step = "start"
        logs, began = failed_logs.directory(self.spec.inventory.cluster), time.monotonic()
        outcomes = launch_groups(self.changer, launches, self.report, logs=logs)
        # Of several that start at once the longest.
        self.measured |= {name: {"start_s": round(time.monotonic() - began, 1)} for name in starting}
        return outcomes, hashes | started_with

    def steps(
        self, starting: Sequence[str], plan: Plan
    ) -> tuple[dict[str, dict[str, list[Step]]], dict[str, dict[str, Any]]]:
        """Steps that start each group by node, and hashes of the secrets that it is started with."""
        entry = standalone("launcher", self.spec.playbook.engine)
        anew = self.kept is None or self.kept.anew
        values = secrets.values(self.spec, plan.of_groups(starting)) if anew and starting else {}
        hashes = dict.fromkeys(starting, secrets.keyed_hashes(values))
        if self.kept is not None:
            values = values or secrets.of_inventory(self.spec)
            hashes = {
                name: secrets.renewed(self.kept.groups[name].secrets, values, plan.of_groups([name]).secrets)
                for name in starting
            }
        steps = {
            name: {
                node: start_steps(
                    planned,
                    entry=entry,
                    secrets=values,
                    hashes=hashes[name],
                    kept_secrets=self.kept.number if self.kept is not None and not anew else None,
                )
                for node, planned in plan.of_groups([name]).nodes.items()
            }
            for name in starting
        }
        return steps, hashes

    def hashes_of_running(self, groups: Collection[GroupState]) -> dict[str, dict[str, Any]]:
        """Salt and hashes of the secrets that ranks which run already were started with, by group."""
        facts = {node: self.view.facts[node] for group in groups for node in group.ranks}
        observations = observe_nodes(self.fleet, self.spec, facts, OBSERVE_S)
        heads = [rank for _, rank in running_heads(self.spec, facts, observations)]
        return {rank.group: dict(rank.launcher.get("secrets") or {}) for rank in heads}

    def cache_steps(self, name: str) -> list[Step]:
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
        self,
        outcomes: Mapping[str, Outcome],
        hashes: Mapping[str, dict[str, Any]],
        *,
        kept: Mapping[str, RecordedGroup],
        former: Mapping[str, Any],
        partial: bool = False,
    ) -> dict[str, Reply]:
        """Record what came up beside the groups ``kept``; replies by group, or the failure of those that did not.

        ``former`` are nodes that left the inventory and may still have ranks; ``partial`` if more groups follow.
        """
        topology, plan = self.view.ready()
        replies = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Reply)}
        groups = newly_recorded(
            self.spec,
            plan,
            topology,
            facts=self.view.facts,
            replies=replies,
            secrets=hashes,
            kept=kept,
            measured=self.measured,
            names=outcomes,
        )
        started = [group.release for group in groups if group.name in outcomes]
        self.number = max([*started, self.view.newest.number + 1 if self.view.newest else 0])
        failed = failure(outcomes, self.number)
        if replies:
            self.step("verify", f"two answers, recorded as release {self.number}")
            document = record(
                self.spec,
                groups,
                number=self.number,
                plan_hash=plan.hash,
                operator=this_operator(),
                verified_at=time.time(),
                version=sparkcluster.__version__,
                digest=image_digest(self.view.facts.values()),
                former=former,
                partial=partial,
                operation=self.changer.operation,
                restores=self.kept.number if self.kept else 0,
            )
            step = {"do": "record", "number": self.number, "record": document, "keep": KEEP, "keep_images": KEEP_IMAGES}
            limit_s = max(self.options.timeout_s or 0, self.spec.playbook.ready_timeout_s)
            failing = outcomes.keys() - replies.keys()
            starts = start_documents(self.view, replies, hashes, failed=failing, ready_timeout_s=limit_s)
            try:
                self.changer.apply(
                    {name: [step | kept_rank(groups, name) | {"start": starts[name]}] for name in plan.nodes}
                )
            except SparkclusterError as error:
                if failed:
                    raise failed from error
                raise
            for group in groups:
                if group.name in replies:
                    consent.remember([accepted_image(self.spec, build_of(group))])
            self.report.done()
        if failed:
            raise failed
        return replies
