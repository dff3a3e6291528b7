"""Examines running groups: asks each one, judges its answer by its own release, and decides what to do with it."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Collection, Mapping
from functools import partial

from sparkcluster import engines
from sparkcluster.endpoint.ask import LONGEST_S, ask
from sparkcluster.endpoint.dead import dead
from sparkcluster.endpoint.find import RESTART, endpoints
from sparkcluster.endpoint.judge import judge_content
from sparkcluster.errors import FoundErrors, LaunchError, NotServing, OtherPlan
from sparkcluster.facts.collect import unreachable
from sparkcluster.hosts.fleet import Calls, Fleet, failures, values
from sparkcluster.inspect.cluster import View, unset
from sparkcluster.inspect.selection import flags, hints
from sparkcluster.inspect.state import LEFT
from sparkcluster.node.shared import LABEL_STATE_DIR
from sparkcluster.plan.release_record import RecordedGroup
from sparkcluster.release.down import down_there, former_nodes, shown
from sparkcluster.release.states import (
    TABLE,
    Action,
    Desired,
    GroupState,
    State,
    Verdict,
    after_asking,
    brief,
    differences,
    group_states,
)
from sparkcluster.release.stopping import guard_works
from sparkcluster.report import Report
from sparkcluster.runtime import secrets

UPGRADE = "sparkcluster upgrade INVENTORY"
REPLACE = "sparkcluster up INVENTORY --replace; or sparkcluster down INVENTORY, then up"
# HTTP 500 may be the failure of a single request; a dead engine also fails the next one.
RETRY_S = 2.0


def whole(view: View) -> View:
    """``view`` if every node reports its ranks, since an unseen rank may be running.

    Raises:
        FoundErrors: a node cannot be reached, or cannot list its ranks.
    """
    if view.unread:
        reported = {(finding.node, finding.code) for finding in view.findings if finding.severity == "error"}
        unread = [unreachable(name, error) for name, error in view.unread.items()]
        more = [finding for finding in unread if (finding.node, finding.code) not in reported]
        raise FoundErrors([*view.findings, *more, *unset(view.spec)])
    return view


def survey(
    fleet: Fleet, view: View, desired: Desired, report: Report, before: Mapping[str, GroupState]
) -> dict[str, GroupState]:
    """Ask every group that should answer, in parallel, and decide what to do with each.

    A group that was asked ``before`` and still has the same ranks is not asked again.
    """
    release, groups = desired.release, group_states(view)
    groups = {name: group for name, group in groups.items() if release is None or name in release.groups}
    to_ask = {name: group.recorded for name, group in groups.items() if group.state not in TABLE and group.recorded}
    begun = [name for name in (view.switch.groups if view.switch else ()) if name in groups]
    # If an interrupted switch has stopped a group, its other groups are replaced as well.
    stopped = any(name not in to_ask for name in begun)
    found = {
        name: earlier.verdict
        for name, earlier in before.items()
        if earlier.verdict and name in to_ask and earlier.ranks == groups[name].ranks
    }
    found |= _ask(fleet, view, {name: group for name, group in to_ask.items() if name not in found}, report)
    # Its guard loads or unloads it, and must not be disturbed.
    loading = desired.operation == "up" and desired.spec.idle_s is not None and guard_works(view)
    for name, group in groups.items():
        replace = desired.options.replace or (stopped and name in begun)
        kept = release.groups[name] if release else None
        if group.state in TABLE:
            renew = group.state is State.UNLOADED and rotated_secrets(view, group, kept)
            groups[name] = dataclasses.replace(group, action=Action.START if renew else TABLE[group.state])
            continue
        rotated = rotated_secrets(view, group, kept)
        asked = dataclasses.replace(group, verdict=found.get(name), rotated=rotated)
        keep = loading and group.state is State.SERVING
        action = Action.KEEP if keep else after_asking(asked, again=desired.restarts(group), replace=replace)
        groups[name] = dataclasses.replace(asked, action=action)
    return groups


def states(view: View) -> dict[str, GroupState]:
    """``group_states``, with the secrets whose values have changed on this machine."""
    return {
        name: dataclasses.replace(group, rotated=rotated_secrets(view, group))
        for name, group in group_states(view).items()
    }


def rotated_secrets(view: View, group: GroupState, kept: RecordedGroup | None = None) -> tuple[str, ...]:
    """Secrets whose values here, or in the release ``kept``, differ from those of ``group``'s ranks."""
    if group.recorded is None:
        return ()
    rotated = secrets.rotated(group.recorded, view.spec)
    if kept is None:
        return rotated
    key = engines.engine(group.recorded.engine).api_key  # a restarted release uses the current key
    now, then = (each.secrets.get("hashes", {}) for each in (group.recorded, kept))
    differ = {name for name in now.keys() | then.keys() if now.get(name) != then.get(name)} - {key}
    return tuple(sorted(differ | (set(rotated) & {key})))


def _ask(fleet: Fleet, view: View, groups: Mapping[str, RecordedGroup], report: Report) -> dict[str, Verdict]:
    """The replies of ``groups``, and the verdicts on them."""
    if groups:
        report.step("check", "asking the running groups")

    def check(group: RecordedGroup) -> Verdict:
        endpoint = endpoints(group.plan, group.engine)[group.name]
        if endpoint.head not in view.facts:  # it may still serve
            return Verdict(None, f"its head {endpoint.head} is no longer in the inventory")
        attempt = partial(
            ask,
            fleet[endpoint.head],
            endpoint,
            group.verify,
            counters=engines.engine(group.engine).counters,
            until_dead=True,
            progress=partial(report.progress, endpoint.head),
        )
        earlier = reply = attempt()
        if reply.problem == "engine-dead":
            time.sleep(RETRY_S)
            reply = attempt()
        wrong = reply.message if reply.problem else judge_content(reply, group.verify)
        return Verdict(reply, wrong, dead([], reply, earlier))

    outcomes = Calls(check, groups).wait(2 * LONGEST_S)
    failed = {name: Verdict(None, error.message) for name, error in failures(outcomes).items()}
    return {**values(outcomes), **failed}


