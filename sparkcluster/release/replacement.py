"""Groups that serve are replaced in turn. Nothing is stopped before the way back is proven, and a failure takes it.

::

    staged ── way back proven ── journal ──▶ stopped ── started ── serving ── compared ──▶ recorded
    (the old release serves)                    │ any failure
                                                ▼
                            journal ── stopped ── old release started ── serving ──▶ recorded

The journal is ``switch.json`` on every node, which ``plan.switch`` reads: written before the first rank is stopped, and
again before a way back is begun, and removed at the end. It says what no label and no record does: from which release
to which spec, or back to which one, and with which groups.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import Endpoint, endpoints
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
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, values
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
from sparkcluster.runtime.lease import this_operator
from sparkcluster.runtime.ranks import DRAIN_MOST_S
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Verify

PROMPTS = (
    "Describe in plain prose a walk through a harbour town on a rainy morning.",
    "Explain to a curious twelve-year-old, without lists, why the sky is blue and sunsets are red.",
    "Write a letter to a friend about a train journey during which much went wrong.",
)
# Long enough for a speed: the answer that verifies a model may have three tokens.
TOKENS, FEWEST = 128, 16
# A change waits half of its limit for the one before: for the longest stop of a head that drains.
STOP_S = 2.0 * (DRAIN_MOST_S + GRACE_S) + 60
DOCTOR_S = 30.0


def to_replace(view: View, groups: Mapping[str, GroupState]) -> list[str]:
    """Groups that are replaced though they are not dead, and those whose replacement was cut off."""
    begun = view.switch.groups if view.switch else ()
    unfinished = {Action.CLEAN, Action.START, Action.WATCH}
    return [name for name, each in groups.items() if each.replaced or (name in begun and each.action in unfinished)]


def way_back(rollout: Rollout) -> RollbackTarget | None:
    """The release to go back to where replacing groups fails, accepted; None if there is none, or none is wanted.

    Raises:
        UsageError: it cannot be gone back to.
    """
    view, groups, desired = rollout.view, rollout.groups, rollout.desired
    number, again = view.source, desired.release
    wanted = desired.options.rollback and number and to_replace(view, groups)
    if not wanted or (again and again.number == number and desired.operation != "restart"):
        return None
    if again and again.number == number:
        return again
    try:
        records = node_records(rollout.fleet, view.spec)[0]
        return rollback_target.find(view.spec, number, records, rollout.report, yes=desired.options.yes)
    except UsageError as error:
        if view.switch is None or any(group.verdict for group in groups.values()):
            raise
        # Nothing of it serves.
        rollout.report.note(f"warning: there is no way back: {error.message}")
        return None


class Replacement:
    """Replaces the groups ``names``, and goes back to ``target`` where that fails."""

    def __init__(self, rollout: Rollout, names: Sequence[str], target: RollbackTarget | None) -> None:
        self.rollout = rollout
        self.names = names
        self.target = target
        self.desired, self.report, self.changer = rollout.desired, rollout.report, rollout.changer
        self.source = rollout.view.source
        begun = rollout.view.switch.groups if rollout.view.switch else []
        self.resumed = bool(begun)
        # After one that was cut off the way back is that of the whole: groups that were replaced before go back too.
        self.groups = [*dict.fromkeys([*names, *begun])]
        self.before: dict[str, Speed] = {}

    def run(self) -> None:
        """Replace them in turn, the first alone; one that fails takes those before it back.

        Raises:
            RolledBack: what served before serves again.
            SparkclusterError: something is missing for the new release, or for the way back; nothing was stopped.
        """
        options, touched = self.desired.options, list[str]()
        batches = in_turn(self.names, options.order, options.max_unavailable)
        self.prepare()
        self.rollout.left = not options.rollback
        try:
            write_journal(self.rollout, self.groups, self.source)
            for batch in batches:
                if touched and options.pause_s:
                    self.rollout.begin("pause", f"{options.pause_s:g} s before {', '.join(batch)}")
                    time.sleep(options.pause_s)
                touched += batch
                self.rollout.replace(batch, partial=len(touched) < len(self.names), accept=self.compare)
        except (LeaseLost, HostSilent):  # what was begun goes on, and --resume continues it
            raise
        except (SparkclusterError, KeyboardInterrupt) as error:
            if not options.rollback and isinstance(error, LaunchError):
                keep_for_study(self.rollout, error, self.source)
            if self.target is None or (isinstance(error, Interrupted) and error.left_running):
                raise
            raise self.go_back(self.target, self.groups if self.resumed else touched, error) from error
        forget(self.rollout)

    def prepare(self) -> None:
        """Prove the new release and the way back, and measure what serves; nothing is stopped."""
        view, fleet, options = self.rollout.view, self.rollout.fleet, self.desired.options
        self._prove_gpu(view)
        if self.target is not None:
            self.rollout.step = "go back"
            records = node_records(fleet, view.spec)[0]
            names = [name for name in self.groups if name in self.target.groups]
            rollback_target.prove(view.also[0], self.target, names, records)
        recorded = {
            name: group.recorded
            for name, group in self.rollout.groups.items()
            if name in self.names and group.recorded and group.verdict and group.verdict.wrong is None
        }
        if options.min_speed and recorded:
            for name in recorded:
                self.report.progress(view.spec.inventory.called(name), "measuring the speed of what serves")
            self.before = speeds_of(fleet, recorded)
            self.rollout.speed = {name: (each.tokens_per_s, None) for name, each in self.before.items()}

    def _prove_gpu(self, view: View) -> None:
        """Raise LaunchError where a container of the image has no GPU; of a recorded release that is only reported."""
        nodes, reference = view.ready()[1].of_groups(self.names).nodes, view.spec.reference
        images = {node: image.id for node in nodes if (image := read(view.facts[node].image)) is not None}
        for node, why in without_gpu(self.rollout.fleet, images).items():
            text = f"a container of {reference} has no GPU on {node}: {why}"
            if self.desired.release is None:
                hint = f"on {node}: {shell('docker run --rm --gpus all --entrypoint nvidia-smi', reference)}"
                raise LaunchError(text, node=node, step="check", hint=hint)
            self.report.note(f"warning: {text}")

    def compare(self, name: str) -> None:
        """Compare the speed of a group with that before; LaunchError where it is too slow and nothing else ran."""
        before, rollout, min_speed = self.before.get(name), self.rollout, self.desired.options.min_speed
        if before is None:
            return
        plan, called = rollout.view.ready()[1], rollout.view.spec.inventory.called(name)
        endpoint = endpoints(plan.as_json(), plan.engine)[name]
        self.report.progress(called, "measuring the speed of the new release")
        host = rollout.fleet.hosts[endpoint.head]
        after = measure_speed(host, endpoint, rollout.view.spec.playbook.verifying, plan.engine)
        rollout.speed[name] = (before.tokens_per_s, after.tokens_per_s)
        if not before.tokens_per_s or not after.tokens_per_s:
            return
        speeds = {"before": before.tokens_per_s, "after": after.tokens_per_s}
        rollout.measured.setdefault(name, {})["switch"] = {"source": self.source, **speeds}
        share, text = after.tokens_per_s / before.tokens_per_s, speed_change(before.tokens_per_s, after.tokens_per_s)
        if share >= min_speed:
            return
        if not before.busy and not after.busy:
            hint = f"to accept it: --min-speed {share * 0.9:.2f}"
            raise LaunchError(f"{called}: {text}", node=endpoint.head, step="verify", hint=hint)
        self.report.note(f"warning: {called}: {text}, while other requests ran")

    def go_back(self, target: RollbackTarget, names: Sequence[str], error: BaseException) -> SparkclusterError:
        """Let ``names`` serve as ``target`` has them; the error that says how that ended."""
        interrupted = isinstance(error, (KeyboardInterrupt, Interrupted))
        failed_with = error if isinstance(error, SparkclusterError) and not interrupted else Interrupted("interrupted")
        why = cause(failed_with)
        by_hand = f"sparkcluster rollback INVENTORY {target.number}"
        self.report.failed()
        self.rollout.begin("go back", f"to release {target.number}")
        names = [name for name in names if name in target.groups]
        try:
            # It waits until a stop has ended that was sent before; what runs is seen only then.
            write_journal(self.rollout, names, target.number, back=target.number, timeout_s=STOP_S)
            self._serve_again(target, names)
        except (KeyboardInterrupt, Interrupted):
            text = f"interrupted while going back to release {target.number}"
            return Interrupted(text, step="go back", hint=by_hand)
        except (LeaseLost, HostSilent) as lost:
            return lost
        except SparkclusterError as failed:
            text = f"{why}; going back to release {target.number} failed too: {cause(failed)}"
            return LaunchError(text, node=failed.node, step="go back", hint=by_hand)
        forget(self.rollout)
        self.report.done()
        text = f"{why}; release {target.number} serves again, as release {self.rollout.number}"
        kind = Interrupted if interrupted else RolledBack
        return kind(text, node=failed_with.node, step=failed_with.step, hint=failed_with.hint)

    def _serve_again(self, target: RollbackTarget, names: Sequence[str]) -> None:
        """Let the groups ``names`` of ``target`` serve, in place of whatever is there of them."""
        options = dataclasses.replace(self.desired.options, replace=True, clear_caches=False)
        desired = Desired(target.spec, options, self.desired.operation, target, names)
        former, rollout = self.rollout.former, Rollout(self.rollout.fleet, desired, self.report)
        rollout.changer, rollout.former = self.changer, former
        self.rollout = rollout
        rollout.see()
        if remaining := [name for name, group in rollout.groups.items() if group.action is not Action.KEEP]:
            rollout.replace(remaining)


def cause(error: SparkclusterError) -> str:
    """What went wrong, in one line: of findings the first error."""
    findings = error.findings if isinstance(error, FoundErrors) else ()
    first = next((each for each in findings if each.severity == "error"), None)
    return error.message if first is None else f"{first.node or 'the cluster'}: {first.summary} ({first.code})"


def in_turn(names: Sequence[str], order: Sequence[str], at_once: int) -> list[list[str]]:
    """``names`` in batches of ``at_once``, the first of them alone: those of ``order``, then the others as they come.

    Raises:
        UsageError: ``order`` has a name that is none of a group.
    """
    for name in order:
        if name not in names:
            raise UsageError(f"--order {name}: no group of that name is switched", hint=f"groups: {', '.join(names)}")
    ordered = [*dict.fromkeys(order), *(name for name in names if name not in order)]
    return [ordered[:1], *(ordered[at : at + at_once] for at in range(1, len(ordered), at_once))]


def write_journal(
    rollout: Rollout, groups: Collection[str], source: int, *, back: int | None = None, timeout_s: float = 120
) -> None:
    """Write on every node that ``groups`` are replaced; ``back`` is the release that they go back to, if they do."""
    view = rollout.view
    number = next_number(view.facts)
    switch = document(view.spec, number=number, source=source, groups=groups, back=back)
    put = {"do": "put", "content": json.dumps(switch, sort_keys=True)}
    steps = {node: [{**put, "path": _path(view.spec, facts)}] for node, facts in view.facts.items()}
    rollout.changer.apply(steps, timeout_s=timeout_s)


def document(spec: Spec, *, number: int, source: int, groups: Collection[str], back: int | None) -> dict[str, Any]:
    """The journal of the replacement of ``groups`` of release ``source`` by ``spec`` as release ``number``."""
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
    """Remove the journal of a replacement that has ended; where a node is silent its record says so too."""
    view = rollout.view
    steps = {node: [{"do": "delete", "path": _path(view.spec, facts)}] for node, facts in view.facts.items()}
    with contextlib.suppress(HostError):
        rollout.changer.apply(steps)


def _path(spec: Spec, facts: Facts) -> str:
    return f"{facts.state_dir}/clusters/{spec.inventory.cluster}/{SWITCH_FILE}"


def keep_for_study(rollout: Rollout, error: LaunchError, source: int) -> None:
    """Write a bundle about the ranks that a failed release left; ``error`` says where, and what ends it.

    ``source`` is the release that served before; 0 without one.
    """
    from sparkcluster.inspect import bundle  # noqa: PLC0415 - few runs need it
    from sparkcluster.inspect.doctor import doctor  # noqa: PLC0415

    fleet, spec, report = rollout.fleet, rollout.view.spec, rollout.report
    path = failed_logs.directory(spec.inventory.cluster) / "bundle.tar.gz"
    parts = [error.hint, f"bundle: {path}"]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = doctor(fleet, spec, DOCTOR_S, report)
        bundle.write(path, found, bundle.gather(fleet, found.view, report, containers=False))
    except (SparkclusterError, OSError) as failed:
        report.note(f"no bundle was written: {failed}")
        parts.pop()
    ends = f"rollback INVENTORY {source}   serves release {source} again" if source else "down INVENTORY"
    error.hint = "; ".join(part for part in [*parts, f"sparkcluster {ends}"] if part)


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """What was measured.

    Attributes:
        tokens_per_s: median of the completions; None where an engine did not tell.
        busy: whether it served other requests meanwhile, so that nothing can be said.
    """

    tokens_per_s: float | None
    busy: bool = False


def measure_speed(host: Host, endpoint: Endpoint, verify: Verify, engine: str) -> Speed:
    """Ask three times; never raises: an answer that does not come is no speed."""
    counters = engines.engine(engine).counters
    found, busy = [], False
    for prompt in PROMPTS:
        question = verify.model_copy(update={"prompt": prompt})
        reply = ask(host, endpoint, question, max_tokens=TOKENS, counters=counters)
        busy = busy or (reply.counters or {}).get("running", 0) > 1 or (reply.counters or {}).get("waiting", 0) > 0
        if reply.problem is None and reply.tokens_per_s and (reply.tokens or 0) >= FEWEST:
            found.append(reply.tokens_per_s)
    return Speed(statistics.median(found) if found else None, busy)


def speeds_of(fleet: Fleet, groups: Mapping[str, RecordedGroup]) -> dict[str, Speed]:
    """The speed of recorded groups that serve, all at once."""
    found = {name: endpoints(group.plan, group.engine)[name] for name, group in groups.items()}
    heads = {endpoint.head: name for name, endpoint in found.items()}

    def measured(host: Host) -> Speed:
        name = heads[host.name]
        return measure_speed(host, found[name], groups[name].verify, groups[name].engine)

    return {heads[head]: each for head, each in values(fleet.each(measured, heads)).items()}
