"""Releases, merged from the records of all nodes; and which of them are rollback targets, or what they lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from sparkcluster import engines
from sparkcluster.answers import problem
from sparkcluster.engines.phase import FOOTPRINT
from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.facts.base import Fact, Few, Number
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.release_record import ImageId
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, all_values, failures, values
from sparkcluster.hosts.program import call
from sparkcluster.inspect.cluster import see
from sparkcluster.plan.compare import compare, edited
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.spec import Spec

# Arguments that a measured KV cache depends on, as named in ``Engine.common_arguments``.
_COUNTS = ("memory", "context", "kv_type", "requests")

# Fields copied from a record, with defaults for records of older versions.
_TOLD: dict[str, Any] = {"verified_at": 0.0, "operator": "", "operation": "", "restores": 0}

TagNumber = Annotated[str, Field(pattern="^[0-9]{6,10}$")]


class Records(Fact):
    """The answer of the releases program.

    Attributes:
        records: each as it was written; ``release_of`` parses one.
        images: image IDs of the releases' tags, by release number in six digits; None if Docker is not the runtime or
            could not be queried.
        secrets: the releases whose secrets are kept.
        switch: the document of an unfinished switch, as it was written; None without one.
    """

    records: Few[dict[str, Any]]
    images: dict[TagNumber, ImageId] | None = None
    secrets: Few[Number] = ()
    switch: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A release, the nodes that have its record, and the nodes that keep its image and secrets.

    Attributes:
        nodes: nodes with the record.
        keepers: nodes of verified groups, each with its group; other nodes keep nothing.
    """

    release: ReleaseFact
    nodes: list[str]
    keepers: Mapping[str, RecordedGroup]

    @property
    def model(self) -> str:
        """The model that it serves; empty in a record of an older version, which has no plan."""
        return str(self.release.record.get("plan", {}).get("model", ""))


def release_of(document: Mapping[str, Any]) -> ReleaseFact:
    """The release in a record.

    Raises:
        ValidationError: it is malformed: edited, or of another version.
    """
    keys = {key: document.get(key) for key in ("number", "plan_hash")}
    return ReleaseFact.model_validate({**keys, "record": document})


def history(fleet: Fleet, spec: Spec) -> dict[str, Any]:
    """``releases``: every recorded release, newest first; ``errors``: unreadable nodes or records, by node.

    Each release has number, plan_hash, verified_at (seconds since 1970), operator, model, image, digest (the image as
    any node can pull it), the nodes with its record, whether it is running, whether nodes keep what a rollback to it
    needs (kept), what they lost of it (image and secrets, each with the nodes), the operation that made it, the release
    that it restores or 0, and changes to the playbook since the previous row.

    Raises:
        SparkclusterError: no node could be queried.
    """
    found, answers, errors = _recorded(fleet, spec)
    view = see(fleet, spec, list(answers))
    latest = view.newest if view.ranks.of_release(view.newest) else None
    running = (latest.number, latest.plan_hash) if latest else None
    tagged = {int(number) for answer in answers.values() for number in answer.images or {}}
    releases: list[dict[str, Any]] = []
    for each, older in zip(found, [*found[1:], None], strict=False):
        release, record = each.release, each.release.record
        # Processes have no image; if no node reports tags, nothing is known to be lost.
        is_kept = bool(each.keepers) and (not tagged or release.number in tagged)
        releases.append(
            {
                "number": release.number,
                "plan_hash": release.plan_hash,
                **{key: record.get(key, absent) for key, absent in _TOLD.items()},
                "model": each.model,
                "image": record.get("plan", {}).get("image"),
                "digest": record.get("image_digest"),
                "nodes": each.nodes,
                "running": (release.number, release.plan_hash) == running,
                "kept": is_kept,
                "lost": _lost(each, answers if is_kept else {}, errors),
                "changes": edited(older.release.record.get("playbook"), record.get("playbook")) if older else [],
            }
        )
    return {"releases": releases, "errors": errors}


def _lost(release: Recorded, answers: Mapping[str, Records], errors: dict[str, str]) -> dict[str, list[str]]:
    """The nodes that lost image or secrets of ``release``; nodes that cannot tell are added to ``errors``."""
    number = release.release.number
    lost: dict[str, list[str]] = {"image": [], "secrets": []}
    for node, group in release.keepers.items():
        if (answer := answers.get(node)) is None:
            continue
        image = group.image_on(node)
        if image is not None and answer.images is None:
            errors.setdefault(node, "cannot ask Docker which release images it has")
        elif image is not None and answer.images is not None and answer.images.get(f"{number:06d}") != image:
            lost["image"].append(node)
        if group.has_secrets(node) and number not in answer.secrets:
            lost["secrets"].append(node)
    return lost


