"""Replaces running groups in turn. Nothing is stopped before the rollback target is proven; a failure rolls back.

::

    staged ── target proven ── journal ──▶ stopped ── started ── serving ── compared ──▶ recorded
    (the old release serves)                    │ any failure
                                                ▼
                            journal ── stopped ── old release started ── serving ──▶ recorded

The journal is ``switch.json`` on every node, read by ``plan.switch``. It is written before the first rank is stopped,
rewritten before a rollback, and removed at the end. It has what no label and no record has: the old release, the new
spec or the release to roll back to, and the groups.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import endpoints
from sparkcluster.errors import (
    FoundErrors,
    HostError,
    HostSilent,
    Interrupted,
    LaunchError,
    LeaseLost,
    RolledBack,
    SparkclusterError,
    UsageError,
)
from sparkcluster.facts.base import read
from sparkcluster.facts.collect import without_gpu
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Calls, Fleet, values
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.releases import node_records
from sparkcluster.node.shared import GRACE_S, SWITCH_FILE
from sparkcluster.plan.release_record import RecordedGroup, next_number
from sparkcluster.printable import shell
from sparkcluster.release import rollback_target
from sparkcluster.release.rollback_target import RollbackTarget, origin_of
from sparkcluster.release.rollout import Rollout
from sparkcluster.release.states import Action, Desired, GroupState
from sparkcluster.report import speed_change
from sparkcluster.runtime import failed_logs
from sparkcluster.runtime.change import Step
from sparkcluster.runtime.lease import this_operator
from sparkcluster.runtime.ranks import DRAIN_MOST_S
from sparkcluster.spec import Spec

PROMPTS = (
    "Describe in plain prose a walk through a harbour town on a rainy morning.",
    "Explain to a curious twelve-year-old, without lists, why the sky is blue and sunsets are red.",
    "Write a letter to a friend about a train journey during which much went wrong.",
)
# Long enough to measure speed: the answer that verifies a model may have three tokens.
TOKENS, FEWEST = 128, 16
# A change waits half of its limit for the previous one, which may be the longest stop of a draining head.
STOP_S = 2.0 * (DRAIN_MOST_S + GRACE_S) + 60
DOCTOR_S = 30.0
MEASURED_S = 900.0


def to_replace(view: View, groups: Mapping[str, GroupState]) -> list[str]:
    """Groups that are replaced although they are not dead, and groups whose replacement was interrupted."""
    begun = view.switch.groups if view.switch else ()
    unfinished = {Action.CLEAN, Action.START, Action.WATCH}
    return [name for name, each in groups.items() if each.replaced or (name in begun and each.action in unfinished)]


def choose_target(rollout: Rollout) -> RollbackTarget | None:
    """The release to roll back to if replacing groups fails, accepted; None if there is none, or none is wanted.

    Raises:
        UsageError: it is not a rollback target.
    """
    view, groups, desired = rollout.view, rollout.groups, rollout.desired
    number, again = view.source, desired.release
    if not (desired.options.rollback and number and to_replace(view, groups)):
        return None
    if again and again.number == number:
        return again
    try:
        records = node_records(rollout.fleet, view.spec)[0]
        return rollback_target.find(view.spec, number, records, rollout.report, yes=desired.options.yes)
    except UsageError as error:
        # If nothing of the switch serves, a faulty journal must not prevent a start.
        if view.switch is None or any(group.verdict for group in groups.values()):
            raise
        rollout.report.note(f"warning: no rollback target: {error.message}")
        return None


class Replacement:
    """Replaces the groups ``names``, and rolls back to ``target`` if that fails."""

    def __init__(self, rollout: Rollout, names: Sequence[str], target: RollbackTarget | None) -> None:
        self.rollout = rollout
        self.names = names
        self.target = target
        self.desired, self.report = rollout.desired, rollout.report
        self.source = rollout.view.source
        # After an interrupted switch, groups that it had already replaced are rolled back too.
        self.touched = [*rollout.view.switch.groups] if rollout.view.switch else []
        self.before: dict[str, float | None] = {}

    def run(self) -> None:
        """Replace the groups in turn, the first one alone; a failure rolls back all groups replaced so far.

        Raises:
            RolledBack: the previous release serves again.
            SparkclusterError: the new release or the rollback target is incomplete; nothing was stopped.
        """
        options = self.desired.options
        batches = in_turn(self.names, options.order, options.max_unavailable)
        self.prepare()
        self.rollout.left = not options.rollback
        try:
            # An interrupted bench is always ended with the release that served before it.
            tried = self.desired.operation == "bench" and self.desired.release is None
            write_journal(self.rollout, {*self.names, *self.touched}, self.source, back=self.source if tried else None)
            for batch in batches:
                if options.pause_s and batch is not batches[0]:
                    self.rollout.begin("pause", f"{options.pause_s:g} s before {', '.join(batch)}")
                    time.sleep(options.pause_s)
                self.touched += batch
                self.rollout.replace(batch, partial=batch is not batches[-1], accept=self.compare)
        except (LeaseLost, HostSilent):  # the switch may still be running; --resume continues it
            raise
        except (SparkclusterError, KeyboardInterrupt) as error:
            if not options.rollback and isinstance(error, LaunchError):
                keep_for_study(self.rollout, error, self.source)
            if self.target is None or (isinstance(error, Interrupted) and error.left_running):
                raise
            raise self.go_back(self.target.of_groups(self.touched), error) from error

    def prepare(self) -> None:
        """Prove the new release and the rollback target, and measure the current release; nothing is stopped."""
        view, fleet, reference = self.rollout.view, self.rollout.fleet, self.rollout.view.spec.reference
        nodes = view.ready()[1].of_groups(self.names).nodes
        images = {node: image.id for node in nodes if (image := read(view.facts[node].image)) is not None}
        for node, why in without_gpu(fleet, images).items():
            text = f"a container of {reference} has no GPU on {node}: {why}"
            hint = f"on {node}: {shell('docker run --rm --gpus all --entrypoint nvidia-smi', reference)}"
            raise LaunchError(text, node=node, step="check", hint=hint)
        if self.target is not None:
            target = self.target.of_groups([*self.names, *self.touched])
            has_flag = self.desired.operation in {"up", "upgrade"}
            hint = "add --no-rollback to replace it anyway" if has_flag else "sparkcluster down INVENTORY, then retry"
            rollback_target.prove(view.also[0], target, node_records(fleet, view.spec)[0], hint)
        groups = self.rollout.groups
        serving = {name: each.recorded for name in self.names if (each := groups[name]).answers and each.recorded}
        if self.desired.options.min_speed:
            serving = {name: group for name, group in serving.items() if group.verify.kind == "chat"}
            for name in serving:
                self.report.progress(view.spec.inventory.called(name), "measuring the speed of the current release")
            self.before = values(Calls(functools.partial(measure_speed, fleet), serving).wait(MEASURED_S))

    def compare(self, group: RecordedGroup) -> None:
        """Compare the speed of a group with its previous speed, if both are known; LaunchError if it is too slow."""
        if group.name not in self.before:
            return
        called = self.rollout.view.spec.inventory.called(group.name)
        self.report.progress(called, "measuring the speed of the new release")
        before, after = self.before[group.name], measure_speed(self.rollout.fleet, group)
        self.rollout.speed[group.name] = (before, after)
        if before is None or after is None:
            self.report.note(f"warning: {called}: speed not compared: other requests ran, or no answer was long enough")
            return
        group.measured["switch"] = {"source": self.source, "before": before, "after": after}
        if after / before < self.desired.options.min_speed:
            text, hint = speed_change(before, after), f"to accept it: --min-speed {after / before * 0.9:.2f}"
            raise LaunchError(f"{called}: {text}", node=group.head, step="verify", hint=hint)

    def go_back(self, target: RollbackTarget, error: BaseException) -> SparkclusterError:
        """Restart the groups of ``target`` as it recorded them; returns the error that reports the result."""
        kind: type[SparkclusterError] = RolledBack
        if isinstance(error, (KeyboardInterrupt, Interrupted)) or not isinstance(error, SparkclusterError):
            kind, error = Interrupted, Interrupted("interrupted")
        by_hand = f"sparkcluster rollback INVENTORY {target.number}"
        self.report.failed()
        self.rollout.begin("rollback", f"to release {target.number}")
        try:
            # Running ranks are only read after this.
            write_journal(self.rollout, target.groups, target.number, back=target.number)
            self._serve_again(target)
        except (KeyboardInterrupt, Interrupted):
            text = f"interrupted while rolling back to release {target.number}"
            return Interrupted(text, step="rollback", hint=by_hand)
        except (LeaseLost, HostSilent) as lost:
            return lost
        except SparkclusterError as failed:
            text = f"{error.message}; rolling back to release {target.number} failed too: {cause(failed)}"
            return LaunchError(text, node=failed.node, step="rollback", hint=by_hand)
        forget(self.rollout)
        self.report.done()
        text = f"{error.message}; release {target.number} serves again, as release {self.rollout.number}"
        return kind(text, node=error.node, step=error.step, hint=error.hint)

    def _serve_again(self, target: RollbackTarget) -> None:
        """Start the groups of ``target`` in place of their current ranks."""
        options = dataclasses.replace(self.desired.options, replace=True, clear_caches=False)
        desired, before = Desired(target.spec, options, self.desired.operation, target), self.rollout
        self.rollout = Rollout(before.fleet, desired, self.report)
        self.rollout.changer, self.rollout.former = before.changer, before.former
        self.rollout.start_locks, self.rollout.start_nodes = before.start_locks, before.start_nodes
        self.rollout.see()
        if remaining := [name for name, group in self.rollout.groups.items() if group.action is not Action.KEEP]:
            self.rollout.replace(remaining)


def cause(error: SparkclusterError) -> str:
    """The error in one line; for findings the first error."""
    findings = error.findings if isinstance(error, FoundErrors) else ()
    first = next((each for each in findings if each.severity == "error"), None)
    return error.message if first is None else f"{first.node or 'the cluster'}: {first.summary} ({first.code})"


def in_turn(names: Sequence[str], order: Sequence[str], at_once: int) -> list[list[str]]:
    """``names`` in batches of ``at_once``, the first group alone; ``order`` comes first, then the others.

    Raises:
        UsageError: ``order`` has an unknown group.
    """
    for name in order:
        if name not in names:
            raise UsageError(f"--order {name}: no group of that name is switched", hint=f"groups: {', '.join(names)}")
    ordered = [*dict.fromkeys(order), *(name for name in names if name not in order)]
    return [ordered[:1], *(ordered[at : at + at_once] for at in range(1, len(ordered), at_once))]


def write_journal(rollout: Rollout, groups: Collection[str], source: int, *, back: int | None = None) -> None:
    """Write to every node that ``groups`` are being replaced; ``back`` is the release that they roll back to, if any.

    Waits for a stop that was sent before.
    """
    number = next_number(rollout.view.facts, rollout.view.spec.inventory.cluster)
    switch = document(rollout.view.spec, number=number, source=source, groups=groups, back=back)
    _change_journal(rollout, {"do": "put", "content": json.dumps(switch, sort_keys=True)})


def document(spec: Spec, *, number: int, source: int, groups: Collection[str], back: int | None) -> dict[str, Any]:
    """The journal for replacing ``groups`` of release ``source`` by ``spec`` as release ``number``."""
    return {
        "number": number,
        "source": source,
        "back": back,
        "groups": sorted(groups),
        "operator": this_operator(),
        "began_at": time.time(),
        **origin_of(spec),
    }


def forget(rollout: Rollout) -> None:
    """Remove the journal of a finished replacement; on a silent node its record shows that it is finished."""
    with contextlib.suppress(HostError):
        _change_journal(rollout, {"do": "delete"})


def _change_journal(rollout: Rollout, step: Step) -> None:
    """Apply ``step`` to the journal on every node."""
    directory, view = f"clusters/{rollout.view.spec.inventory.cluster}", rollout.view
    paths = {node: f"{facts.state_dir}/{directory}/{SWITCH_FILE}" for node, facts in view.facts.items()}
    rollout.changer.apply({node: [{**step, "path": path}] for node, path in paths.items()}, timeout_s=STOP_S)


def keep_for_study(rollout: Rollout, error: LaunchError, source: int) -> None:
    """Write a bundle about the ranks of a failed release; the hint of ``error`` gets its path and the next command.

    ``source`` is the release that served before.
    """
    from sparkcluster.inspect import bundle  # noqa: PLC0415 - few runs need it
    from sparkcluster.inspect.doctor import doctor  # noqa: PLC0415

    fleet, spec, report = rollout.fleet, rollout.view.spec, rollout.report
    path = failed_logs.directory(spec.inventory.cluster) / "bundle.tar.gz"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = doctor(fleet, spec, DOCTOR_S, report)
        bundle.write(path, found, bundle.gather(fleet, found.view, report, containers=False))
        written = f"bundle: {path}"
    except (SparkclusterError, OSError) as failed:
        written = f"no bundle was written: {failed}"
    ends = f"sparkcluster rollback INVENTORY {source}   rolls back to release {source}"
    error.hint = "; ".join(filter(None, [error.hint, written, ends]))


def measure_speed(fleet: Fleet, group: RecordedGroup) -> float | None:
    """Median tokens/s of three answers; None if other requests ran or no answer was long enough. Never raises."""
    found = []
    for reply in replies(fleet, group):
        if reply.counters.get("running", 0) > 1 or reply.counters.get("waiting", 0) > 0:
            return None
        if reply.problem is None and reply.tokens_per_s and (reply.tokens or 0) >= FEWEST:
            found.append(reply.tokens_per_s)
    return statistics.median(found) if found else None


def replies(fleet: Fleet, group: RecordedGroup, **sampling: float) -> Iterator[Reply]:
    """The replies of ``group`` to ``PROMPTS``; ``sampling`` overrides its release's settings. Never raises."""
    endpoint = endpoints(group.plan, group.engine)[group.name]
    counters = engines.engine(group.engine).counters
    for prompt in PROMPTS:
        question = group.verify.model_copy(update={"prompt": prompt, **sampling})
        yield ask(fleet.hosts[endpoint.head], endpoint, question, max_tokens=TOKENS, counters=counters)
