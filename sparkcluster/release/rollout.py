"""What one command does to groups under its lease: clean, start, watch, verify and record them."""

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
from sparkcluster.facts.engine import image_digest
from sparkcluster.facts.probe import Answer
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.hosts.program import standalone
from sparkcluster.inspect.cluster import View, changed, view_cluster
from sparkcluster.inspect.observing import ROUND_TRIP_S, begin_observing, observed, running_heads
from sparkcluster.inspect.releases import release_of
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import KEEP, KEEP_IMAGES, kept_rank, record, recorded_groups
from sparkcluster.release.down import former_nodes
from sparkcluster.release.enabled import start_documents
from sparkcluster.release.group import Launch, Outcome, launch_groups
from sparkcluster.release.rollback_target import accepted_image, build_of, last_start_s, newly_recorded
from sparkcluster.release.serving import survey, whole
from sparkcluster.release.states import Action, Desired, GroupState, State, Verdict, group_states
from sparkcluster.release.stopping import ranks_of, stop
from sparkcluster.report import Report, count
from sparkcluster.runtime import Changer, failed_logs, secrets, start_steps
from sparkcluster.runtime.change import LeaseKind, Step
from sparkcluster.runtime.lease import Lease, this_operator
from sparkcluster.runtime.memory import evict
from sparkcluster.spec import Spec, consent

OBSERVE_S = 20.0
# An engine that dies closes its API first; its rank is gone some seconds later.
DYING_S = 5.0
LEASE_AGAIN_S = 2.0


