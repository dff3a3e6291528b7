"""What is recorded of a release, and the way back to it: its record as the head has it, and the spec that it gives.

A record is a document like any other: it is shown and accepted (``spec.consent``) unless that was done on this machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.answers import problem
from sparkcluster.errors import LaunchError, UsageError
from sparkcluster.facts.model import Facts, ReleaseFact
from sparkcluster.facts.running import Reply
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.releases import Records, as_recorded
from sparkcluster.node.shared import LABEL_RELEASE, kept_image
from sparkcluster.plan import image as images
from sparkcluster.plan.cost import missing_on
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import RecordedGroup, group_plan, recorded_groups, written_network
from sparkcluster.report import Report
from sparkcluster.runtime import secrets as values
from sparkcluster.spec import Spec, consent, powers
from sparkcluster.spec.load import is_shipped
from sparkcluster.spec.playbook import Playbook
from sparkcluster.spec.playbook_files import Beside
from sparkcluster.topology import recorded as networks
from sparkcluster.topology.model import Topology

_THINGS = {"weights": "its weights", "image": "its image"}


@dataclasses.dataclass(frozen=True, slots=True)
class RollbackTarget:
    """A recorded release that may serve again, accepted.

    Attributes:
        number: under which its images and secrets are kept.
        groups: as it recorded them.
        spec: what starts them again on the nodes of today's inventory, accepted.
    """

    number: int
    groups: Mapping[str, RecordedGroup]
    spec: Spec


def find(spec: Spec, number: int, records: Mapping[str, Records], report: Report, *, yes: bool) -> RollbackTarget:
    """The release ``number`` as the head of a group recorded it, accepted; ``yes`` accepts it unasked.

    A node that lacks the record or has another one is named: it was off when that was written, mostly.

    Raises:
        UsageError: no node has it, it is malformed, or it is not accepted.
    """
    found = as_recorded(records, number)
    if found is None:
        releases = "sparkcluster releases INVENTORY   lists them"
        raise UsageError(f"no node has a record of release {number}", hint=releases)
    node, release, others = found
    if others:
        text = f"no record of release {number}, or another one; that of {node} is used"
        report.note(f"warning: {', '.join(others)}: {text}")
    groups = {name: group for name, group in recorded_groups(release.record).items() if group.verified}
    specs = [_spec_of_group(spec, group, release) for group in groups.values()]
    if len({each.playbook.model_dump_json() for each in specs}) != 1:
        why = "has groups of several playbooks: it was cut off" if groups else "has no group that has answered"
        raise UsageError(f"release {number} {why}", hint="sparkcluster releases INVENTORY   lists others")
    for group in groups.values():
        # One that was started without a key gets that of today, which has to be here.
        started_with = group.secrets.get("hashes", {})
        if spec.inventory.api.key is not None and engines.engine(group.engine).api_key not in started_with:
            values.api_key(spec)
    return RollbackTarget(number, groups, accept(specs[0], report, yes=yes))


def _spec_of_group(spec: Spec, group: RecordedGroup, release: ReleaseFact) -> Spec:
    """The spec that starts ``group`` again as it is recorded, on the nodes of today's inventory."""
    origin = {
        "playbook": group.playbook or release.record.get("playbook") or {},
        "beside": group.beside,
        "selected": group.selected,
    }
    name = kept_image(spec.inventory.cluster, release.number) if group.image else None
    found = spec_of(spec, origin, release.number)
    return dataclasses.replace(found, kept_image=name, image_is=build_of(group))


def spec_of(spec: Spec, origin: Mapping[str, Any], number: int) -> Spec:
    """``spec`` with what nodes have of release ``number``, as ``origin_of`` wrote it; not accepted.

    Raises:
        UsageError: its playbook cannot be read by this version of sparkcluster.
    """
    try:
        playbook = Playbook.model_validate(origin["playbook"])
    except ValidationError as error:
        raise UsageError(f"the playbook of release {number} cannot be used: {problem(error)}") from None
    files = {source: Beside(source, each["mark"], each["name"], ()) for source, each in origin["beside"].items()}
    mounted = {mount.source for mount in playbook.mounts}
    selected = origin.get("selected", {})
    shipped = is_shipped(playbook, str(selected.get("playbook", playbook.name)), spec.inventory.group_sizes)
    return dataclasses.replace(
        spec,
        playbook=playbook,
        playbook_path=Path(f"release-{number}"),
        # The nodes still have what was mounted from beside it, and the image that was built.
        beside={source: each for source, each in files.items() if source in mounted},
        build=files.get(playbook.build.context) if playbook.build else None,
        places={},
        bundled=shipped and not files,
        selected=selected,
    )


