"""What already serves, and whether it stays: each group is asked, and its answer judged by its own release."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Collection, Mapping

from sparkcluster import engines
from sparkcluster.endpoint.ask import LONGEST_S, ask
from sparkcluster.endpoint.dead import dead
from sparkcluster.endpoint.find import RESTART, endpoints
from sparkcluster.endpoint.judge import judge_content
from sparkcluster.errors import LaunchError, NotServing, OtherPlan, SparkclusterError
from sparkcluster.facts.base import Unread
from sparkcluster.facts.running import Reply
from sparkcluster.hints import Typed
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.observing import launched, observe_nodes
from sparkcluster.inspect.selection import flags, hints
from sparkcluster.node.shared import LABEL_STATE_DIR
from sparkcluster.plan.release_record import ClusterRanks, RecordedGroup, recorded_groups
from sparkcluster.release.down import down_there, former_nodes
from sparkcluster.release.states import (
    TABLE,
    Action,
    GroupState,
    Seen,
    State,
    after_asking,
    brief,
    differences,
    group_states,
)
from sparkcluster.report import Report
from sparkcluster.runtime import secrets
from sparkcluster.spec.inventory import Node

UPGRADE = "sparkcluster upgrade INVENTORY"
REPLACE = "sparkcluster up INVENTORY --replace; or sparkcluster down INVENTORY, then up"
# HTTP 500 may be the failure of a single request; a dead engine fails the next one too.
AGAIN_S = 2.0
OBSERVE_S = 20.0


def survey(
    fleet: Fleet,
    view: View,
    report: Report,
    *,
    replace: bool,
    before: Mapping[str, GroupState] | None = None,
    abandoned: Collection[str] = (),
    kept: Mapping[str, RecordedGroup] | None = None,
    only: Collection[str] | None = None,
    restart: int = 0,
) -> dict[str, GroupState]:
    """Ask every group that should answer, all at once, and decide what to do with each.

    A group that was asked ``before`` and has the same ranks as then is not asked again. Of groups ``abandoned``, whose
    switch to another release was cut off, ranks that no release recorded are not asked but cleaned. Where a release is
    to serve again, ``kept`` are its groups, and ``only`` those that are looked at; groups
    that run since release ``restart`` or before are started anew.
    """
    groups = {name: group for name, group in group_states(view).items() if only is None or name in only}
    left = {name for name, group in groups.items() if name in abandoned and group.unrecorded}
    down = {State.EMPTY, State.STARTED, State.REMAINS}
    # Where the switch has stopped a group, the others go the same way.
    stopped = bool(left) or any(group.state in down for name, group in groups.items() if name in abandoned)
    to_ask = {name: group for name, group in groups.items() if TABLE[group.state] is Action.ASK and name not in left}
    seen = {
        name: earlier.seen
        for name, earlier in (before or {}).items()
        if earlier.seen and name in to_ask and earlier.ranks == to_ask[name].ranks
    }
    seen |= _ask(fleet, view, {name: group for name, group in to_ask.items() if name not in seen}, report)
    for name, group in groups.items():
        if name not in to_ask:
            action = Action.CLEAN if name in left else TABLE[group.state]
            groups[name] = dataclasses.replace(group, action=action)
            continue
        rotated = rotated_secrets(view, group, kept)
        action = after_asking(
            group.state,
            answers=seen[name].wrong is None,
            dead=seen[name].dead is not None,
            rotated=bool(rotated) or (group.recorded is not None and group.recorded.release <= restart),
            drifted=bool(group.drift),
            replace=replace or (stopped and name in abandoned),
        )
        groups[name] = dataclasses.replace(group, seen=seen[name], rotated=rotated, action=action)
    return groups


def states(view: View) -> dict[str, GroupState]:
    """``group_states``, with the names of secrets that have another value here."""
    return {
        name: dataclasses.replace(group, rotated=rotated_secrets(view, group))
        for name, group in group_states(view).items()
    }


def rotated_secrets(view: View, group: GroupState, kept: Mapping[str, RecordedGroup] | None = None) -> tuple[str, ...]:
    """Names of secrets that have another value here, or in the release ``kept``, than the ranks of ``group`` have."""
    if group.recorded is None:
        return ()
    if kept is not None and group.name not in kept:
        return ()
    rotated = secrets.rotated(group.recorded.secrets, view.spec)
    if kept is None:
        return rotated
    key = engines.engine(view.spec.playbook.engine).api_key  # a release that serves again takes that of today
    now, then = (each.secrets.get("hashes", {}) for each in (group.recorded, kept[group.name]))
    differ = {name for name in now.keys() | then.keys() if now.get(name) != then.get(name)} - {key}
    return tuple(sorted(differ | (set(rotated) & {key})))


def _ask(fleet: Fleet, view: View, groups: Mapping[str, GroupState], report: Report) -> dict[str, Seen]:
    recorded = {name: group.recorded for name, group in groups.items() if group.recorded}
    found = {name: endpoints(group.plan, group.engine)[name] for name, group in recorded.items()}
    unrecorded = {node: view.facts[node] for group in groups.values() if group.unrecorded for node in group.ranks}
    observations = observe_nodes(fleet, view.spec, unrecorded, OBSERVE_S)
    found |= launched(view.spec, view.facts, observations)
    heads = {endpoint.head: name for name, endpoint in found.items() if endpoint.head in view.facts}
    if heads:
        report.step("check", "asking what serves")

    def check(host: Host) -> Seen:
        name = heads[host.name]
        verify = recorded[name].verify if name in recorded else view.spec.playbook.verifying
        engine = recorded[name].engine if name in recorded else view.spec.playbook.engine

        def attempt() -> Reply:
            return ask(
                host,
                found[name],
                verify,
                counters=engines.engine(engine).counters,
                until_dead=True,
                progress=lambda text: report.progress(host.name, text),
            )

        earlier = reply = attempt()
        if reply.problem == "engine-dead":
            time.sleep(AGAIN_S)
            reply = attempt()
        wrong = reply.message if reply.problem else judge_content(reply, verify)
        if name not in recorded and reply.problem == "refused":
            # Any other reply, an error included, is that of an API which may serve.
            return Seen(reply, wrong, reply.message)
        return Seen(reply, wrong, dead([], reply, earlier))

    seen = {}
    for head, outcome in fleet.each(check, heads, limit_s=2 * LONGEST_S).items():
        seen[heads[head]] = Seen(None, outcome.message) if isinstance(outcome, SparkclusterError) else outcome
    for name, endpoint in found.items():
        # A head that is no longer in the inventory may still serve.
        seen.setdefault(name, Seen(None, f"its head {endpoint.head} is no longer in the inventory"))
    for name in groups.keys() - found.keys():
        read = [observations.get(node) for node in groups[name].ranks]
        reasons = dict.fromkeys(reading.unread for reading in read if isinstance(reading, Unread))
        seen[name] = Seen(None, "; ".join(["neither a record nor its launcher document can be read", *reasons]))
    return seen


def replies(groups: Mapping[str, GroupState]) -> dict[str, Reply]:
    """What each group that was asked replied."""
    return {name: group.seen.reply for name, group in groups.items() if group.seen and group.seen.reply}


def elsewhere(view: View, names: Collection[str]) -> list[Node]:
    """Machines with ranks of the groups ``names``, by their record, that are no longer in the inventory.

    To start anything beside them would leave them behind: the next record would not name them.
    """
    if view.newest is None or not view.ranks.of_release(view.newest):
        return []
    recorded = recorded_groups(view.newest.record)
    nodes = {node for name, group in recorded.items() if name in names for node in group.ranks}
    return [node for node in former_nodes(view.spec, {"": view.newest.record}) if node.label in nodes]


def refuse(view: View, groups: Mapping[str, GroupState]) -> None:
    """Raise if a group conflicts with the plan and ``up`` does not replace it; nothing is changed.

    Raises:
        OtherPlan: a group serves another plan, or was started with another secret.
        LaunchError: ranks belong to another state directory.
        FoundErrors, PlanError: a group serves, and the new plan cannot be made.
    """
    refused = {name: group for name, group in groups.items() if group.action is Action.REFUSE}
    if any(group.state is State.TAKEN for group in refused.values()):
        raise taken(view.ranks)
    differing = [group for group in refused.values() if group.state is State.OTHER]
    if not differing and not any(group.rotated for group in refused.values()):
        return
    if differing and view.plan is None and view.unplanned is not None:
        view.stop_on_errors()
    spec, fill, served = (
        view.spec,
        hints(view.spec),
        next((group.recorded for group in differing if group.recorded), None),
    )
    cluster = f"{spec.inventory.cluster} serves{f' release {served.release}' if served else ''}"
    found = [each for group in refused.values() for each in differences(view, group)]
    chosen = brief(served, spec, "sparkcluster plan INVENTORY -v") if served else ()
    told = [f"{word} {text}" for word, text in chosen] or [each.brief for each in found]
    if not differing:
        keys = {engines.engine(spec.playbook.engine).api_key}
        only_key = all(keys >= {*group.rotated} for group in refused.values())
        message = f"{cluster} with another secret than is set here"
        hint = f"{RESTART if only_key else UPGRADE}   restarts it with the one that is set here"
    elif former := elsewhere(view, refused):  # --replace would leave its ranks there
        message, hint = f"{cluster} another plan", f"{down_there(former)}, then up"
    elif served is None:
        message, hint = f"{cluster} a plan that no release recorded", REPLACE
    else:
        differs = spec.differs(served.selected)
        asked = shlex.join(fill.flags)
        message = f"{cluster}, which {differs}" if differs and not asked else f"{cluster}, which is another plan"
        hint = f"{UPGRADE}   switches to what {asked or spec.inventory_path.name} says"
        keeping = flags(served.selected, spec)
        if keeping and served.selected != spec.selected:
            keep = f"{Typed(fill.inventory, keeping)(UPGRADE)} --save"
            hint = f"{keep}   keeps what serves, in {spec.inventory_path.name} too; or {hint}"
    raise OtherPlan(
        "\n".join([f"{message}; nothing was changed", *(fill(line) for line in told)]),
        [line for each in found for line in each.shown()],
        hint=fill(hint),
    )


def stop_on_wrong_answers(view: View, groups: Mapping[str, GroupState]) -> None:
    """Raise NotServing for a group that serves this plan, is not dead, and does not answer as its release expects.

    It is left running, and the other groups are started.
    """
    for name, group in groups.items():
        if group.action is Action.REFUSE and group.seen:
            wrong = f"{view.spec.inventory.called(name)} does not answer as its release expects: {group.seen.wrong}"
            raise NotServing(
                f"{wrong}; it is not dead and was left running",
                node=group.seen.reply.head if group.seen.reply else None,
                step="verify",
                hint=hints(view.spec)(REPLACE),
            )


def taken(present: ClusterRanks) -> LaunchError:
    """The error for ranks with our cluster's name and another state directory."""
    node, rank = next((name, ranks[0]) for name, ranks in present.stray.items() if ranks)
    where = rank.labels.get(LABEL_STATE_DIR, "?")
    return LaunchError(
        f"{rank.name} on {node} belongs to a cluster of this name with state_dir {where}",
        node=node,
        step="stop",
        hint="give this cluster another name, or use that state_dir in the inventory",
    )


def note_differences(view: View, groups: Mapping[str, GroupState], report: Report) -> None:
    """Note how groups that are kept differ from what is written: drifted addresses, and an edited ``verify``."""
    for group in groups.values():
        if group.action is not Action.KEEP or group.recorded is None:
            continue
        name = view.spec.inventory.called(group.name)
        if lost := secrets.lost_key(group.recorded.secrets, view.spec):
            report.note(f"warning: {lost[0]}")
            report.note(hints(view.spec)(f"hint: {lost[1]} && {RESTART}"))
        since = f"since release {group.recorded.release} was started"
        for line in group.drift:
            report.note(f"{name}: {line} {since}")
        if group.drift:
            hint = f"hint: sparkcluster up INVENTORY --replace   restarts {name} with the new values"
            report.note(hints(view.spec)(hint))
        if group.recorded.verify != view.spec.playbook.verifying:
            report.note(f"{name}: verify in the playbook was edited {since}; it takes effect at the next start")