def refuse_elsewhere(view: View, names: Collection[str]) -> None:
    """Raise LaunchError if ranks of the groups ``names`` are recorded on machines that left the inventory.

    A start would lose track of them, since the next record would not name them.
    """
    if view.newest is None or not view.ranks.of_release(view.newest):
        return
    nodes = {node for name, group in view.groups.items() if name in names for node in group.ranks}
    former = [node for node in former_nodes(view.spec, {"": view.newest.record}) if node.label in nodes]
    if former:
        raise LaunchError(
            f"ranks of this release also run on machines outside the inventory: {' and '.join(map(shown, former))}",
            step="stop",
            hint=f"{down_there(former)}   also stops them there; then run up again",
        )


def refuse(view: View, groups: Mapping[str, GroupState]) -> None:
    """Raise if a group conflicts with the plan and ``up`` does not replace it; nothing is changed.

    Raises:
        OtherPlan: a group serves another plan, or was started with other secrets.
        LaunchError: ranks belong to another state directory.
        FoundErrors, PlanError: a group serves, and the new plan cannot be made.
    """
    refused = {name: group for name, group in groups.items() if group.action is Action.REFUSE}
    if any(group.state is State.TAKEN for group in refused.values()):
        node, rank = next((name, ranks[0]) for name, ranks in view.ranks.stray.items() if ranks)
        where = rank.labels.get(LABEL_STATE_DIR, "?")
        text = f"{rank.name} on {node} belongs to a cluster of this name with state_dir {where}"
        hint = "give this cluster another name, or use that state_dir in the inventory"
        raise LaunchError(text, node=node, step="stop", hint=hint)
    differing = [group for group in refused.values() if group.state is State.OTHER]
    if not differing and not any(group.rotated for group in refused.values()):
        return
    if differing and view.plan is None and view.unplanned is not None:
        view.stop_on_errors()
    spec, fill = view.spec, hints(view.spec)
    served = next((group.recorded for group in differing if group.recorded), None)
    cluster = f"{spec.inventory.cluster} serves{f' release {served.release}' if served else ''}"
    found = [each for group in refused.values() for each in differences(view, group)]
    chosen = brief(served, spec, "sparkcluster plan INVENTORY -v") if served else ()
    lines = [f"{word} {text}" for word, text in chosen] or [each.brief for each in found]
    if not differing:
        rotated = {name for group in refused.values() for name in group.rotated}
        command = RESTART if rotated == {engines.engine(spec.playbook.engine).api_key} else UPGRADE
        message = f"{cluster} with a different secret than the one set here"
        hint = f"{command}   restarts it with the secret set here"
    elif served is None:
        message, hint = f"{cluster} an unrecorded plan", REPLACE
    else:
        message = f"{cluster}, which has a different plan"
        hint = f"{UPGRADE}   switches to {shlex.join(fill.flags) or spec.inventory_path.name}"
        keeping = flags(served.selected, spec)
        if keeping and served.selected != spec.selected:
            keep = f"{fill._replace(flags=keeping)(UPGRADE)} --save"
            hint = f"{keep}   keeps the running release and saves it in {spec.inventory_path.name}; or {hint}"
    raise OtherPlan(
        "\n".join([f"{message}; nothing was changed", *(fill(line) for line in lines)]),
        [line for each in found for line in each.shown()],
        hint=fill(hint),
    )


def stop_on_wrong_answers(view: View, groups: Mapping[str, GroupState]) -> None:
    """Raise NotServing for a group of this plan that is not dead but does not answer as its release expects.

    It is left running, and the other groups are started.
    """
    for name, group in groups.items():
        if group.action is Action.REFUSE and group.verdict:
            wrong = f"{view.spec.inventory.called(name)} does not answer as its release expects: {group.verdict.wrong}"
            raise NotServing(
                f"{wrong}; it is not dead and was left running",
                node=group.verdict.reply.head if group.verdict.reply else None,
                step="verify",
                hint=hints(view.spec)(REPLACE),
            )


def note_differences(view: View, groups: Mapping[str, GroupState], report: Report) -> None:
    """Note how kept groups differ from the files, and which ranks of an interrupted command are continued."""
    left = [view.spec.inventory.called(name) for name, group in groups.items() if group.state is State.STARTED]
    if left and view.lease is None:
        report.note(f"{', '.join(left)}: {LEFT}; continuing with the ranks that it started")
    for group in groups.values():
        if group.action is not Action.KEEP or group.recorded is None:
            continue
        name = view.spec.inventory.called(group.name)
        if warning := secrets.key_warning(group.recorded, view.spec):
            report.note(hints(view.spec)(f"warning: {warning}"))
        since = f"since release {group.recorded.release} was started"
        if group.drift:
            remedy = hints(view.spec)("sparkcluster up INVENTORY --replace   restarts it with the new values")
            report.note(f"{name}: {'; '.join(group.drift)} {since}: {remedy}")
        if group.recorded.verify != view.spec.playbook.verifying:
            report.note(f"{name}: verify in the playbook was edited {since}; it takes effect at the next start")
