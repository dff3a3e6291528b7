"""The way back to a kept release: its record, as the nodes agree on it, and the spec that starts it again.

What a node has recorded is trusted for that node alone. To be applied to others, a record must be the same on every
node that has it; where only one of several has it, the user confirms it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.answers import problem
from sparkcluster.errors import LaunchError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.history import node_records
from sparkcluster.node.shared import kept_image
from sparkcluster.plan.cost import missing_on
from sparkcluster.plan.records import RecordedGroup, recorded_groups
from sparkcluster.report import Report
from sparkcluster.runtime import secrets as values
from sparkcluster.spec import Spec, powers
from sparkcluster.spec.beside import Beside
from sparkcluster.spec.playbook import Playbook


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """A kept release.

    Attributes:
        number: under which its images and secrets are kept.
        groups: as it recorded them.
        document: the whole record.
        anew: whether it starts with the operator's secrets, which are the same, as nodes lost their own.
    """

    number: int
    groups: Mapping[str, RecordedGroup]
    document: Mapping[str, Any]
    anew: bool = False

    def parts(self, names: Collection[str]) -> list[list[str]]:
        """``names`` by playbook: groups of one part are started from the same spec."""
        found: dict[str, list[str]] = {}
        for name in names:
            group = self.groups[name]
            found.setdefault(json.dumps([group.playbook, group.bundled], sort_keys=True), []).append(name)
        return list(found.values())


def agreed(
    documents: Mapping[str, Mapping[str, Any]], what: str, spec: Spec, trust: str | None, report: Report
) -> dict[str, Any]:
    """The document that every node which has one has; ``documents`` by node, at least one.

    Raises:
        UsageError: nodes differ, or one of several has it and nobody confirms it; the hint names ``--trust``.
    """
    if trust is not None:
        if trust not in documents:
            raise UsageError(f"--trust {trust}: {trust} does not have {what}", hint=f"one of: {', '.join(documents)}")
        return dict(documents[trust])
    same: dict[str, list[str]] = {}
    for node, document in documents.items():
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        same.setdefault(hashlib.sha256(canonical.encode()).hexdigest(), []).append(node)
    nodes = list(documents)
    hint = f"to use what one node has: --trust NODE, with one of {', '.join(nodes)}"
    if len(same) > 1:
        differ = " and ".join(", ".join(group) for group in same.values())
        raise UsageError(f"{what} is not the same on {differ}", hint=hint)
    if len(nodes) == 1 and len(spec.inventory.nodes) > 1:
        only, hint = f"only {nodes[0]} has {what}", f"to use it: --trust {nodes[0]}"
        if not report.confirm(f"{only}. Start what it says on the other nodes too?"):
            raise UsageError(f"{only}, and what one node says is not applied to others unasked", hint=hint)
    return dict(documents[nodes[0]])


def find_kept(fleet: Fleet, spec: Spec, number: int, report: Report, *, trust: str | None = None) -> Kept:
    """The release ``number`` as the nodes recorded it.

    Raises:
        UsageError: no node has it, the nodes disagree, or it is malformed.
        SparkclusterError: no node could be queried.
    """
    found = node_records(fleet, spec)[0]
    records = {
        node: document
        for node, answer in found.items()
        for document in answer.records
        if document.get("number") == number
    }
    releases = f"sparkcluster releases {shlex.quote(str(spec.inventory_path))}   lists them"
    if not records:
        raise UsageError(f"no node has a record of release {number}", hint=releases)
    document = agreed(records, f"the record of release {number}", spec, trust, report)
    try:
        checked = ReleaseFact.model_validate({"number": number, "plan_hash": "", "record": document})
    except ValidationError as error:
        raise UsageError(f"the record of release {number} is malformed: {problem(error)}", hint=releases) from None
    groups = {name: group for name, group in recorded_groups(checked.record).items() if group.verified}
    kept = Kept(number, groups, document)
    _require_key(spec, groups)
    lost = without_secrets(kept, groups, {node: answer.secrets for node, answer in found.items()})
    if lost and all(_at_hand(spec, kept, name) for name in groups):
        report.note(f"{', '.join(lost)} lost the secrets of release {number}: it starts with the same, as set here")
        return dataclasses.replace(kept, anew=True)
    return kept


def _require_key(spec: Spec, groups: Mapping[str, RecordedGroup]) -> None:
    """Raise UsageError where the inventory has an API key without a value here, and a group was started without one."""
    for group in groups.values():
        name = engines.engine(group.engine).api_key
        if spec.inventory.api.key is not None and name not in group.secrets.get("hashes", {}):
            values.api_key(spec)


def _at_hand(spec: Spec, kept: Kept, group: str) -> bool:
    recorded = kept.groups[group]
    names = {name for node in recorded.plan["nodes"].values() for name in node.get("secrets", ())}
    return values.at_hand(names, recorded.secrets, recorded_spec(spec, kept, group))


def recorded_spec(spec: Spec, kept: Kept, group: str) -> Spec:
    """The spec that starts ``group`` again as ``kept`` recorded it, on the nodes of today's inventory.

    Raises:
        UsageError: its playbook cannot be read by this version of sparkcluster.
    """
    recorded = kept.groups[group]
    origin = {
        "playbook": recorded.playbook or kept.document.get("playbook") or {},
        "beside": recorded.beside,
        "bundled": recorded.bundled,
        "selected": recorded.selected,
    }
    found = spec_of(spec, origin, f"release {kept.number}")
    image = kept_image(spec.inventory.cluster, kept.number) if recorded.image else None
    return dataclasses.replace(found, playbook_path=Path(f"release-{kept.number}"), kept_image=image)


def spec_of(spec: Spec, origin: Mapping[str, Any], what: str) -> Spec:
    """``spec`` with what nodes have of ``what``, as ``outcome.origin_of`` wrote it.

    Raises:
        UsageError: its playbook cannot be read by this version of sparkcluster.
    """
    try:
        playbook = Playbook.model_validate(origin["playbook"])
    except ValidationError as error:
        raise UsageError(f"the playbook of {what} cannot be used: {problem(error)}") from None
    files = {source: Beside(source, each["mark"], each["name"], ()) for source, each in origin["beside"].items()}
    mounted = {mount.source for mount in playbook.mounts}
    return dataclasses.replace(
        spec,
        playbook=playbook,
        playbook_path=Path(playbook.name),
        # The nodes still have what was mounted from beside it, and the image that was built.
        beside={source: each for source, each in files.items() if source in mounted},
        build=files.get(playbook.build.context) if playbook.build else None,
        places={},
        bundled=origin["bundled"],
        selected=origin.get("selected", {}),
    )


def refuse_powers(spec: Spec) -> None:
    """Raise UsageError where the inventory does not permit what a recorded playbook wants."""
    found = powers.of(spec.playbook, spec.inventory)
    for power in found:
        if power.refused:
            raise UsageError(f"the playbook of the release is refused: {power.text}: {power.refused}")
    needed = powers.permit(found, spec.inventory)
    if needed:
        raise UsageError("the inventory does not permit what the playbook of the release needs", hint=f"add {needed}")


def prove(view: View, kept: Kept, names: Collection[str], secrets: Mapping[str, Collection[int]]) -> None:
    """Raise unless every node has what starts ``names`` of ``kept`` again: image, weights, files and secrets.

    ``view`` is of the recorded spec; ``secrets`` are the releases whose secrets each node has.

    Raises:
        LaunchError: something of it is lost, or has an error.
    """
    lost: dict[str, list[str]] = {}
    for name in names:
        group = kept.groups[name]
        ids = (group.image or {}).get("ids", {})
        for node in group.ranks:
            image = read(view.facts[node].image) if node in view.facts else None
            if group.image and (image is None or ids.get(node, image.id) != image.id):
                lost.setdefault("its image", []).append(node)
        if without := without_secrets(kept, [name], secrets):
            lost.setdefault("its secrets", []).extend(without)
        if view.topology is not None and not lost:
            ready = missing_on(view.spec, view.facts, view.topology, list(group.ranks), bring_ray=view.bring_ray)
            if ready:
                things = {"weights": "its weights", "image": "its image"}
                what = " and ".join(things.get(each, "a file or Ray") for each in sorted(ready))
                lost.setdefault(what, []).extend(group.ranks)
    errors = [each.summary for each in view.findings_of(names) if each.severity == "error" and _of_files(each.code)]
    why = [f"{', '.join(nodes)} lost {what}" for what, nodes in lost.items()] + errors
    if not why and view.plan is None:
        why = ["no plan can be made of it"]
    if why:
        raise LaunchError(
            f"release {kept.number}, which serves, could not be started again: {'; '.join(why)}",
            step="go back",
            hint="with --no-rollback it is replaced without a way back",
        )


def without_secrets(kept: Kept, names: Collection[str], secrets: Mapping[str, Collection[int]]) -> list[str]:
    """Nodes whose rank in ``kept`` needs secrets that they have no more; ``secrets`` as in ``prove``."""
    if kept.anew:
        return []
    return [
        node
        for name in names
        for node, planned in kept.groups[name].plan["nodes"].items()
        if planned["containers"][0].get("env_file") and kept.number not in secrets.get(node, ())
    ]


def require_secrets(kept: Kept, names: Collection[str], secrets: Mapping[str, Collection[int]]) -> None:
    """Raise LaunchError where nodes lack the secrets that start ``names`` of ``kept``."""
    lost = without_secrets(kept, names, secrets)
    if lost:
        message = f"{', '.join(lost)} lost the secrets of release {kept.number}; nothing was stopped"
        raise LaunchError(message, node=lost[0], step="go back", hint="go back to another release")


def _of_files(code: str) -> bool:
    return code.startswith(("IMG-", "MDL-"))
