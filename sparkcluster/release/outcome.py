"""What is recorded of a launch, and the error that is shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster.errors import Interrupted, LeaseLost, SparkclusterError
from sparkcluster.facts.model import Facts, ReleaseFact
from sparkcluster.facts.running import Reply
from sparkcluster.node.shared import LABEL_RELEASE
from sparkcluster.plan import image as images
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import RecordedGroup, group_plan, recorded_groups, written_network
from sparkcluster.release.group import Outcome
from sparkcluster.spec import Spec
from sparkcluster.topology import recorded as networks
from sparkcluster.topology.model import Topology


def origin_of(spec: Spec) -> dict[str, Any]:
    """What starts from ``spec`` again, in a record or a journal."""
    files = (*spec.beside.values(), *filter(None, [spec.build]))
    return {
        "playbook": spec.playbook.model_dump(mode="json", exclude_defaults=True),
        "beside": {each.source: {"mark": each.mark, "name": each.name} for each in files},
        "selected": dict(spec.selected),
    }


def newly_recorded(
    spec: Spec,
    plan: Plan,
    topology: Topology,
    *,
    facts: Mapping[str, Facts],
    replies: Mapping[str, Reply],
    secrets: Mapping[str, dict[str, Any]],
    kept: Mapping[str, RecordedGroup],
    measured: Mapping[str, Mapping[str, Any]] | None = None,
    names: Collection[str] | None = None,
) -> list[RecordedGroup]:
    """Every group of ``plan`` as the next release records it, also a group that has not answered.

    ``facts`` are those of the nodes that ``plan`` was made from, ``replies`` those of the groups that came up,
    ``secrets`` salt and hashes of what each was started with, ``kept`` the groups that serve since an earlier release,
    ``measured`` the seconds of each start and the speeds of each switch, ``names`` those that were started, if not all;
    others are not recorded.
    """
    document = plan.as_json()
    origin = origin_of(spec)
    found = []
    for group in topology.groups:
        if names is not None and group.name not in {*names, *kept}:
            continue
        labels = plan.nodes[group.head.name].containers[0].labels
        found.append(
            kept.get(group.name)
            or RecordedGroup(
                name=group.name,
                release=int(labels[LABEL_RELEASE]),
                engine=plan.engine,
                plan=group_plan(document, group.name),
                verify=spec.playbook.verifying,
                request=spec.playbook.request,
                verified=group.name in replies,
                network=networks.document(group),
                written=written_network(spec),
                secrets=secrets.get(group.name, {}),
                image=images.image_identity(facts, group.names),
                versions=images.versions(plan.engine, facts, group.names),
                measured=_measured(replies.get(group.name), (measured or {}).get(group.name, {})),
                **origin,
            )
        )
    return found


def _measured(reply: Reply | None, more: Mapping[str, Any]) -> dict[str, Any]:
    if reply is None:
        return {}
    return {"ttft_s": reply.ttft_s, "tokens_per_s": reply.tokens_per_s, "start_s": None, **reply.footprint, **more}


def last_start_s(newest: ReleaseFact | None, plan: Plan, name: str) -> float | None:
    """Seconds that the recorded start of a group took; None unless it was of the model and image of ``plan``."""
    recorded = recorded_groups(newest.record).get(name) if newest else None
    if recorded is None or any(recorded.plan.get(key) != getattr(plan, key) for key in ("model", "image")):
        return None
    found: float | None = recorded.measured.get("start_s")
    return found


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
