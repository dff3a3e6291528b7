"""Finds the nodes that lack weights or image, and the nodes that can provide them. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import StageError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import expected_images, image_room_bytes
from sparkcluster.facts.layers import left_out_bytes
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.hosts.fleet import combined
from sparkcluster.node.shared import repository_of
from sparkcluster.printable import shell, word
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import COMMIT, Companion
from sparkcluster.staging.artifacts import Artifact, SendingTo
from sparkcluster.staging.notes import no_room
from sparkcluster.staging.order import Room
from sparkcluster.topology.model import Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Staging:
    """The work for one artifact: who has it, and who needs it.

    Attributes:
        sources: nodes that have all of it, the one to copy from first.
        missing: nodes that lack it, with the reason in words.
        download: if no node has it, the nodes that may download it, the one with most bytes first.
        size_bytes: size of one copy; None if unknown.
        parts: if no node has all of it, the nodes that have some files, the one with most bytes first.
        built: if no node has it, whether a node builds it instead of downloading it.
        present: bytes that each missing node already has, or that are omitted from the image for it.
        spec: for a companion of the model, the spec of a playbook that has only the companion.
        given: the local copy to use if no node has it.
        files: files of this machine that are sent to each node; None if nodes copy them from each other.
    """

    what: Artifact
    name: str
    sources: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    download: tuple[str, ...]
    size_bytes: int | None
    parts: tuple[str, ...] = ()
    built: bool = False
    present: Mapping[str, int] = dataclasses.field(default_factory=dict)
    spec: Spec = dataclasses.field(kw_only=True)
    given: Path | None = None
    files: SendingTo | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that lack it."""
        return tuple(node for node, _ in self.missing)

    def as_json(self) -> dict[str, Any]:
        """The staging as JSON."""
        return {
            "what": self.what,
            "name": self.name,
            "from": list(self.sources) or ("build" if self.built else "download"),
            "parts": list(self.parts),
            "missing": dict(self.missing),
            "size_bytes": self.size_bytes,
        }


def find_missing(facts: Mapping[str, Facts], topology: Topology, spec: Spec, what: Artifact) -> Staging:
    """Find the nodes of the topology that lack ``what`` (weights or image), and those that have it.

    For weights the head's revision counts: a node with another revision lacks them. Heads of groups come first, since
    users prepare them by hand.

    Raises:
        StageError: no node has the image of a recorded release.
    """
    names = [name for name in topology.by_rank if name in facts]
    return _image(facts, names, spec) if what == "image" else _weights(facts, names, spec)


def _image(facts: Mapping[str, Facts], names: Sequence[str], spec: Spec) -> Staging:
    having = expected_images(spec, facts, names)
    lacking = [name for name in names if name not in having]
    if lacking and not having and spec.kept_image_name:
        raise StageError(
            f"the image of release {int(spec.kept_image_name.rpartition(':')[2])} was removed from all nodes",
            step="copy image",
            hint="sparkcluster releases INVENTORY   shows which are kept; or: sparkcluster upgrade INVENTORY",
        )

    def lacks(name: str) -> str:
        return "has another image with this name" if isinstance(facts[name].image, Image) else "missing"

    source = next(iter(having), None)
    left_out = left_out_bytes(having[source], facts[source], [facts[name] for name in lacking]) if source else 0
    return Staging(
        what="image",
        name=spec.image or "",
        sources=tuple(having),
        missing=tuple((name, lacks(name)) for name in lacking),
        download=() if having or spec.kept_image_name else tuple(lacking),  # a kept image is in no registry
        size_bytes=having[source].size_bytes if source else None,
        built=spec.build is not None,
        present=dict.fromkeys(lacking, left_out),
        spec=spec,
    )


def _weights(facts: Mapping[str, Facts], names: Sequence[str], spec: Spec) -> Staging:
    model = spec.playbook.model
    found = {name: weights for name in names if isinstance(weights := facts[name].weights, Weights)}
    versions = {name: weights.revision for name, weights in found.items() if weights.complete}
    wanted = model.revision if re.fullmatch(COMMIT, model.revision) else next(iter(versions.values()), None)
    sources = tuple(name for name, version in versions.items() if version == wanted)
    lacking = [name for name in names if name not in sources]

    def lacks(name: str) -> str:
        if name not in found:
            return "could not be read" if isinstance(facts[name].weights, Unread) else "missing"
        its = found[name]
        if name in versions:
            return f"revision {its.revision} instead of {wanted}"
        if its.path is None and its.other_revisions:
            return f"has revision {' and '.join(its.other_revisions)}, not {model.revision}"
        if its.path is None or not its.files:
            return "missing"
        files = [*its.missing, *its.truncated]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        return f"{files[0]} {'missing' if its.missing else 'truncated'}{more}"

    missing = tuple((name, lacks(name)) for name in lacking)
    some = sorted((name for name in found if found[name].files), key=lambda name: -found[name].size_bytes)
    parts = () if sources else tuple(name for name in some if found[name].revision == found[some[0]].revision)
    download = () if sources or model.id is None else tuple(dict.fromkeys([*parts, *lacking]))
    size_bytes = found[sources[0]].size_bytes if sources else None
    present = {name: found[name].size_bytes for name in lacking if name in found}
    return Staging("weights", model.label, sources, missing, download, size_bytes, parts, present=present, spec=spec)


