"""``upgrade`` and ``rollback``: what is slow while the old release serves, then the switch by ``up``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping

from sparkcluster.errors import (
    HostSilent,
    Interrupted,
    LaunchError,
    LeaseHeld,
    LeaseLost,
    RolledBack,
    SparkclusterError,
    UsageError,
)
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View, view_cluster
from sparkcluster.inspect.releases import Records, as_recorded, node_records
from sparkcluster.plan.diff import difference
from sparkcluster.plan.release_record import recorded_groups
from sparkcluster.plan.switch import pending
from sparkcluster.release import stage
from sparkcluster.release.deploy import Options, whole
from sparkcluster.release.outcome import cause
from sparkcluster.release.restore import once_reached
from sparkcluster.release.rollback_target import Kept, accept, find_kept, source, spec_of
from sparkcluster.release.rollout import Target
from sparkcluster.release.states import State, group_states
from sparkcluster.release.up import Up, until_free, up
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import Operation
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import ONLY_GROUP


def upgrade(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Up:
    """Let ``spec`` serve: stage it while the old release serves, then switch to it, or go back.

    Raises:
        RolledBack: the new release failed, and the old one serves again.
        SparkclusterError: as ``up`` and ``stage``.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    before = whole(view_cluster(fleet, spec, inside=False))
    served = _serving(before)
    back: Kept | None = None
    if options.rollback and served and source(before):
        back = find_kept(fleet, spec, source(before), report, yes=options.yes)
    try:
        # Whoever types this wants what the head has.
        found = until_free(lambda: stage.stage(fleet, spec, stage.Options(yes=True), report), options.wait_s, report)
        done = up(fleet, spec, dataclasses.replace(options, replace=True), report, operation="upgrade", back=back)
        return dataclasses.replace(done, moved_bytes=sum(copied.bytes for copied in found.copied))
    except (RolledBack, HostSilent, LeaseHeld, LeaseLost, Interrupted):
        raise
    except SparkclusterError as error:
        if back:
            _bring_back(fleet, spec, options, report, served=served, kept=back, error=error)
        raise


def _bring_back(
    fleet: Fleet,
    spec: Spec,
    options: Options,
    report: Report,
    *,
    served: Collection[str],
    kept: Kept,
    error: SparkclusterError,
) -> None:
    """Start ``kept`` again if groups of it that ``served`` were lost before the switch began.

    A node that rebooted took its ranks with it, and is waited for.

    Raises:
        RolledBack: the release serves again; ``error`` is why it has to.
        LaunchError: it does not.
    """
    number = kept.number
    by_hand = f"sparkcluster rollback INVENTORY {number}"
    try:
        view = once_reached(fleet, lambda: whole(view_cluster(fleet, spec, inside=False)), report)
        lost = set(served) - _serving(view)
        if not lost:
            report.note(f"release {number} still serves")
        if not lost or pending(view.facts, view.newest):
            return
        report.failed()
        gone = ", ".join(map(spec.inventory.called, sorted(lost)))
        report.note(f"{cause(error)}: {gone} of release {number} is gone: starting it again")
        done = rollback(fleet, spec, number, options, report, kept=kept)
    except (LeaseHeld, LeaseLost, Interrupted):
        raise
    except SparkclusterError as failed:
        text = f"{cause(error)}; release {number} could not be started again: {failed.message}"
        raise LaunchError(text, node=failed.node, step="go back", hint=by_hand) from error
    report.done()
    text = f"{cause(error)}; release {number} serves again, as release {done.release}"
    raise RolledBack(text, node=error.node, step=error.step, hint=error.hint) from error


def _serving(view: View) -> set[str]:
    """Groups of which all ranks run as they are recorded."""
    serve = {State.SERVING, State.OTHER}
    return {name for name, group in group_states(view).items() if group.state in serve and group.recorded}


