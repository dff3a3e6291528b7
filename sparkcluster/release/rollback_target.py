"""The way back to a kept release: its record, as the head of its group has it, and the spec that starts it again.

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
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.releases import Records, as_recorded, documents_of
from sparkcluster.node.shared import kept_image
from sparkcluster.plan.cost import missing_on
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.report import Report
from sparkcluster.runtime import secrets as values
from sparkcluster.spec import Spec, consent, powers
from sparkcluster.spec.load import is_shipped
from sparkcluster.spec.playbook import Playbook
from sparkcluster.spec.playbook_files import Beside

_THINGS = {"weights": "its weights", "image": "its image"}


@dataclasses.dataclass(frozen=True, slots=True)
class RollbackTarget:
    """A recorded release that may serve again, accepted.

    Attributes:
        number: under which its images and secrets are kept.
        groups: as it recorded them.
        specs: what starts each of them again on the nodes of today's inventory, accepted.
    """

    number: int
    groups: Mapping[str, RecordedGroup]
    specs: Mapping[str, Spec]

    def parts(self, names: Collection[str]) -> list[tuple[Spec, list[str]]]:
        """``names`` with the spec that starts them, which groups of the same playbook share."""
        found: dict[str, tuple[Spec, list[str]]] = {}
        for name in names:
            spec = self.specs[name]
            found.setdefault(spec.playbook.model_dump_json(), (spec, []))[1].append(name)
        return list(found.values())


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
    node, release = found
    documents = documents_of(records, number)
    others = [name for name in records if documents.get(name) != documents[node]]
    if others:
        text = f"no record of release {number}, or another one; that of {node} is used"
        report.note(f"warning: {', '.join(others)}: {text}")
    groups = {name: group for name, group in recorded_groups(release.record).items() if group.verified}
    specs = {name: accept(_spec_of_group(spec, group, release), report, yes=yes) for name, group in groups.items()}
    for group in groups.values():
        # One that was started without a key gets that of today, which has to be here.
        started_with = group.secrets.get("hashes", {})
        if spec.inventory.api.key is not None and engines.engine(group.engine).api_key not in started_with:
            values.api_key(spec)
    return RollbackTarget(number, groups, specs)


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
    """``spec`` with what nodes have of release ``number``, as ``outcome.origin_of`` wrote it; not accepted.

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
    of_files = [each for each in view.findings_of(names) if each.code.startswith(("IMG-", "MDL-"))]
    why = [f"{', '.join(nodes)} lost {what}" for what, nodes in lost.items()]
    why += [each.summary for each in of_files if each.severity == "error"]
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
            hint="sparkcluster upgrade INVENTORY   starts what is written, with the secrets that are set here",
        )
