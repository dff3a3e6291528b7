"""Changes groups under the lease of one command: clean, start, watch, verify and record."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sparkcluster
from sparkcluster.errors import HostSilent, Interrupted, LaunchError, LeaseHeld, LeaseLost, SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.engine import image_digest
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.probe import Answer
from sparkcluster.hosts.fleet import Calls, Fleet, failures, values
from sparkcluster.hosts.program import standalone
from sparkcluster.inspect.cluster import View, changed, view_cluster
from sparkcluster.inspect.observing import ROUND_TRIP_S, begin_observing, observed, running_heads
from sparkcluster.inspect.releases import release_of
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import RecordedGroup, kept_rank, record
from sparkcluster.release.down import former_nodes
from sparkcluster.release.enabled import start_documents
from sparkcluster.release.group import Launch, Outcome, launch_groups
from sparkcluster.release.rollback_target import accepted_image, build_of, last_start_s, newly_recorded
from sparkcluster.release.serving import survey, whole
from sparkcluster.release.states import Action, Desired, GroupState, State, Verdict, group_states
from sparkcluster.release.stopping import ranks_of, stop
from sparkcluster.report import Report, count, duration
from sparkcluster.runtime import Changer, secrets, start_steps
from sparkcluster.runtime.change import LeaseKind, Step
from sparkcluster.runtime.lease import START_WAIT_S, Lease, this_operator, wait_for
from sparkcluster.runtime.memory import evict
from sparkcluster.spec import Spec, consent

OBSERVE_S = 20.0
# A dying engine closes its API first; its rank ends some seconds later.
DYING_S = 5.0


class Rollout:
    """One change of a cluster: its current state, and what was done so far.

    Attributes:
        view, groups: the cluster as last read, updated by own changes.
        changer: changes nodes once ``take`` has taken the lease.
        former: nodes that left the inventory and may still have ranks, for the record.
        step: the current step, for an interruption.
        number: number of the newest recorded release; ``changed`` if it is new.
        downtime_s: longest time from stopping a serving group to its next verified answer.
        speed: tokens/s before and after, by replaced group; None if not measured.
        source: the release that served before; 0 without one.
        copied_bytes: of image and weights, while the previous release served; ``seconds`` is the total duration.
        left: whether failed ranks are kept for diagnosis.
    """

    def __init__(self, fleet: Fleet, desired: Desired, report: Report) -> None:
        consent.require(desired.spec)
        self.fleet = fleet
        self.desired = desired
        self.report = report
        self.changer = Lease(fleet, desired.spec.inventory, desired.operation).changer
        self.start_locks, self.start_nodes = contextlib.ExitStack(), set[str]()
        self.former: Mapping[str, Any] = {}
        self.step = "connect"
        self.number = 0
        self.changed = False
        self.speed: dict[str, tuple[float | None, float | None]] = {}
        self.source = self.copied_bytes = 0
        self.seconds = self.downtime_s = 0.0
        self.left = False
        self.view: View
        self.groups: dict[str, GroupState] = {}

    def see(self, probes: Calls[Answer] | None = None, also: Sequence[Spec] = ()) -> None:
        """Read the cluster, and decide what to do with every group; ``probes`` and ``also`` as in ``view_cluster``.

        Reads it a second time if an engine may be dying.
        """
        for _ in range(2):
            self.view = whole(view_cluster(self.fleet, self.desired.spec, probes=probes, also=also))
            self.groups = survey(self.fleet, self.view, self.desired, self.report, self.groups)
            probes = None
            asked = [group.verdict.reply for group in self.groups.values() if group.verdict]
            if not any(reply and reply.problem in {"refused", "lost"} for reply in asked):
                break
            time.sleep(DYING_S)
        newest = self.view.newest
        self.number = newest.number if newest else 0
        # After down no rank is left, not even on nodes that are no longer in the inventory.
        record = newest.record if newest and self.view.ranks.anything else {}
        nodes = former_nodes(self.desired.spec, {"": record})
        self.former = {**self.former, **{node.label: {"host": node.host} for node in nodes}}

    def to_start(self, *more: Action) -> list[str]:
        """Groups whose ranks are to be started, or whose action is in ``more``."""
        return [name for name, group in self.groups.items() if group.action in {Action.START, Action.CLEAN, *more}]

    def take(self, stack: contextlib.ExitStack, kind: LeaseKind = "cluster") -> Changer:
        """Take the lease unless we hold it; ``stack`` releases it; waits for it as the options say.

        Raises:
            LeaseHeld: another operator holds it.
        """
        if kind == "cluster" and self.changer.epochs:
            return self.changer
        try:
            lease = stack.enter_context(self._lease(kind, self.fleet.hosts, self.desired.options.wait_s))
        except LeaseHeld as held:
            held.hint = f"{'' if self.desired.operation == 'bench' else 'add --wait 600; or '}{held.hint}"
            raise
        if kind == "cluster":
            self.changer = lease.changer
        return lease.changer

    def _lease(self, kind: LeaseKind, names: Collection[str], limit_s: float) -> Lease:
        """The lease of ``kind`` on the nodes ``names``; waits up to ``limit_s`` for it."""
        inventory, operation = self.desired.spec.inventory, self.desired.operation
        return wait_for(lambda: Lease(self.fleet, inventory, operation, kind), names, self.report, limit_s)

    def _hold_start(self, names: Collection[str]) -> None:
        """Take the start lock on the nodes ``names`` where it is not held yet."""
        if needed := [name for name in names if name not in self.start_nodes]:
            if self.desired.spec.siblings:
                self.begin("wait", "for the memory of other models to be stable")
            self.start_locks.enter_context(self._lease("start", needed, START_WAIT_S))
            self.start_nodes.update(needed)

    def let_start(self) -> None:
        """Release the start locks, so that other clusters can start and stop."""
        self.start_locks.close()
        self.start_nodes.clear()

    def begin(self, step: str, text: str = "") -> None:
        """Report the begin of a step, and remember it for an interruption."""
        self.step = step
        self.report.step(step, text)

    def interrupted(self) -> Interrupted:
        """The error for an interruption outside of the launch itself."""
        if self.step not in {"stop", "start", "verify"}:
            return Interrupted("interrupted; no rank was started", step=self.step)
        hint = "sparkcluster up INVENTORY; or sparkcluster down INVENTORY"
        return Interrupted("interrupted; ranks may still run", step=self.step, hint=hint)

    def replace(
        self,
        names: Collection[str],
        *,
        partial: bool = False,
        accept: Callable[[RecordedGroup], None] = lambda _group: None,
    ) -> None:
        """Clean the groups ``names`` where needed, start empty ones, then watch, verify and record all of them.

        Until they have answered, no other cluster starts or stops on their nodes; after a failure until ``let_start``,
        since a rollback needs the memory.

        ``accept`` is called for each verified group and raises if it must not be recorded; ``partial``: more groups
        are still to be switched.

        Raises:
            SparkclusterError: a group did not come up; the groups that did are recorded.
        """
        dirty = {name: self.groups[name] for name in names if self.groups[name].action is Action.CLEAN}
        nodes = {node for group in dirty.values() for node, ranks in group.ranks.items() if ranks}
        if any(self.groups[name].action in {Action.CLEAN, Action.START} for name in names):
            self._hold_start(nodes.union(self.view.ready()[1].of_groups(names).nodes))
        began = time.monotonic()
        if dirty:
            self.clean(dirty)
        outcomes, hashes = self.launch([name for name in names if name in self.groups])
        if not failures(outcomes):
            self.let_start()
        groups = newly_recorded(self.view, outcomes, hashes)
        if not failures(outcomes):
            if any(group.replaced for group in dirty.values()):
                self.downtime_s = max(self.downtime_s, time.monotonic() - began)
            for group in groups:
                if group.name in outcomes:
                    accept(group)
        self.record(groups, outcomes, partial=partial)

    def clean(self, groups: Mapping[str, GroupState]) -> None:
        """Remove every rank of ``groups``, whatever its state."""
        inventory = self.view.spec.inventory
        for name, group in groups.items():
            if group.dead:
                self.report.note(f"{inventory.called(name)} is dead ({group.dead}); restarting it")
        number = sum(len(found) for group in groups.values() for found in group.ranks.values())
        self.begin("stop", count(number, "rank") + (f" of {', '.join(groups)}" if inventory.groups else ""))
        ranks = {
            node: [rank for group in groups.values() for rank in group.ranks.get(node, ())] for node in self.view.facts
        }
        drain = any(group.may_answer for group in groups.values())
        for name, error in stop(self.changer, ranks, self.report, drain=drain).items():
            if isinstance(error, (HostSilent, LeaseLost)):
                raise error
            hint = error.hint or "sparkcluster down INVENTORY"
            raise LaunchError(f"old ranks remain on {name}: {error.message}", node=name, step="stop", hint=hint)
        gone = {rank.name for found in ranks.values() for rank in found}
        states = self._take_in(gone, {})
        # An unrecorded group disappears with its ranks.
        for name in groups:
            del self.groups[name]
            if name in states:
                self.groups[name] = dataclasses.replace(states[name], action=Action.START)

    def _take_in(
        self, gone: Collection[str], come: Mapping[str, Sequence[Rank]], **more: ReleaseFact
    ) -> dict[str, GroupState]:
        """Update the view: without the ranks ``gone``, with the ranks ``come``; returns the state of its groups.

        ``more`` are other changed facts of the nodes in ``come``.
        """
        facts = {}
        for node, found in self.view.facts.items():
            left = [rank for rank in read(found.ranks) or () if rank.name not in gone]
            update = {"ranks": (*left, *come.get(node, ())), **(more if node in come else {})}
            facts[node] = found.model_copy(update=update)
        self.view = changed(self.view, facts)
        return group_states(self.view)

    def launch(self, names: Collection[str]) -> tuple[dict[str, Outcome], dict[str, dict[str, Any]]]:
        """Start the empty groups of ``names``, watch and verify all; returns outcomes and secret hashes by group."""
        spec, newest = self.view.spec, self.view.newest
        starting = [name for name in names if self.groups[name].state is State.EMPTY]
        topology, plan = self.view.ready()
        nodes = plan.of_groups(starting).nodes
        evict(self.changer, spec.playbook, nodes, self.view.facts, self.report)
        hashes = self._hashes_of_running([self.groups[name] for name in names if name not in starting])
        limit_s = self.desired.options.timeout_s or spec.playbook.ready_timeout_s
        launches = []
        for name in names:
            part, steps = plan.of_groups([name]), None
            if name in starting:
                steps, hashes[name] = self._start_steps(part, name)
            launches.append(Launch(name, part, topology.of_groups([name]), spec, limit_s, steps, self.left))
        last_s = [found for name in names if (found := last_start_s(newest, plan, name)) is not None]
        ranks = f"{count(len(nodes), 'rank')}, " if nodes else ""
        last = f"; last time {duration(max(last_s))}" if last_s else ""
        self.begin("start", f"{ranks}within {duration(limit_s)}{last}")
        return launch_groups(self.changer, launches, self.report), hashes

    def _start_steps(self, plan: Plan, group: str) -> tuple[dict[str, list[Step]], dict[str, Any]]:
        """By node, the steps that start ``group`` of ``plan``; and hashes of the secrets that it is started with."""
        spec, release = self.view.spec, self.desired.release
        if release is None:
            here = secrets.values(spec, plan)
            hashes = secrets.keyed_hashes(here)
        else:
            here = secrets.of_inventory(spec)
            hashes = secrets.renewed(release.groups[group].secrets, here, plan.secrets)
        entry, kept = standalone("launcher", spec.playbook.engine), release.number if release else None
        steps: dict[str, list[Step]] = {}
        for name, node in plan.nodes.items():
            facts = self.view.facts[name]
            # Otherwise a guard would start the previous release after a failed or interrupted start.
            before: list[Step] = [{"do": "stay-down"}] if read(facts.enabled) is not None else []
            if self.desired.options.clear_caches:
                (rank,) = node.containers
                # Caches of other images may be in use by another cluster of the same user.
                old = [path for path in rank.directories if path.startswith(f"{facts.state_dir}/caches/")]
                before += [{"do": "delete", "path": path, "image": rank.image} for path in old]
            steps[name] = [*before, *start_steps(node, entry=entry, secrets=here, hashes=hashes, kept_secrets=kept)]
        return steps, hashes

    def _hashes_of_running(self, groups: Collection[GroupState]) -> dict[str, dict[str, Any]]:
        """Salt and hashes of the secrets that running ranks were started with, by group."""
        facts = {node: self.view.facts[node] for group in groups for node in group.ranks}
        seen = begin_observing(self.fleet, self.view.spec, facts, OBSERVE_S)
        heads = [rank for _, rank in running_heads(self.view.spec, facts, observed(seen, OBSERVE_S + ROUND_TRIP_S))]
        return {rank.group: dict(rank.launcher.get("secrets") or {}) for rank in heads}

    def record(self, groups: Sequence[RecordedGroup], outcomes: Mapping[str, Outcome], *, partial: bool) -> None:
        """Record ``groups``; then raise the error of groups in ``outcomes`` that did not come up."""
        spec, newest, plan = self.view.spec, self.view.newest, self.view.ready()[1]
        replies = values(outcomes)
        started = [group.release for group in groups if group.name in outcomes]
        self.number = max([*started, newest.number + 1 if newest else 0])
        self.changed = True
        failed = failure(outcomes, self.number)
        if replies:
            self.begin("verify", f"two answers, recorded as release {self.number}")
            document = record(
                spec,
                groups,
                number=self.number,
                plan_hash=plan.hash,
                operator=this_operator(),
                verified_at=time.time(),
                version=sparkcluster.__version__,
                image_digest=image_digest(self.view.facts.values()),
                former=self.former,
                partial=partial,
                operation=self.changer.operation,
                restores=self.desired.release.number if self.desired.release else 0,
            )
            step = {"do": "record", "number": self.number, "record": document}
            limit_s = max(self.desired.options.timeout_s or 0, spec.playbook.ready_timeout_s)
            hashes = {group.name: group.secrets for group in groups}
            starts = start_documents(self.view, replies, hashes, failed=failures(outcomes), ready_timeout_s=limit_s)
            self.changer.apply(
                {name: [step | kept_rank(groups, name) | {"start": starts[name]}] for name in plan.nodes}
            )
            consent.remember(accepted_image(spec, build_of(group)) for group in groups if group.name in replies)
            running = ranks_of(plan.of_groups(replies))
            names = {rank.name for ranks in running.values() for rank in ranks}
            release = release_of(json.loads(json.dumps(document)))
            states = self._take_in(names, {node: running.get(node, []) for node in plan.nodes}, release=release)
            for name, reply in replies.items():
                self.groups[name] = dataclasses.replace(states[name], verdict=Verdict(reply), action=Action.KEEP)
            self.report.done()
        if failed:
            raise failed


def failure(outcomes: Mapping[str, Outcome], number: int) -> SparkclusterError | None:
    """The error of a launch, with the outcome of every group; None if all came up."""
    errors, serving = failures(outcomes), list(values(outcomes))
    if not errors:
        return None
    kinds = (Interrupted, LeaseLost, SparkclusterError)
    name = next(name for kind in kinds for name, error in errors.items() if isinstance(error, kind))
    final = errors.pop(name)
    parts = [f"{other}: {error.message}" for other, error in errors.items() if error.message != final.message]
    if serving:
        parts.append(f"{', '.join(serving)} {'serves' if len(serving) == 1 else 'serve'} as release {number}")
    elif final.message == "interrupted":
        parts.append("nothing is left running")
    final.message = "; ".join([final.message, *parts])
    final.args = (final.message,)
    return final
