"""``upgrade`` and ``rollback``: what is slow while the old release serves, then the switch by ``up``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from shlex import quote
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import (
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
from sparkcluster.inspect.history import node_records
from sparkcluster.inspect.lost import Records
from sparkcluster.plan.diff import difference
from sparkcluster.plan.records import recorded_groups
from sparkcluster.plan.switch import pending
from sparkcluster.release import stage
from sparkcluster.release.deploy import Options, whole
from sparkcluster.release.outcome import cause
from sparkcluster.release.restore import once_reached
from sparkcluster.release.states import State, group_states
from sparkcluster.release.up import Up, until_free, up
from sparkcluster.release.walk import Target
from sparkcluster.release.way_back import agreed, find_kept, recorded_spec, refuse_powers, spec_of
from sparkcluster.report import Report, count
from sparkcluster.runtime.lease import Operation
from sparkcluster.spec import Spec, consent
from sparkcluster.spec.inventory import ONLY_GROUP


def upgrade(fleet: Fleet, spec: Spec, options: Options, report: Report) -> Up:
    """Let ``spec`` serve: stage it while the old release serves, then switch to it, or go back.

    Raises:
        RolledBack: the new release failed, and the old one serves again.
        SparkclusterError: as ``up`` and ``stage``.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    before = whole(view_cluster(fleet, spec, inside=False))
    try:
        staged = until_free(lambda: stage.stage(fleet, spec, stage.Options(), report), options.wait_s, report)
        done = up(fleet, spec, dataclasses.replace(options, replace=True), report, operation="upgrade")
        return dataclasses.replace(done, moved_bytes=sum(copied.bytes for copied in staged.copied))
    except (RolledBack, LeaseHeld, LeaseLost, Interrupted):
        raise
    except SparkclusterError as error:
        served = _serving(before)
        if options.rollback and served and before.newest:
            _bring_back(fleet, spec, options, report, served=served, number=before.newest.number, error=error)
        raise


def _bring_back(
    fleet: Fleet,
    spec: Spec,
    options: Options,
    report: Report,
    *,
    served: Collection[str],
    number: int,
    error: SparkclusterError,
) -> None:
    """Start release ``number`` again if groups of it that ``served`` were lost before the switch began.

    A node that rebooted took its ranks with it, and is waited for.

    Raises:
        RolledBack: the release serves again; ``error`` is why it has to.
        LaunchError: it does not.
    """
    by_hand = f"sparkcluster rollback {quote(str(spec.inventory_path))} {number}"
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
        done = rollback(fleet, spec, number, options, report)
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
        UsageError: nothing was ever deployed, or the nodes disagree on what was begun.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    view = whole(view_cluster(fleet, spec, inside=False))
    switch = pending(view.facts, view.newest)
    if switch is None:
        number = view.newest.number if view.newest else _last(fleet, spec)
        report.note(f"no switch was cut off; release {number} is verified")
        return rollback(fleet, spec, number, options, report)
    try:
        document = agreed(switch.documents, "the switch that was begun", spec, options.trust, report)
    except UsageError:
        # It was cut off while it was written, for the first time or for the way back: back is safe in both cases.
        sources = {document["source"] for document in switch.documents.values()}
        alone = len(switch.documents) == 1 and not _serving(view) >= set(switch.groups)
        if not switch.source or len(sources) > 1 or alone:
            raise
        return rollback(fleet, spec, switch.source, options, report)
    operator = document["operator"]
    if document["back"] is not None:
        report.note(f"{operator} was going back to release {document['back']}: going on")
        return rollback(fleet, spec, document["back"], options, report)
    report.note(f"going on with the switch from release {switch.source} that {operator} began")
    wanted = spec_of(spec, document, "the switch that was begun")
    refuse_powers(wanted)
    wanted = consent.accept(wanted, report, yes=options.yes)
    return upgrade(fleet, wanted, options, report)


def _last(fleet: Fleet, spec: Spec) -> int:
    """The number of the newest release that any node has, where the head of a group has lost its records."""
    answers, _ = node_records(fleet, spec)
    numbers = [document.get("number") for answer in answers.values() for document in answer.records]
    last = max((number for number in numbers if isinstance(number, int)), default=0)
    if not last:
        raise UsageError(
            "no release was ever recorded, and no switch begun",
            hint=f"sparkcluster up {quote(str(spec.inventory_path))}",
        )
    return last


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
    fleet: Fleet, spec: Spec, number: int | None, options: Options, report: Report, *, operation: Operation = "rollback"
) -> Up:
    """Let release ``number`` serve again; None stands for the last one that was another.

    With ``operation`` restart its groups that serve are started anew.

    Raises:
        UsageError: there is none, it is not kept any more, or the nodes disagree on it.
        RolledBack: it failed, and what served before serves again.
    """
    report.step("connect", count(len(fleet.hosts), "Spark"))
    answers, _ = node_records(fleet, spec)
    report.step("find", f"release {number}" if number else "the release before")
    number = number or _stopped(fleet, spec) or _before(answers, spec)
    report.step("find", f"release {number}")
    kept = find_kept(fleet, spec, number, report, trust=options.trust)
    images = {node: answer.images for node, answer in answers.items() if answer.images is not None}
    needs_image = any(group.image for group in kept.groups.values())
    if needs_image and images and not any(f"{number:06d}" in found for found in images.values()):
        raise UsageError(
            f"no node has the image of release {number} any more",
            hint=f"sparkcluster releases {quote(str(spec.inventory_path))}   shows which releases are kept",
        )
    written = {group.name for group in spec.inventory.groups} or {ONLY_GROUP}
    gone = [name for name in kept.groups if name not in written]
    if gone or not kept.groups:
        raise UsageError(
            f"release {number} has groups that are not in the inventory: {', '.join(gone)}"
            if gone
            else f"no group of release {number} has answered",
            hint=f"sparkcluster releases {quote(str(spec.inventory_path))}   lists others",
        )
    done: Up | None = None
    for part in kept.parts(list(kept.groups)):
        old = recorded_spec(spec, kept, part[0])
        refuse_powers(old)
        old = consent.accept(old, report, yes=options.yes)
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

    Only what most nodes have counts, and no release in the middle of a switch, or with a group that has not answered.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    for answer in answers.values():
        for document in answer.records:
            number = document.get("number")
            if isinstance(number, int):
                found.setdefault(number, []).append(document)
    records: dict[int, ReleaseFact] = {}
    for number, same in found.items():
        with contextlib.suppress(ValidationError):
            if 2 * len(same) > len(answers):
                hashed = {"number": number, "plan_hash": str(same[0].get("plan_hash"))}
                records[number] = ReleaseFact.model_validate({**hashed, "record": same[0]})
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
            hint=f"sparkcluster releases {quote(str(spec.inventory_path))}   lists what was deployed",
        )
    return max(others)


def _differ(one: ReleaseFact, other: ReleaseFact) -> bool:
    """Whether two releases run something else: what serves again has its arguments in another order."""
    old, new = ([group.plan for group in recorded_groups(each.record).values()] for each in (one, other))
    return len(old) != len(new) or any(difference(*plans) for plans in zip(old, new, strict=True))