def compared(fleet: Fleet, spec: Spec, old: int, new: int) -> dict[str, Any]:
    """The differences between the releases ``old`` and ``new``, one per line; ``errors`` of nodes that did not answer.

    If nodes have different releases under one number, the record of a group's head is used.

    Raises:
        UsageError: no node has a readable record of one of them.
        SparkclusterError: no node could be queried.
    """
    answers, failed = node_records(fleet, spec)
    facts = [as_recorded(answers, number)[1] for number in (old, new)]
    errors = {name: error.message for name, error in failed.items()}
    return {"old": old, "new": new, "differences": compare(*facts), "errors": errors}


def measured(fleet: Fleet, spec: Spec, nodes: int) -> dict[str, Any] | None:
    """The memory that the engine logged when ``spec``'s model was last verified here, preferably on ``nodes`` nodes.

    ``release``, ``group``, ``nodes`` (size of the group), ``args`` that affect memory, and if known ``load_gib``,
    ``kv_gib``, ``kv_tokens`` and ``graphs_gib``. None if no release has them.

    Raises:
        SparkclusterError: no node could be queried.
    """
    others = []
    for each in _recorded(fleet, spec)[0]:
        for name, group in recorded_groups(each.release.record).items():
            model = (group.playbook or {}).get("model") or {}
            if spec.playbook.model.label not in (model.get("id"), model.get("path")):
                continue
            if known := {key: group.measured[key] for key in FOOTPRINT if group.measured.get(key) is not None}:
                written = (group.playbook or {}).get("args", {}).items()
                names = engines.engine(group.engine).common_arguments
                counts = {names.get(each) for each in _COUNTS}
                args = {word: value for key, value in written if (word := key.replace("_", "-")) in counts}
                size = len(group.plan["nodes"])
                others.append({"release": group.release, "group": name, "nodes": size, "args": args, **known})
    return next((each for each in others if each["nodes"] == nodes), others[0] if others else None)


def as_recorded(answers: Mapping[str, Records], number: int) -> tuple[str, ReleaseFact, list[str]]:
    """The node whose record of release ``number`` is used, the release, and the nodes with no or another record.

    The node is the head of a group, else the first with a record.

    Raises:
        UsageError: no node has a readable record of it.
    """
    errors: dict[str, str] = {}
    read = {node: {each.number: each for each in _read(node, answer, errors)} for node, answer in answers.items()}
    found = {node: releases[number] for node, releases in read.items() if number in releases}
    if not found:
        why = "".join(f"; {node}: {error}" for node, error in errors.items())
        hint = "sparkcluster releases INVENTORY   lists them"
        raise UsageError(f"no node has a readable record of release {number}{why}", hint=hint)
    heads = {node: {group.head for group in recorded_groups(each.record).values()} for node, each in found.items()}
    chosen = min(found, key=lambda node: node not in heads[node])
    return chosen, found[chosen], [node for node in answers if found.get(node) != found[chosen]]


def _read(node: str, answer: Records, errors: dict[str, str]) -> Iterator[ReleaseFact]:
    """The releases recorded on ``node``; unreadable ones are added to ``errors``."""
    for place, document in enumerate(answer.records, 1):
        try:
            yield release_of(document)
        except ValidationError as error:
            errors.setdefault(node, f"record {place} of {len(answer.records)} is malformed: {problem(error)}")


def _recorded(fleet: Fleet, spec: Spec) -> tuple[list[Recorded], dict[str, Records], dict[str, str]]:
    """All releases, newest first; the answers by node; and unreadable nodes or records, by node.

    A different record under the same number is a different release.

    Raises:
        SparkclusterError: no node could be queried.
    """
    answered, failed = node_records(fleet, spec)
    errors = {name: error.message for name, error in failed.items()}
    found: dict[tuple[int, str], Recorded] = {}
    for name, answer in answered.items():
        for release in _read(name, answer, errors):
            key = (release.number, release.plan_hash)
            if key not in found:
                groups = [group for group in recorded_groups(release.record).values() if group.verified]
                found[key] = Recorded(release, [], {node: group for group in groups for node in group.ranks})
            found[key].nodes.append(name)
    return [found[key] for key in sorted(found, reverse=True)], answered, errors


def node_records(fleet: Fleet, spec: Spec) -> tuple[dict[str, Records], dict[str, SparkclusterError]]:
    """The records of the nodes, and the errors of nodes that did not answer.

    Raises:
        SparkclusterError: no node could be queried.
    """
    inventory = spec.inventory
    request = {"state_dir": inventory.state_dir, "cluster": inventory.cluster, "runtime": inventory.runtime.kind}

    def read(host: Host) -> Records:
        return call(host, "releases", request, answer=Records)

    outcomes = fleet.each(read)
    return values(outcomes) or all_values(outcomes), failures(outcomes)