def resume(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Up:
    """End a switch that was cut off: forward if it went forward, back if it went back.

    Where none is under way the newest release serves on, or is started again.

    Raises:
        UsageError: nothing was ever deployed, or what was begun is not accepted.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = whole(view_cluster(fleet, spec, inside=False))
    switch = pending(view.facts, view.newest)
    if switch is None:
        number = view.newest.number if view.newest else _last(fleet, spec)
        report.note(f"no switch was cut off; release {number} is verified")
        return rollback(fleet, spec, number, options, report)
    document = switch.document
    operator = document["operator"]
    if not switch.whole:  # for the first time or for the way back: back is safe in both cases
        text = f"not every node has the switch that {operator} began"
        if not switch.source:
            raise UsageError(f"{text}, and nothing served before", hint="sparkcluster up INVENTORY")
        report.note(f"{text}: back to release {switch.source}")
        return rollback(fleet, spec, switch.source, options, report)
    if document["back"] is not None:
        report.note(f"going on with the way back to release {document['back']} that {operator} began")
        return rollback(fleet, spec, document["back"], options, report)
    report.note(f"going on with the switch from release {switch.source} that {operator} began")
    wanted = accept(spec_of(spec, document, document["number"]), report, yes=options.yes)
    return upgrade(fleet, wanted, options, report)


def _last(fleet: Fleet, spec: Spec) -> int:
    """The number of the newest release that any node has, where the head of a group has lost its records."""
    answers, _ = node_records(fleet, spec)
    last = max(_numbers(answers), default=0)
    if not last:
        raise UsageError(
            "no release was ever recorded, and no switch begun",
            hint="sparkcluster up INVENTORY",
        )
    return last


def _numbers(answers: Mapping[str, Records]) -> set[int]:
    """The numbers of all recorded releases."""
    numbers = (document.get("number") for answer in answers.values() for document in answer.records)
    return {number for number in numbers if isinstance(number, int)}


def restart(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Up:
    """Start anew what is recorded, with the API key of today.

    Raises:
        UsageError: nothing is recorded, or a switch was cut off; or as ``rollback``.
        RolledBack: it failed, and was started once more.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = whole(view_cluster(fleet, spec, inside=False))
    if pending(view.facts, view.newest):
        raise UsageError("a switch to another release was cut off", hint="sparkcluster upgrade INVENTORY --resume")
    if view.newest is None:
        raise UsageError(f"{spec.inventory.cluster} has no release yet", hint="sparkcluster up INVENTORY")
    return rollback(fleet, spec, view.newest.number, options, report, operation="restart")


def rollback(
    fleet: Fleet,
    spec: Spec,
    number: int | None,
    options: Options,
    report: Report,
    *,
    operation: Operation = "rollback",
    kept: Kept | None = None,
) -> Up:
    """Let release ``number`` serve again; None stands for the last one that was another.

    With ``operation`` restart its groups that serve are started anew. ``kept`` is the release, where it was accepted.

    Raises:
        UsageError: there is none, it is not kept any more, or it is not accepted.
        RolledBack: it failed, and what served before serves again.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    answers, _ = node_records(fleet, spec)
    report.step("find", f"release {number}" if number else "the release before")
    number = number or _stopped(fleet, spec) or _before(answers, spec)
    report.step("find", f"release {number}")
    kept = kept or find_kept(fleet, spec, number, report, yes=options.yes)
    written = {group.name for group in spec.inventory.groups} or {ONLY_GROUP}
    gone = [name for name in kept.groups if name not in written]
    if gone or not kept.groups:
        raise UsageError(
            f"release {number} has groups that are not in the inventory: {', '.join(gone)}"
            if gone
            else f"no group of release {number} has answered",
            hint="sparkcluster releases INVENTORY   lists others",
        )
    done: Up | None = None
    for old, part in kept.parts(kept.groups):
        again = up(
            fleet,
            old,
            dataclasses.replace(options, replace=True, clear_caches=False),
            report,
            operation=operation,
            target=Target(kept, part, restart=operation == "restart"),
        )
        done = again if done is None else dataclasses.replace(again, changed=done.changed or again.changed)
    assert done is not None  # noqa: S101 - it has groups
    return dataclasses.replace(done, restored=number)


def _stopped(fleet: Fleet, spec: Spec) -> int | None:
    """The number of the release that served last, if a switch was begun and not ended, or nothing runs."""
    view = whole(view_cluster(fleet, spec, inside=False))
    switch = pending(view.facts, view.newest)
    if switch is not None and switch.source:
        return switch.source
    return view.newest.number if view.newest and not view.ranks.anything else None


def _before(answers: Mapping[str, Records], spec: Spec) -> int:
    """The number of the newest release that is another than the last one, and is kept.

    None counts that is in the middle of a switch, or has a group that has not answered.
    """
    records: dict[int, ReleaseFact] = {}
    for number in _numbers(answers):
        with contextlib.suppress(UsageError):  # it cannot be read
            if found := as_recorded(answers, number):
                records[number] = found[1]
    last = max(records, default=0)
    kept = {int(number) for answer in answers.values() for number in answer.images or {}} or records.keys()
    others = [
        number
        for number, release in records.items()
        if number < last
        and number in kept
        and not release.record.get("partial")
        and all(group.verified for group in recorded_groups(release.record).values())
        and _differ(release, records[last])
    ]
    if not others:
        raise UsageError(
            f"{spec.inventory.cluster} has no release to go back to",
            hint="sparkcluster releases INVENTORY   lists what was deployed",
        )
    return max(others)


def _differ(one: ReleaseFact, other: ReleaseFact) -> bool:
    """Whether two releases run something else: what serves again has its arguments in another order."""
    old, new = ([group.plan for group in recorded_groups(each.record).values()] for each in (one, other))
    return len(old) != len(new) or any(difference(*plans) for plans in zip(old, new, strict=True))
