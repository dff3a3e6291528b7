"""Which nodes lack weights or image, and which can provide them. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import StageError
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import expected_images, image_room_bytes
from sparkcluster.facts.layers import left_out_bytes
from sparkcluster.facts.model import Disk, Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.node.shared import repository_of
from sparkcluster.printable import shell, word
from sparkcluster.report import size
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import COMMIT, Companion
from sparkcluster.staging.artifacts import Artifact
from sparkcluster.staging.retries import combined
from sparkcluster.topology.model import Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Staging:
    """What is to be staged of one artifact.

    Attributes:
        sources: nodes that have it whole, the one to copy from first.
        missing: nodes that lack it, with what they lack in words.
        download: nodes that may download it, in order, where no node has it; the one with most bytes first.
        size_bytes: of one copy; None if unknown.
        parts: nodes that have some of its files where none has it whole, the one with most bytes first.
        built: whether a node builds it where none has it, instead of a download.
    """

    what: Artifact
    name: str
    sources: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    download: tuple[str, ...]
    size_bytes: int | None
    parts: tuple[str, ...] = ()
    built: bool = False

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


def find_missing(
    facts: Mapping[str, Facts], topology: Topology, spec: Spec, what: Artifact, *, given: bool = False
) -> Staging:
    """Which nodes of the topology lack ``what``, and which have it; it may be ``given`` on this machine.

    Of weights the head decides: a node with another revision lacks them. Heads of groups come first, since they are
    what users prepare by hand.

    Raises:
        StageError: no node has it and none can download it; the hint says what to put where.
    """
    names = [name for name in topology.by_rank if name in facts]
    sources, lacks = _weights(facts, names, spec) if what == "weights" else _image(facts, names, spec)
    missing = tuple((name, lacks(name)) for name in names if name not in sources)
    model = spec.playbook.model
    first = facts[sources[0]] if sources else None
    artifact = read(first.weights if what == "weights" else first.image) if first is not None else None
    parts = _parts(facts, names) if what == "weights" and not sources else ()
    others = tuple(name for name, _ in missing if name not in parts)
    # In no hub, or in no registry: a kept image has a name of ours, which may be another's there.
    nowhere = not model.id if what == "weights" else spec.kept_image is not None
    found = Staging(
        what=what,
        name=model.label if what == "weights" else spec.image or "",
        sources=sources,
        missing=missing,
        download=() if sources or nowhere else (*parts, *others),
        size_bytes=artifact.size_bytes if artifact is not None else None,
        parts=parts,
        built=what == "image" and spec.build is not None,
    )
    if missing and not sources and what == "image" and spec.kept_image:
        raise StageError(
            f"no node has the image of release {int(spec.kept_image.rpartition(':')[2])} any more",
            step="copy image",
            hint="sparkcluster releases INVENTORY   shows which are kept; or sparkcluster upgrade INVENTORY",
        )
    if missing and not sources and not found.download and len(parts) < 2 and not given:
        raise no_weights(facts, missing[0][0], spec)
    return found


def _parts(facts: Mapping[str, Facts], names: Sequence[str]) -> tuple[str, ...]:
    """The nodes that have files of the model, those of the revision of which one node has most bytes."""
    found = {name: weights for name in names if (weights := read(facts[name].weights)) and weights.files}
    order = sorted(found, key=lambda name: -found[name].size_bytes)
    return tuple(name for name in order if found[name].revision == found[order[0]].revision)


def no_weights(facts: Mapping[str, Facts], node: str, spec: Spec, *, why: str = "") -> StageError:
    """The error where no node has the weights and none can download them, with the command to put them there."""
    model = spec.playbook.model
    host = next(each.host for each in spec.inventory.nodes if each.label == node)
    if model.path:
        hint = shell("put them there: rsync -a DIRECTORY/", f"{facts[node].user}@{host}:{model.path}/")
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
            hint += f"; or serve the weights that are there, by a playbook with {lines}"
    because = f": {why}" if why else ""
    return StageError(
        f"the weights of {model.label} are on no node{because}", node=node, step="copy weights", hint=hint
    )


Sources = tuple[tuple[str, ...], Callable[[str], str]]
"""Nodes that have it whole, and a function that says what another one lacks."""


def _image(facts: Mapping[str, Facts], names: Sequence[str], spec: Spec) -> Sources:
    def lacks(name: str) -> str:
        return "another image has its name" if isinstance(facts[name].image, Image) else "missing"

    return tuple(expected_images(spec, facts, names)), lacks


def _weights(facts: Mapping[str, Facts], names: Sequence[str], spec: Spec) -> Sources:
    weights = {name: facts[name].weights for name in names}
    versions = {name: each.revision for name, each in weights.items() if isinstance(each, Weights) and each.complete}
    wanted = spec.playbook.model.revision
    revision = wanted if re.fullmatch(COMMIT, wanted) else next(iter(versions.values()), None)

    def lacks(name: str) -> str:
        found = weights[name]
        if not isinstance(found, Weights):
            return "could not be read" if found is not None else "missing"
        if name in versions:
            return f"revision {found.revision} instead of {revision}"
        if found.path is None and found.other_revisions:
            return f"has revision {' and '.join(found.other_revisions)}, not {spec.playbook.model.revision}"
        if found.path is None or not found.files:
            return "missing"
        files = [*found.missing, *found.truncated]
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        return f"{files[0]} {'missing' if found.missing else 'truncated'}{more}"

    return tuple(name for name, version in versions.items() if version == revision), lacks


def check_disk_space(facts: Mapping[str, Facts], staging: Staging, spec: Spec) -> None:
    """Raise StageError for the nodes without enough disk space.

    The facts do not say on which disk a directory of the user's is; there the receiver checks.
    """
    if staging.size_bytes is None or (staging.what == "weights" and spec.playbook.model.path):
        return
    source = facts[staging.sources[0]] if staging.sources else None
    receivers = [facts[name] for name, _ in staging.missing] if staging.what == "image" else []
    senders = [_cannot_send(name, facts[name], staging, receivers) for name in staging.sources if receivers]
    if senders and all(senders):
        raise combined([error for error in senders if error is not None])
    errors = []
    for name, _ in staging.missing:
        whole = staging.size_bytes
        if staging.what == "image" and source is not None and isinstance(source.image, Image):
            whole = image_room_bytes(source, source.image, left_out_bytes(source.image, source, [facts[name]]))
        weights = facts[name].weights
        present = weights.size_bytes if staging.what == "weights" and isinstance(weights, Weights) else 0
        needed = max(0, whole - present)
        disk = _disk(facts[name], "docker" if staging.what == "image" else "hf_home")
        if disk is not None and disk.free_bytes < needed:
            unused = "sparkcluster models INVENTORY --prune; or "
            look = f"{shell('du -sh', disk.path)}/*"
            hint = f"on {name}: docker image prune" if staging.what == "image" else unused + f"on {name}: {look}"
            errors.append(
                StageError(
                    f"{name} has {size(disk.free_bytes)} free at {disk.path}, and {staging.what} "
                    f"{staging.name} need {size(needed)}",
                    node=name,
                    step=f"copy {staging.what}",
                    hint=hint,
                )
            )
    if errors:
        raise combined(errors)


def _cannot_send(name: str, facts: Facts, staging: Staging, receivers: Sequence[Facts]) -> StageError | None:
    """The error if a node has no space to save the image: for its files, and for what Docker writes before.

    ``docker save`` writes the whole archive to disk before its first byte, but for containerd's store.
    """
    image, engine, docker, state = facts.image, read(facts.docker), _disk(facts, "docker"), _disk(facts, "state")
    if not isinstance(image, Image) or engine is None or docker is None or state is None:
        return None
    files = max(0, image.size_bytes - left_out_bytes(image, facts, receivers))
    archive = 0 if engine.containerd_store else image.size_bytes
    is_one = (docker.total_bytes, docker.free_bytes) == (state.total_bytes, state.free_bytes)
    for disk, needed in ((docker, archive + files if is_one else archive), (state, files)):
        if disk.free_bytes < needed:
            return StageError(
                f"{name} has {size(disk.free_bytes)} free at {disk.path}, and to send {staging.name} takes "
                f"{size(needed)} there",
                node=name,
                step="copy image",
                hint=f"docker image prune   on {name}",
            )
    return None


def _disk(facts: Facts, purpose: str) -> Disk | None:
    return next((disk for disk in read(facts.disks) or () if disk.purpose == purpose), None)


def digest_to_pull(image: str, digest: str | None) -> str | None:
    """The ``digest`` that a node says it has of ``image``, if another node may pull that; None to pull ``image``.

    A node does not decide from which repository another one pulls, with its user's login, nor passes over a digest.
    """
    if digest is None or "@" in image or repository_of(digest) != repository_of(image):
        return None
    return digest
