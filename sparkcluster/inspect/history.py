"""Releases, merged from the records of all nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from sparkcluster.answers import problem
from sparkcluster.engines.phase import FOOTPRINT
from sparkcluster.errors import SparkclusterError, UsageError
from sparkcluster.facts.collect import collect_facts
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.hosts.program import call
from sparkcluster.inspect.rollback_targets import Recorded, Records, kept_on, lost, recorded, release_of
from sparkcluster.output_file import state_home, write
from sparkcluster.plan.compare import compare, edited
from sparkcluster.plan.release_record import cluster_ranks, recorded_groups, recorded_release
from sparkcluster.spec import Spec

# Arguments without which a measured KV cache says nothing.
_COUNTS = ("gpu-memory-utilization", "max-model-len", "kv-cache-dtype", "max-num-seqs")


def history(fleet: Fleet, spec: Spec) -> dict[str, Any]:
    """``releases``: every recorded release, newest first; ``errors`` by node: why it, or a record there, is left out.

    Each release has number, plan_hash, verified_at (seconds since 1970), operator, model, image, digest (the image as
    any node can pull it), the nodes that have the record, whether it is what runs now, whether nodes keep what going
    back to it needs, and what of that is lost: image and secrets, each with the nodes that lack them; the operation
    that made it, the release that it restores or 0, and changes: what its playbook says other than that of the row
    before.

    Raises:
        SparkclusterError: no node could be queried.
    """
    found, answers, errors = _recorded(fleet, spec)
    facts = collect_facts(fleet, spec, list(answers)).facts
    latest = recorded_release(spec.inventory, facts)
    runs = latest is not None and cluster_ranks(spec.inventory.cluster, facts).of_release(latest)
    running = (latest.number, latest.plan_hash) if latest and runs else None
    kept = {name: kept_on(name, [each for each in found if name in each.nodes]) for name in answers}
    releases = []
    for place, each in enumerate(found):
        release, record = each.release, each.release.record
        before = [other.release.record.get("playbook") for other in found[place + 1 : place + 2]]
        keepers = [name for name in each.nodes if name in each.keepers]
        is_kept = bool(keepers) and all(release.number in kept[name] for name in keepers)
        gone = lost(each, answers if is_kept else {})
        if spec.inventory.runtime.kind == "docker":
            errors = dict.fromkeys(gone.unknown, "Docker does not say which images of releases it keeps") | errors
        releases.append(
            {
                "number": release.number,
                "plan_hash": release.plan_hash,
                "verified_at": record.get("verified_at", 0.0),
                "operator": record.get("operator", ""),
                "operation": record.get("operation", ""),
                "restores": record.get("restores", 0),
                "model": each.model,
                "image": record.get("plan", {}).get("image"),
                "digest": record.get("image_digest"),
                "nodes": each.nodes,
                "running": (release.number, release.plan_hash) == running,
                "kept": is_kept,
                "lost": {"image": gone.image, "secrets": gone.secrets},
                "changes": edited(before[0], record.get("playbook")) if before else [],
            }
        )
    _remember(spec.inventory.cluster, releases)
    return {"releases": releases, "errors": errors}


def _remember(cluster: str, releases: Sequence[Mapping[str, Any]]) -> None:
    """Keep the numbers for completion, which contacts no node."""
    file = state_home() / "releases" / cluster
    text = "".join(f"{release['number']}\t{release['model']}\n" for release in releases)
    with contextlib.suppress(OSError, UsageError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(file, lambda opened: opened.write(text.encode()), private=True)


def compared(fleet: Fleet, spec: Spec, old: int, new: int) -> dict[str, Any]:
    """What differs between the releases ``old`` and ``new``: ``differences``, a line each, and ``errors`` as above.

    Where nodes have different releases under one number, the one that the head of a group has counts.

    Raises:
        UsageError: no node has a record of one of them, or it cannot be read.
        SparkclusterError: no node could be queried.
    """
    found, answers, errors = _recorded(fleet, spec)
    facts = []
    for number in (old, new):
        release = as_recorded(answers, number)
        if release is None:
            known = ", ".join(str(number) for number in sorted({each.release.number for each in found})) or "none"
            hint = "sparkcluster releases INVENTORY"
            raise UsageError(f"{spec.inventory.cluster} has no release {number}; it has {known}", hint=hint)
        facts.append(release[1])
    return {"old": old, "new": new, "differences": compare(*facts), "errors": errors}


def measured(fleet: Fleet, spec: Spec, nodes: int) -> dict[str, Any] | None:
    """What the engine logged of its memory when ``spec``'s model was last verified here, on ``nodes`` where it was.

    ``release``, ``group``, ``nodes`` (how many the group had), ``args`` that count for the memory, and what is known of
    ``load_gib``, ``kv_gib``, ``kv_tokens`` and ``graphs_gib``. None if no release has it.

    Raises:
        SparkclusterError: no node could be queried.
    """
    found, _, _ = _recorded(fleet, spec)
    model, others = spec.playbook.model.label, []
    for each in found:
        if each.model != model:
            continue
        for name, group in recorded_groups(each.release.record).items():
            known = {key: group.measured[key] for key in FOOTPRINT if group.measured.get(key) is not None}
            if known:
                written = (group.playbook or {}).get("args", {}).items()
                named = {word.replace("_", "-"): value for word, value in written}
                args = {word: named[word] for word in _COUNTS if word in named}
                size = len(group.plan["nodes"])
                others.append({"release": group.release, "group": name, "nodes": size, "args": args, **known})
    return next((each for each in others if each["nodes"] == nodes), others[0] if others else None)


def as_recorded(answers: Mapping[str, Records], number: int) -> tuple[str, ReleaseFact] | None:
    """Release ``number`` and the node whose record that is: the head of a group, else the first that has one.

    Raises:
        UsageError: no record of it can be read.
    """
    found: dict[str, ReleaseFact] = {}
    wrong: ValidationError | None = None
    for node, document in documents_of(answers, number).items():
        try:
            found[node] = release_of(document)
        except ValidationError as error:
            wrong = error
    if wrong and not found:
        raise UsageError(f"the record of release {number} is malformed: {problem(wrong)}")
    heads = {node: {group.head for group in recorded_groups(each.record).values()} for node, each in found.items()}
    ordered = sorted(found, key=lambda node: node not in heads[node])
    return (ordered[0], found[ordered[0]]) if found else None


def documents_of(answers: Mapping[str, Records], number: int) -> dict[str, dict[str, Any]]:
    """The record of release ``number`` by node, as it was read."""
    return {
        node: document
        for node, answer in answers.items()
        for document in answer.records
        if document.get("number") == number
    }


def _recorded(fleet: Fleet, spec: Spec) -> tuple[list[Recorded], dict[str, Records], dict[str, str]]:
    """Every release, newest first, the answers by node, and by node why it, or a record there, is left out.

    A node whose record of a number differs has another release.

    Raises:
        SparkclusterError: no node could be queried.
    """
    answered, failed = node_records(fleet, spec)
    errors = {name: error.message for name, error in failed.items()}
    found: dict[tuple[int, str], Recorded] = {}
    for name, answer in answered.items():
        for place, document in enumerate(answer.records, 1):
            try:
                release = release_of(document)
            except ValidationError as error:
                errors.setdefault(name, f"record {place} of {len(answer.records)} is malformed: {problem(error)}")
                continue
            key = (release.number, release.plan_hash)
            if key not in found:
                found[key] = recorded(release)
            found[key].nodes.append(name)
    return [found[key] for key in sorted(found, reverse=True)], answered, errors


def node_records(fleet: Fleet, spec: Spec) -> tuple[dict[str, Records], dict[str, SparkclusterError]]:
    """What the nodes recorded, and the errors of those that did not answer.

    Raises:
        SparkclusterError: no node could be queried.
    """
    inventory = spec.inventory
    request = {"state_dir": inventory.state_dir, "cluster": inventory.cluster, "runtime": inventory.runtime.kind}

    def read(host: Host) -> Records:
        return call(host, "releases", request, answer=Records)

    outcomes = fleet.each(read)
    answered, failed = values(outcomes), failures(outcomes)
    if not answered:
        raise next(iter(failed.values()))
    return answered, failed