def accept(spec: Spec, report: Report, *, yes: bool) -> Spec:
    """``spec`` of a record or journal, accepted (``spec.consent``); ``yes`` accepts it unasked.

    Raises:
        UsageError: it is not accepted, or the inventory does not permit what its playbook wants.
    """
    found = powers.of(spec.playbook, spec.inventory)
    for power in found:
        if power.refused:
            raise UsageError(f"the playbook of the release is refused: {power.text}: {power.refused}")
    needed = powers.permit(found, spec.inventory)
    if needed:
        raise UsageError("the inventory does not permit what the playbook of the release needs", hint=f"add {needed}")
    spec = consent.accept(spec, report, yes=yes)
    if spec.image_is and not consent.is_remembered(accepted_image(spec, spec.image_is)):
        what = f"{spec.playbook_path}: {spec.reference} is recorded as {spec.image_is}"
        report.note(f"{what}, which was not started from this machine")
        if not yes and not report.confirm("accept this image?"):
            raise UsageError(f"{what}, and this is not accepted yet", hint="to accept it, add --yes")
        consent.remember([accepted_image(spec, spec.image_is)])
    return spec


def accepted_image(spec: Spec, build: str) -> str:
    """By what it is remembered that the image of ``spec`` is ``build``: that of a record is a node's word."""
    return hashlib.sha256(f"{spec.reference} {build}".encode()).hexdigest()


def build_of(group: RecordedGroup) -> str:
    """The build of the image of ``group``, as it is recorded; empty without one."""
    return str((group.image or {}).get("build", ""))


def prove(view: View, target: RollbackTarget, names: Collection[str], records: Mapping[str, Records]) -> None:
    """Raise LaunchError unless every node has what starts ``names`` of ``target`` again.

    That is image, weights, files and secrets. ``view`` is of the recorded spec.
    """
    lost: dict[str, list[str]] = {}
    for group in (target.groups[name] for name in names):
        for node in group.ranks:
            topology, bring_ray = view.topology, view.bring_ray
            missing = missing_on(view.spec, view.facts, topology, [node], bring_ray=bring_ray) if topology else ()
            for each in sorted(missing):
                lost.setdefault(_THINGS.get(each, "a file or Ray"), []).append(node)
        if without := without_secrets(target, [group.name], records):
            lost.setdefault("its secrets", []).extend(without)
    why = [f"{', '.join(nodes)} lost {what}" for what, nodes in lost.items()]
    if not why and view.plan is None:
        why = ["no plan can be made of it"]
    if why:
        raise LaunchError(
            f"release {target.number}, which serves, could not be started again: {'; '.join(why)}",
            step="go back",
            hint="with --no-rollback it is replaced without a way back",
        )


def without_secrets(target: RollbackTarget, names: Collection[str], records: Mapping[str, Records]) -> list[str]:
    """Nodes whose rank in ``target`` needs secrets that they have no more."""
    return [
        node
        for name in names
        for node in target.groups[name].ranks
        if target.groups[name].has_secrets(node) and not (node in records and target.number in records[node].secrets)
    ]


def require_secrets(target: RollbackTarget, names: Collection[str], records: Mapping[str, Records]) -> None:
    """Raise LaunchError where nodes lack the secrets that start ``names`` of ``target``."""
    lost = without_secrets(target, names, records)
    if lost:
        message = f"{', '.join(lost)} lost the secrets of release {target.number}; nothing was stopped"
        raise LaunchError(
            message,
            node=lost[0],
            step="go back",
            hint="sparkcluster down INVENTORY, then sparkcluster up INVENTORY: with the secrets that are set here",
        )


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
