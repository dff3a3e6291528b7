"""The end of a launch of several groups: what is recorded, and the error that is shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from sparkcluster.errors import Interrupted, LaunchError, LeaseLost, SparkclusterError
from sparkcluster.facts.model import Facts
from sparkcluster.facts.running import Reply
from sparkcluster.launch.groups import Outcome
from sparkcluster.node.shared import LABEL_RELEASE
from sparkcluster.plan import software
from sparkcluster.plan.model import Plan
from sparkcluster.plan.records import RecordedGroup, group_plan, written_network
from sparkcluster.release.states import GroupState
from sparkcluster.spec import Spec
from sparkcluster.topology import recorded as networks
from sparkcluster.topology.model import Topology


def newly_recorded(
    spec: Spec,
    plan: Plan,
    topology: Topology,
    *,
    facts: Mapping[str, Facts],
    replies: Mapping[str, Reply],
    secrets: Mapping[str, dict[str, Any]],
    kept: Mapping[str, GroupState],
) -> list[RecordedGroup]:
    """Every group of ``plan`` as the next release records it, also a group that has not answered.

    ``facts`` are those of the nodes that ``plan`` was made from, ``replies`` those of the groups that came up,
    ``secrets`` salt and hashes of what each was started with, ``kept`` the groups that serve since an earlier release.
    """
    document = plan.as_json()
    found = []
    for group in topology.groups:
        before = kept[group.name].recorded if group.name in kept else None
        labels = plan.nodes[group.head.name].containers[0].labels
        found.append(
            before
            or RecordedGroup(
                name=group.name,
                release=int(labels[LABEL_RELEASE]),
                engine=plan.engine,
                plan=group_plan(document, group.name),
                verify=spec.playbook.verify,
                verified=group.name in replies,
                network=networks.document(group),
                written=written_network(spec),
                secrets=secrets.get(group.name, {}),
                image=software.image_identity(facts, group.names),
                versions=software.versions(plan.engine, facts, group.names),
                measured=_measured(replies.get(group.name)),
            )
        )
    return found


def _measured(reply: Reply | None) -> dict[str, Any]:
    return {"ttft_s": reply.ttft_s, "tokens_per_s": reply.tokens_per_s} if reply else {}


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


def came_back(group: GroupState) -> LaunchError:
    """The error for a rank that was removed and exists again."""
    node, rank = next((node, ranks[0]) for node, ranks in group.ranks.items() if ranks)
    return LaunchError(
        f"{rank.name} on {node} was removed and exists again ({rank.state})",
        node=node,
        step="clean",
        hint=f"on {node}: docker rm -f {quote(rank.name)}, and find out what starts it",
    )
