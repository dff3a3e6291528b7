"""``up``: read, decide and stage; then under the lease read again, start, verify and record, by the state table."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence

from sparkcluster.errors import FoundErrors, LaunchError
from sparkcluster.facts.base import read
from sparkcluster.facts.probe import Answer
from sparkcluster.findings import Finding, has_errors
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect.preflight import between
from sparkcluster.inspect.releases import node_records
from sparkcluster.inspect.selection import hints
from sparkcluster.node.shared import LABEL_CLUSTER
from sparkcluster.plan.switch import anything
from sparkcluster.release import stage
from sparkcluster.release.enabled import disable, enable, guards, load_on_demand
from sparkcluster.release.replacement import Replacement, choose_target, forget, to_replace
from sparkcluster.release.rollback_target import prove
from sparkcluster.release.rollout import Rollout
from sparkcluster.release.serving import note_differences, refuse, refuse_elsewhere, stop_on_wrong_answers
from sparkcluster.release.states import Action, Desired
from sparkcluster.report import Report, count
from sparkcluster.runtime import Changer, observed, secrets
from sparkcluster.staging.run import StageReport


def up(fleet: Fleet, desired: Desired, report: Report, probes: Calls[Answer] | None = None) -> Rollout:
    """Bring the cluster from any state to a verified endpoint for every group.

    ``probes`` are probes that were already sent.

    Raises:
        RolledBack: a replacement failed, and the previous release serves again.
        FoundErrors: findings of severity error; nothing was changed.
        OtherPlan, NotServing: a group serves another plan or answers wrongly, and is not dead; nothing was changed.
        LeaseHeld: another operator holds the lease.
        StageError, LaunchError: with node, step and hint; no rank of the failed group is left running.
    """
    began = time.monotonic() - report.asked_s
    rollout = Rollout(fleet, desired, report)
    report.step("connect", count(len(fleet.hosts), "Spark"))
    with contextlib.ExitStack() as leases:
        leases.callback(rollout.let_start)
        rollout.see(probes)
        if rollout.to_start():
            _refuse_beside(rollout)
        on_demand = any(each and each.on_demand for each in guards(rollout.view.facts))
        if on_demand and (rollout.to_start(Action.WATCH) or desired.spec.idle_s is None):
            disable(fleet, desired.spec, report)  # they would stop a model without requests
            rollout.see()
        if rollout.view.lease is not None and any(each.action is not Action.KEEP for each in rollout.groups.values()):
            # Ranks that would be refused may be ranks that the lease holder is starting.
            rollout.take(leases)
            rollout.see()
        if not desired.options.replace:  # a refusal is not a failure of this step
            report.done()
        refuse(rollout.view, rollout.groups)
        note_differences(rollout.view, rollout.groups, report)
        rollout.source = rollout.number
        if rollout.to_start(Action.WATCH) or anything(rollout.view.facts):
            try:
                _change(rollout, leases)
            except KeyboardInterrupt:
                raise rollout.interrupted() from None
        stop_on_wrong_answers(rollout.view, rollout.groups)
    _guard(rollout)
    rollout.seconds = time.monotonic() - report.asked_s - began
    if rollout.changed:
        spec, seconds = desired.spec, round(rollout.seconds, 1)
        observed.note(
            spec.inventory.cluster,
            "up",
            operation=desired.operation,
            model=spec.playbook.model_name,
            seconds=seconds,
            clear_caches=desired.options.clear_caches,
        )
    return rollout


def _refuse_beside(rollout: Rollout) -> None:
    """Raise LaunchError if an on-demand model is loaded on these nodes: only the gateway can unload it safely."""
    model, names = rollout.desired.spec.model, rollout.desired.options.on_demand
    ranks = [rank for facts in rollout.view.facts.values() for rank in read(facts.ranks) or ()]
    running = {names.get(rank.labels.get(LABEL_CLUSTER, "")) for rank in ranks if rank.state == "running"}
    for name in sorted(filter(None, running - {model})):
        why = f"{model} does not start while {name} is loaded on its nodes; nothing was changed"
        without = f"if the gateway does not answer, sparkcluster down --model {name} INVENTORY"
        raise LaunchError(why, step="start", hint=f"sparkcluster unload INVENTORY {name}; {without}")


def _guard(rollout: Rollout) -> None:
    """Install missing guards, for an on-demand model or next to one."""
    spec, options, on_demand = rollout.desired.spec, rollout.desired.options, rollout.desired.spec.idle_s is not None
    done = all(each and each.runs and each.on_demand is on_demand for each in guards(rollout.view.facts))
    if not done and (on_demand or options.on_demand):
        install = load_on_demand if on_demand else enable
        install(rollout.fleet, spec, rollout.report, yes=options.yes)


def _change(rollout: Rollout, leases: contextlib.ExitStack) -> None:
    """Check and copy while the old release serves; under the lease read and decide again, then start."""
    with contextlib.ExitStack() as staging:
        refuse_elsewhere(rollout.view, rollout.to_start())
        reached = _check(rollout)
        source, target = rollout.view.source, choose_target(rollout)
        acquire = functools.cache(lambda: rollout.take(staging, "staging"))
        rollout.step, copied = "copy", StageReport(())
        if rollout.to_start():
            # An upgrade confirms the image that the head has.
            yes = rollout.desired.options.yes or rollout.desired.operation in {"upgrade", "bench"}
            copied = stage.copy(rollout.fleet, rollout.view, stage.Options(yes=yes), rollout.report, acquire)
        rollout.take(leases)
        rollout.see(also=[target.spec] if target else [])
        refuse(rollout.view, rollout.groups)
        if rollout.view.source != source:  # another operator came first
            target = choose_target(rollout)
            rollout.see(also=[target.spec] if target else [])
        brought = _ready(rollout, reached, acquire)
    rollout.copied_bytes = sum(each.bytes for each in [*copied.copied, *brought.copied])
    names = to_replace(rollout.view, rollout.groups)
    if names:
        Replacement(rollout, names, target).run()
    if rest := rollout.to_start(Action.WATCH):
        rollout.replace(rest)
    if names or anything(rollout.view.facts):
        forget(rollout)


def _check(rollout: Rollout) -> list[Finding]:
    """Findings about the connections between the nodes; empty for a rollback, which starts regardless of findings.

    Raises:
        UsageError: a secret has no value on this machine.
        FoundErrors: an error that copying does not fix; nothing was changed.
        PlanError: no topology can be made.
    """
    view, report = rollout.view, rollout.report
    if rollout.desired.release is not None:
        return []
    secrets.check(view.spec)
    if not (starting := rollout.to_start()):
        return []
    findings = view.findings_of(starting)
    if has_errors([finding for finding in findings if not finding.code.startswith(("IMG-", "MDL-"))]):
        raise FoundErrors(findings)
    if view.topology is None:
        raise view.unplanned or LaunchError("no topology", step="plan")
    report.step("check", count(len(view.facts), "Spark"))
    topology, epochs = view.topology.of_groups(starting), rollout.changer.epochs
    _, reached = between(rollout.fleet, view.spec, view.facts, topology, report, epochs=epochs)
    if has_errors(reached):
        raise FoundErrors([*findings, *reached])
    return reached


def _ready(rollout: Rollout, reached: Sequence[Finding], acquire: Callable[[], Changer]) -> StageReport:
    """Copy Ray, and raise if anything is still missing for the groups to start; returns what was copied.

    Raises:
        FoundErrors, PlanError, StageError: nothing was stopped.
    """
    if not (starting := rollout.to_start()):
        return StageReport(())
    report, release = rollout.report, rollout.desired.release
    stage.compare_pinned(rollout.view, report)
    brought, rollout.view = stage.bring_ray(rollout.view, report, acquire)
    rollout.view.ready()
    findings = rollout.view.findings_of(starting)
    if release is not None:
        hint = "sparkcluster down INVENTORY, then sparkcluster up INVENTORY   uses the secrets set here"
        prove(rollout.view, release.of_groups(starting), node_records(rollout.fleet, rollout.view.spec)[0], hint)
    elif has_errors(findings):
        raise FoundErrors(findings)
    for finding in [*findings, *reached]:
        if finding.severity in {"warning", "error"}:
            for line in finding.notes(hints(rollout.view.spec)):
                report.note(line)
    return brought
