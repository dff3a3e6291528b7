"""An image that is in an archive on this machine: ``stage image --from FILE`` sends it to one node, for all of them."""

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
from sparkcluster.node.shared import BLOBS, repository_of
from sparkcluster.staging.image_copy import directory, image_request, load
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers

_STEP = "stage image"
_SAVE = "docker save {} -o FILE   on the machine that has it"
_DOCUMENT_BYTES = 4 << 20

Documents = Mapping[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """An image as ``docker save`` wrote it.

    Attributes:
        config: SHA-256 of the configuration, with ``sha256:`` in front.
        layers: diff IDs.
        members: names in the archive of configuration, manifest and layers, by their SHA-256.
        size_bytes: of all of them.
    """

    path: Path
    config: str
    layers: tuple[str, ...]
    members: Mapping[str, str]
    size_bytes: int


def read(path: Path, reference: str) -> Archive:
    """The image ``reference`` in the archive at ``path``: by its name there, or by its digest if that has one.

    Raises:
        StageError: it has no such image, or not whole.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            return _found(path, archive, reference)
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"{_SAVE.format(reference)}; a compressed one: gunzip FILE"
        raise StageError(f"{path} is no archive of an image: {error}", step=_STEP, hint=hint) from None


def _found(path: Path, archive: tarfile.TarFile, reference: str) -> Archive:
    sizes = {member.name: member.size for member in archive.getmembers()}
    images, documents = json.loads(_text(archive, "manifest.json")), _documents(archive)
    image = next((each for each in images if _is_named(archive, documents, each, reference)), None)
    if image is None:
        tags = ", ".join(sorted({tag for each in images for tag in each["RepoTags"] or ()})) or "no image with a name"
        raise StageError(f"{path} is not {reference}: it has {tags}", step=_STEP, hint=_SAVE.format(reference))
    if lacks := [layer for layer in image["Layers"] if layer not in sizes]:
        raise StageError(f"{path} lacks the layer {lacks[0]}", step=_STEP, hint=_SAVE.format(reference))
    text = _text(archive, image["Config"])
    config, layers = hashlib.sha256(text).hexdigest(), [str(each) for each in json.loads(text)["rootfs"]["diff_ids"]]
    manifests = [each for each, document in documents.items() if _config(document) == config]
    members = {config: str(image["Config"]), **{each: BLOBS + each for each in manifests[:1]}}
    for layer, name in zip(layers, image["Layers"], strict=True):
        members.setdefault(name.removeprefix(BLOBS) if name.startswith(BLOBS) else layer[7:], name)
    size_bytes = sum(sizes[name] for name in members.values())
    return Archive(path, f"sha256:{config}", tuple(layers), members, size_bytes)


def _text(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    return found.read(_DOCUMENT_BYTES) if found is not None else b""


def _documents(archive: tarfile.TarFile) -> Documents:
    """Manifests, and indexes of manifests, by their SHA-256; Docker before 25 writes none."""
    found = {}
    for member in archive.getmembers():
        text = _text(archive, member.name) if member.name.startswith(BLOBS) and member.size < _DOCUMENT_BYTES else b""
        if text.startswith(b"{") and hashlib.sha256(text).hexdigest() == member.name.removeprefix(BLOBS):
            found[member.name.removeprefix(BLOBS)] = json.loads(text)
    return found


def _config(document: dict[str, Any]) -> str:
    """SHA-256 of the configuration that a manifest names; empty for another document."""
    return str(document["config"]["digest"])[7:] if "layers" in document else ""


def _is_named(archive: tarfile.TarFile, documents: Documents, image: dict[str, Any], reference: str) -> bool:
    """Whether an image of ``manifest.json`` is that of ``reference``."""
    _, at, digest = reference.partition("@")
    if not at:
        return _name(reference) in {_name(str(tag)) for tag in image["RepoTags"] or ()}
    return hashlib.sha256(_text(archive, image["Config"])).hexdigest() in _configs(documents, digest)


def _name(reference: str) -> tuple[str, str]:
    """Repository and tag, without the names of Docker Hub."""
    _, colon, tag = reference.rpartition(":")
    return repository_of(reference), tag if colon and "/" not in tag else "latest"


def _configs(documents: Documents, digest: str) -> set[str]:
    """The configurations below the manifest, or the index of manifests, of this digest."""
    document = documents.get(digest.removeprefix("sha256:"), {})
    below = [_configs(documents, str(each["digest"])) for each in document.get("manifests", ())]
    return {_config(document)}.union(*below)


def bring(run: Transfers, staging: Staging, archive: Archive) -> str:
    """Send what is in the archive to the first node that lacks the image, and load it there; the node.

    Raises:
        StageError: it did not arrive, or is another image than it seemed; what arrived stays.
        LeaseLost: another operator has the lease.
    """
    node = staging.missing[0][0]
    with tarfile.open(archive.path, "r:") as opened:
        root = directory(run, node)
        blobs = (
            (opened.extractfile(name) or io.BytesIO(), {"root": root, "path": BLOBS + digest, "sha256": digest})
            for digest, name in archive.members.items()
        )
        run.send(staging.what, node, blobs, archive.size_bytes)
    image = {"image_id": archive.config, "config": archive.config, "config_sum": None, "blobs": [*archive.members]}
    load(run, node, {**image_request(run, node, staging.name, archive.layers, {}), **image}, "this machine")
    return node