def no_weights(facts: Mapping[str, Facts], node: str, spec: Spec, *, why: str = "") -> StageError:
    """The error if no node has the weights and none can download them; the hint has a command to copy them."""
    model = spec.playbook.model
    if model.path:
        host = next(each.host for each in spec.inventory.nodes if each.label == node)
        hint = shell("copy them: rsync -a DIRECTORY/", f"{facts[node].user}@{host}:{model.path}/")
    else:
        hint = (
            "sparkcluster stage INVENTORY weights --from DIR; "
            f"or on {node}, or any node of the cluster: HF_HOME={word(facts[node].hf_home)} "
            f"hf download {model.id} --revision {model.revision}"
        )
        present = (each.weights for each in facts.values() if isinstance(each.weights, Weights))
        other = next((revision for weights in present for revision in weights.other_revisions), None)
        if other and not isinstance(model, Companion):
            lines = f"extends: {spec.playbook.name} and model: {{id: {model.id}, revision: {other}}}"
            hint += f"; or use the existing weights, with a playbook that has {lines}"
    message = f"the weights of {model.label} are not on any node" + (f": {why}" if why else "")
    return StageError(message, node=node, step="copy weights", hint=hint)


def check_disk_space(facts: Mapping[str, Facts], staging: Staging) -> None:
    """Raise StageError if nodes that lack ``staging`` do not have enough free space for it, or if no source has.

    The facts do not tell on which disk a user's directory is; for it the receiver checks.
    """
    if staging.size_bytes is None or not staging.missing:
        return
    step, what = f"copy {staging.what}", f"{staging.what} {staging.name}"
    rooms = {node: _room(facts[node], _needed(facts, staging, node)) for node in (*staging.sources, *staging.nodes)}
    errors = no_room(step, what, {node: rooms[node] for node in staging.nodes})
    senders = no_room(step, f"sending {what}", {node: rooms[node] for node in staging.sources})
    if len(senders) == len(staging.sources):
        errors += senders[:1]
    if errors:
        raise combined(errors)


def _room(facts: Facts, needed: Mapping[str, int]) -> Room:
    """Of the disks whose purposes are in ``needed``, the one with the least free space after the copy.

    Purposes may share a disk. An empty ``Room`` if every disk has more than it needs.
    """
    disks = [disk for disk in read(facts.disks) or () if disk.purpose in needed]
    rooms = [Room(free=0, needed=0, path="/")]
    for disk in disks:
        same = [each for each in disks if (each.total_bytes, each.free_bytes) == (disk.total_bytes, disk.free_bytes)]
        total = sum(needed[each.purpose] for each in same)
        rooms.append(Room(free=disk.free_bytes, needed=max(0, total), path=disk.path))
    return min(rooms, key=lambda room: room.free - room.needed)


def _needed(facts: Mapping[str, Facts], staging: Staging, node: str) -> dict[str, int]:
    """Bytes that a node needs, by purpose of a disk; purposes may share a disk.

    The sender of an image writes its files. Unless it uses containerd's store, it first writes the archive of
    ``docker save``.
    """
    whole, left_out = staging.size_bytes or 0, staging.present.get(staging.nodes[0], 0)
    if staging.what != "image":
        receives = node in staging.nodes and staging.spec.playbook.model.id is not None
        return {"hf_home": whole - staging.present.get(node, 0)} if receives else {}
    first = facts[staging.sources[0]] if staging.sources else None
    if first is None or not isinstance(first.image, Image):
        return {"docker": 2 * whole}  # Docker keeps a loaded archive until the last layer is unpacked
    if node not in staging.sources:
        return {"docker": image_room_bytes(first, first.image, left_out)}
    engine = read(facts[node].docker)
    if engine is None or engine.containerd_store:  # the files of its layers are not known in advance
        return {"state": whole}
    return {"state": whole - left_out, "docker": whole}


def digest_to_pull(image: str, digest: str | None) -> str | None:
    """The ``digest`` of ``image`` on a node, if another node may pull it; None to pull ``image``.

    A node must not decide from which repository another node pulls, with its user's login, nor replace a digest.
    """
    is_safe = digest is not None and "@" not in image and repository_of(digest) == repository_of(image)
    return digest if is_safe else None