class Rollout:
    """A cluster on the way to what is desired: what is seen of it, and what was done.

    Attributes:
        view, groups: the cluster as it was last seen, and as it was changed since.
        changer: changes nodes once ``take`` has taken the lease.
        former: nodes that left the inventory and may still have ranks, for the record.
        step: the step that is under way, for an interruption.
        number: of the release that was recorded last, or is; ``changed`` if one was.
        measured: by group, how long it took to start, and its speed before and after a switch, for the record.
        downtime_s: from the begin of the stop of a group that served to its next verified answer, by group.
        speed: tokens/s before and after, by group that was replaced; None where it was not measured.
        source: the release that served before, and ``restored`` the one that serves again; 0 without one.
        copied_bytes: of image and weights, while the release before served; ``seconds`` is how long all took.
        left: whether ranks that fail are left as they are, for study.
    """

    def __init__(self, fleet: Fleet, desired: Desired, report: Report) -> None:
        consent.require(desired.spec)
        self.fleet = fleet
        self.desired = desired
        self.report = report
        self.changer = self._lease("cluster").changer
        self.former: Mapping[str, Any] = {}
        self.step = "connect"
        self.number = 0
        self.changed = False
        self.measured: dict[str, dict[str, Any]] = {}
        self.downtime_s: dict[str, float] = {}
        self.speed: dict[str, tuple[float | None, float | None]] = {}
        self.source = self.restored = self.copied_bytes = 0
        self.seconds = 0.0
        self.left = False
        self.view: View
        self.groups: dict[str, GroupState] = {}

    def see(self, probes: Calls[Answer] | None = None, also: Sequence[Spec] = ()) -> None:
        """See the cluster, and decide what to do with every group; ``probes``, ``also`` are those of ``view_cluster``.

        It is looked at again where an engine may be dying.
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
        # After down no rank is left, here or on nodes that are no longer in the inventory.
        record = newest.record if newest and self.view.ranks.anything else {}
        nodes = former_nodes(self.desired.spec, {"": record})
        self.former = {**self.former, **{node.label: {"host": node.host} for node in nodes}}

    def to_start(self, *more: Action) -> list[str]:
        """Groups whose ranks are to be started, or with which is to be done what ``more`` says."""
        return [name for name, group in self.groups.items() if group.action in {Action.START, Action.CLEAN, *more}]

    def take(self, stack: contextlib.ExitStack, kind: LeaseKind = "cluster") -> Changer:
        """Take the lease unless it is ours, which ``stack`` lets go of; it is waited for as the options say.

        Raises:
            LeaseHeld: another operator has it.
        """
        if kind == "cluster" and self.changer.epochs:
            return self.changer
        wait_s = self.desired.options.wait_s
        until, waiting = time.monotonic() + wait_s, False
        while True:
            try:
                lease = stack.enter_context(self._lease(kind).acquire(list(self.fleet.hosts)))
                break
            except LeaseHeld as held:
                if not wait_s:
                    held.hint = f"add --wait 600; or {held.hint}"
                if time.monotonic() >= until:
                    raise
                if not waiting:
                    self.report.note(f"{held.message}: waiting up to {wait_s:g} s")
                waiting = True
                time.sleep(min(LEASE_AGAIN_S, max(0.0, until - time.monotonic())))
        if kind == "cluster":
            self.changer = lease.changer
        return lease.changer

    def _lease(self, kind: LeaseKind) -> Lease:
        return Lease(self.fleet, self.desired.spec.inventory, self.desired.operation, kind)

    def begin(self, step: str, text: str = "") -> None:
        """Report that a step begins, and remember it for an interruption."""
        self.step = step
        self.report.step(step, text)

    def interrupted(self) -> Interrupted:
        """What an interruption outside of the launch itself leaves behind."""
        remains = {
            "stop": ("old ranks may remain", "sparkcluster up INVENTORY; or sparkcluster down INVENTORY"),
            "start": ("ranks may still run", "sparkcluster down INVENTORY"),
            "verify": ("the model serves, and is not recorded", "sparkcluster up INVENTORY"),
        }
        left, hint = remains.get(self.step, ("no rank was started", None))
        return Interrupted(f"interrupted; {left}", step=self.step, hint=hint)

    def replace(
        self, names: Collection[str], *, partial: bool = False, accept: Callable[[str], None] = lambda _group: None
    ) -> None:
        """Clean those of ``names`` that have to be, start what is empty, watch, verify and record all of them.

        ``accept`` raises what speaks against a group that has answered, before it is recorded; ``partial`` if more
        groups are to be switched.

        Raises:
            SparkclusterError: a group did not come up; those that did are recorded.
        """
        began = time.monotonic()
        dirty = {name: self.groups[name] for name in names if self.groups[name].action is Action.CLEAN}
        if dirty:
            self.clean(dirty)
        outcomes, hashes = self.launch([name for name in names if name in self.groups])
        if all(isinstance(outcome, Reply) for outcome in outcomes.values()):
            served = [name for name, group in dirty.items() if group.replaced]
            self.downtime_s |= dict.fromkeys(served, time.monotonic() - began)
            for name in outcomes:
                accept(name)
        self.record(outcomes, hashes, partial=partial)

    def clean(self, groups: Mapping[str, GroupState]) -> None:
        """Remove every rank of ``groups``, whatever its state."""
        inventory = self.view.spec.inventory
        for name, group in groups.items():
            if group.dead:
                self.report.note(f"{inventory.called(name)} is dead ({group.dead}): starting it again")
        number = sum(len(found) for group in groups.values() for found in group.ranks.values())
        self.begin("stop", count(number, "rank") + (f" of {', '.join(groups)}" if inventory.groups else ""))
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
        for name, error in failed.items():
            if isinstance(error, HostSilent):
                raise error
            raise LaunchError(f"old ranks remain on {name}: {error.message}", node=name, step="stop", hint=error.hint)
        gone = {rank.name for group in groups.values() for ranks in group.ranks.values() for rank in ranks}
        facts = dict(self.view.facts)
        for node, found in facts.items():
            left = tuple(rank for rank in read(found.ranks) or () if rank.name not in gone)
            facts[node] = found.model_copy(update={"ranks": left})
        self.view = changed(self.view, facts)
        # A group that only its ranks named is gone with them.
        states = group_states(self.view)
        for name in groups:
            del self.groups[name]
            if name in states:
                self.groups[name] = dataclasses.replace(states[name], action=Action.START)

    def launch(self, names: Collection[str]) -> tuple[dict[str, Outcome], dict[str, dict[str, Any]]]:
        """Start those of ``names`` that are empty, watch and verify all; outcomes, and hashes of secrets, by group."""
        spec, options = self.view.spec, self.desired.options
        starting = [name for name in names if self.groups[name].state is State.EMPTY]
        if len(starting) < len(names):
            self.report.note("the ranks of this plan are already running: continuing with them")
        topology, plan = self.view.ready()
        nodes = plan.of_groups(starting).nodes
        evict(self.changer, spec.playbook, nodes, self.view.facts, self.report)
        hashes = self._hashes_of_running([self.groups[name] for name in names if name not in starting])
        # A guard would start the release before where this start fails, or is cut off.
        enabled = [node for node in nodes if read(self.view.facts[node].enabled) is not None]
        self.changer.apply({node: [{"do": "stay-down"}] for node in enabled})
        if options.clear_caches:
            self.changer.apply({node: self._cache_steps(plan, node) for node in nodes})
        steps, started_with = self._start_steps(starting, plan)
        launches = [
            Launch(
                name,
                plan.of_groups([name]),
                topology.of_groups([name]),
                spec,
                options.timeout_s or spec.playbook.ready_timeout_s,
                steps.get(name),
                self.left,
                last_start_s(self.view.newest, plan, name),
            )
            for name in names
        ]
        self.step = "start"
        logs, began = failed_logs.directory(spec.inventory.cluster), time.monotonic()
        outcomes = launch_groups(self.changer, launches, self.report, logs=logs)
        # Of several that start at once the longest.
        self.measured |= {name: {"start_s": round(time.monotonic() - began, 1)} for name in starting}
        return outcomes, hashes | started_with

    def _start_steps(
        self, starting: Sequence[str], plan: Plan
    ) -> tuple[dict[str, dict[str, list[Step]]], dict[str, dict[str, Any]]]:
        """Steps that start each group by node, and hashes of the secrets that it is started with."""
        spec, release = self.view.spec, self.desired.release
        entry = standalone("launcher", spec.playbook.engine)
        if release is None:
            values = secrets.values(spec, plan.of_groups(starting)) if starting else {}
            hashes = dict.fromkeys(starting, secrets.keyed_hashes(values))
        else:
            values = secrets.of_inventory(spec)
            hashes = {
                name: secrets.renewed(release.groups[name].secrets, values, plan.of_groups([name]).secrets)
                for name in starting
            }
        kept = release.number if release else None
        steps = {
            name: {
                node: start_steps(planned, entry=entry, secrets=values, hashes=hashes[name], kept_secrets=kept)
                for node, planned in plan.of_groups([name]).nodes.items()
            }
            for name in starting
        }
        return steps, hashes

    def _hashes_of_running(self, groups: Collection[GroupState]) -> dict[str, dict[str, Any]]:
        """Salt and hashes of the secrets that ranks which run already were started with, by group."""
        facts = {node: self.view.facts[node] for group in groups for node in group.ranks}
        seen = begin_observing(self.fleet, self.view.spec, facts, OBSERVE_S)
        heads = [rank for _, rank in running_heads(self.view.spec, facts, observed(seen, OBSERVE_S + ROUND_TRIP_S))]
        return {rank.group: dict(rank.launcher.get("secrets") or {}) for rank in heads}

    def _cache_steps(self, plan: Plan, node: str) -> list[Step]:
        """Steps that throw the compile caches of the plan's image away."""
        # Those of other images may be in use by another cluster of the same user.
        caches = f"{self.view.facts[node].state_dir}/caches/"
        return [
            {"do": "delete", "path": path, "image": rank.image}
            for rank in plan.nodes[node].containers
            for path in rank.directories
            if path.startswith(caches)
        ]

    def record(
        self, outcomes: Mapping[str, Outcome], hashes: Mapping[str, dict[str, Any]], *, partial: bool = False
    ) -> None:
        """Record what came up beside the groups that are left as they are; raise the failure of those that did not."""
        spec, newest = self.view.spec, self.view.newest
        topology, plan = self.view.ready()
        replies = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Reply)}
        others = recorded_groups(newest.record) if newest else {}
        groups = newly_recorded(
            spec,
            plan,
            topology,
            facts=self.view.facts,
            replies=replies,
            secrets=hashes,
            kept={name: each for name, each in others.items() if name not in outcomes},
            measured=self.measured,
            names=outcomes,
        )
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
            step = {"do": "record", "number": self.number, "record": document, "keep": KEEP, "keep_images": KEEP_IMAGES}
            limit_s = max(self.desired.options.timeout_s or 0, spec.playbook.ready_timeout_s)
            failing = outcomes.keys() - replies.keys()
            starts = start_documents(self.view, replies, hashes, failed=failing, ready_timeout_s=limit_s)
            self.changer.apply(
                {name: [step | kept_rank(groups, name) | {"start": starts[name]}] for name in plan.nodes}
            )
            for group in groups:
                if group.name in replies:
                    consent.remember([accepted_image(spec, build_of(group))])
            self._recorded(document, plan, replies)
            self.report.done()
        if failed:
            raise failed

    def _recorded(self, document: Mapping[str, Any], plan: Plan, replies: Mapping[str, Reply]) -> None:
        """Take in that the groups of ``replies`` serve as ``document`` says."""
        release = release_of(json.loads(json.dumps(document)))
        facts = dict(self.view.facts)
        for node in plan.nodes:
            facts[node] = facts[node].model_copy(update={"release": release})
        for node, running in ranks_of(plan.of_groups(replies)).items():
            names = {rank.name for rank in running}
            others = [rank for rank in read(facts[node].ranks) or () if rank.name not in names]
            facts[node] = facts[node].model_copy(update={"ranks": (*others, *running)})
        self.view = changed(self.view, facts)
        states = group_states(self.view)
        for name, reply in replies.items():
            self.groups[name] = dataclasses.replace(states[name], verdict=Verdict(reply), action=Action.KEEP)


def failure(outcomes: Mapping[str, Outcome], number: int) -> SparkclusterError | None:
    """The error of a launch, with the outcome of every group; None if all came up."""
    errors = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, SparkclusterError)}
    if not errors:
        return None
    kinds = (Interrupted, LeaseLost, SparkclusterError)
    name = next(name for kind in kinds for name, error in errors.items() if isinstance(error, kind))
    final = errors.pop(name)
    parts = [f"{other}: {error.message}" for other, error in errors.items() if error.message != final.message]
    serving = [other for other, outcome in outcomes.items() if isinstance(outcome, Reply)]
    if serving:
        parts.append(f"{', '.join(serving)} {'serves' if len(serving) == 1 else 'serve'} as release {number}")
    elif isinstance(final, Interrupted) and final.message == "interrupted":
        parts.append("nothing is left running")
    final.message = "; ".join([final.message, *parts])
    final.args = (final.message,)
    return final
