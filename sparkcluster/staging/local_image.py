"""An image that is in an archive on this machine: ``stage image --from FILE`` sends it to one node, for all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tarfile
import time
from pathlib import Path
from typing import Any

from sparkcluster.errors import StageError
from sparkcluster.hosts.program import stream
from sparkcluster.node.shared import repository_of
from sparkcluster.report import size
from sparkcluster.staging.copy import Failure, follow, stage_error, stage_errors
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.send import send
from sparkcluster.staging.transfers import Transfers

_STEP = "stage image"
_DOCUMENT_BYTES = 4 << 20
_READ = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """An image as ``docker save`` wrote it.

    Attributes:
        member: name of its configuration in the archive.
        config: SHA-256 of the configuration, with ``sha256:`` in front.
    """

    path: Path
    member: str
    config: str
    size_bytes: int


def read(path: Path, reference: str) -> Archive:
    """The image ``reference`` in the archive at ``path``: by its name there, or by its digest if that has one.

    Raises:
        StageError: it has no such image, or not whole.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            sizes = {member.name: member.size for member in archive.getmembers()}
            images = json.loads(_text(archive, "manifest.json"))
            named = [each for each in images if _is_named(archive, sizes, each, reference)]
            if not named:
                there = (
                    ", ".join(sorted({tag for each in images for tag in each["RepoTags"] or ()}))
                    or "no image with a name"
                )
                raise StageError(
                    f"{path} is not {reference}: it has {there}",
                    step=_STEP,
                    hint=f"docker save {reference} -o FILE   on the machine that has it",
                )
            lacks = [layer for layer in named[0]["Layers"] if layer not in sizes]
            if lacks:
                raise StageError(
                    f"{path} lacks the layer {lacks[0]}", step=_STEP, hint=f"docker save {reference} -o FILE"
                )
            member = str(named[0]["Config"])
            config = "sha256:" + hashlib.sha256(_text(archive, member)).hexdigest()
            return Archive(path, member, config, path.stat().st_size)
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StageError(
            f"{path} is no archive of an image: {error}",
            step=_STEP,
            hint=f"docker save {reference} -o FILE   on the machine that has it; a compressed one: gunzip FILE",
        ) from None


def _text(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    return found.read(_DOCUMENT_BYTES) if found is not None else b""


def _is_named(archive: tarfile.TarFile, sizes: dict[str, int], image: dict[str, Any], reference: str) -> bool:
    """Whether an image of ``manifest.json`` is that of ``reference``."""
    _, at, digest = reference.partition("@")
    if not at:
        return _name(reference) in {_name(str(tag)) for tag in image["RepoTags"] or ()}
    return str(image["Config"]) in _configs(archive, sizes, digest.removeprefix("sha256:"))


def _name(reference: str) -> tuple[str, str]:
    """Repository and tag, without the names of Docker Hub."""
    _, colon, tag = reference.rpartition(":")
    return repository_of(reference), tag if colon and "/" not in tag else "latest"


def _configs(archive: tarfile.TarFile, sizes: dict[str, int], digest: str) -> set[str]:
    """The configurations below the manifest, or the index of manifests, of this digest."""
    name = f"blobs/sha256/{digest}"
    if sizes.get(name, _DOCUMENT_BYTES) >= _DOCUMENT_BYTES:
        return set()
    text = _text(archive, name)
    if hashlib.sha256(text).hexdigest() != digest:
        return set()
    document = json.loads(text)
    if "config" in document:
        return {"blobs/sha256/" + str(document["config"]["digest"]).removeprefix("sha256:")}
    below = [str(each["digest"]).removeprefix("sha256:") for each in document.get("manifests", ())]
    return set().union(*(_configs(archive, sizes, each) for each in below))


def bring(run: Transfers, staging: Staging, archive: Archive, cluster: str) -> str:
    """Send the archive to the first node that lacks the image, and load it there; the node.

    Raises:
        StageError: it did not arrive, or is another image than it seemed; what arrived stays.
        LeaseLost: another operator has the lease.
    """
    node, begin = staging.missing[0][0], time.monotonic()
    host, step, state_dir = run.fleet[node], run.step(staging.what), run.facts[node].state_dir
    folder, name = f"{state_dir}/clusters/{cluster}/staging/archives", f"{archive.config[7:23]}.tar"
    run.progress(node, f"{archive.path.name}, {size(archive.size_bytes)} from this machine")
    try:
        sending = {"root": folder, "path": name, "sha256": _sha256(archive.path, run)}
        sent = send(step, host, archive.path, sending, run.moving(staging.what, node, "controller")).bytes
    except OSError as error:
        raise StageError(f"{archive.path} cannot be read: {error.strerror}", step=_STEP) from error
    request = {"path": f"{folder}/{name}", "member": archive.member, "config": archive.config}
    loading = {**request, "reference": staging.name, **step.lease(node)}
    with stage_errors(step, node), stream(host, "load", loading) as running:
        done = follow(step, node, running, run.report(staging.what, node, "loaded"))
    if isinstance(done, Failure):
        raise stage_error(step, done)
    run.record(staging.what, node, "controller", sent, begin)
    return node


def _sha256(path: Path, run: Transfers) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ):
            digest.update(chunk)
            if run.stopped.is_set():
                raise StageError(f"{_STEP} was stopped", step=_STEP)
    return digest.hexdigest()
