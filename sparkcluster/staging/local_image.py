"""Stages an image from a local archive: ``stage image --from FILE`` sends it to one node, which passes it on."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkcluster.errors import StageError
from sparkcluster.facts.docker import Image
from sparkcluster.node.shared import BLOBS, repository_of
from sparkcluster.staging.copy import HERE
from sparkcluster.staging.image_copy import ask, image_request
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers

_STEP = "stage image"
_SAVE = "docker save {} -o FILE   on a machine that has it"
_DOCUMENT_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """An image as written by ``docker save``.

    Attributes:
        members: names in the archive of configuration, manifest and layers, by SHA-256.
    """

    path: Path
    image: Image
    members: Mapping[str, str]


def read(path: Path, reference: str) -> Archive:
    """Find image ``reference`` in the archive at ``path``: by name, or by digest if the reference has one.

    Raises:
        StageError: the image is missing or incomplete.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            return _found(path, archive, reference)
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"{_SAVE.format(reference)}; if it is compressed: gunzip FILE"
        raise StageError(f"{path} is not an image archive: {error}", step=_STEP, hint=hint) from None


def _found(path: Path, archive: tarfile.TarFile, reference: str) -> Archive:
    images, digest = json.loads(_text(archive, "manifest.json")), reference.partition("@")[2]
    index = json.loads(_text(archive, "index.json")) if "index.json" in archive.getnames() else {}
    manifests = _manifests(archive, {"manifests": [{"digest": digest}]} if digest else index)

    def is_named(image: dict[str, Any]) -> bool:
        if digest:
            return _sha256(_text(archive, image["Config"])) in manifests
        return _name(reference) in {_name(str(tag)) for tag in image["RepoTags"] or ()}

    image = next(filter(is_named, images), None)
    if image is None:
        tags = ", ".join(sorted({tag for each in images for tag in each["RepoTags"] or ()})) or "untagged images"
        raise StageError(f"{path} does not contain {reference}, only {tags}", step=_STEP, hint=_SAVE.format(reference))
    text = _text(archive, image["Config"])
    config, layers = _sha256(text), json.loads(text)["rootfs"]["diff_ids"]
    members = {config: image["Config"]}
    if config in manifests:
        members[manifests[config]] = BLOBS + manifests[config]
    for layer, name in zip(layers, image["Layers"], strict=True):
        members.setdefault(name.removeprefix(BLOBS) if name.startswith(BLOBS) else layer[7:], name)
    size_bytes = sum(archive.getmember(name).size for name in members.values())
    found = Image(reference=reference, id=f"sha256:{config}", layers=layers, size_bytes=size_bytes)
    return Archive(path, found, members)


def _text(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    return found.read(_DOCUMENT_BYTES) if found is not None else b""


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _manifests(archive: tarfile.TarFile, index: dict[str, Any]) -> dict[str, str]:
    """SHA-256 of the manifests in an index, by SHA-256 of the configuration; Docker before 25 writes none."""
    found = {}
    for each in index.get("manifests", ()):
        name = str(each["digest"])[7:]
        text = _text(archive, BLOBS + name) if BLOBS + name in archive.getnames() else b""
        document = json.loads(text) if _sha256(text) == name else {}
        if "layers" in document:
            found[str(document["config"]["digest"])[7:]] = name
        found |= _manifests(archive, document)
    return found


def _name(reference: str) -> tuple[str, str]:
    """Repository and tag, without the name of Docker Hub."""
    _, colon, tag = reference.rpartition(":")
    return repository_of(reference), tag if colon and "/" not in tag else "latest"


def bring(run: Transfers, staging: Staging, archive: Archive) -> str:
    """Send the archive to the first node that lacks the image and load it there; return the node.

    Raises:
        StageError: it did not arrive, or Docker loaded another image; files that arrived are kept.
        LeaseLost: another operator has the lease.
    """
    node, blobs = staging.nodes[0], [*archive.members]
    request = image_request(run, node, staging.name, archive.image, {})
    ask(run, node, "clear", request, blobs)
    with tarfile.open(archive.path, "r:") as opened:
        files = (
            (
                opened.extractfile(name) or io.BytesIO(),
                {"root": request["root"], "path": BLOBS + digest, "sha256": digest},
            )
            for digest, name in archive.members.items()
        )
        run.send(staging.what, node, files, archive.image.size_bytes)
    ask(run, node, "load", request, blobs, source=HERE)
    return node
