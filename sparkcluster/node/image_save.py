"""Takes the archive of ``docker save`` apart into a directory of blobs, which other nodes get as any files.

The request is that of ``image_blobs``, and says ``reference``, ``image_id`` and ``size`` in bytes of the image,
``engine`` as ``image_layers`` takes it, and ``have``: of each layer that is left out (diff ID) the SHA-256 of the file
that all receivers have, empty where any file of that content will do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
import tempfile
import time
import types
from collections.abc import Collection, Iterator
from typing import IO, Any, BinaryIO

from sparkcluster.node import common, docker, image_layers, programs, wire
from sparkcluster.node.image_blobs import OTHER, Blobs, clear, last_line, within
from sparkcluster.node.model_files import forget
from sparkcluster.node.shared import BLOBS
from sparkcluster.node.wire import CHUNK, Check, Failed, Pace

Request = dict[str, Any]

_SYNC_BYTES = 64 * CHUNK
_API_VERSION = ["docker", "version", "--format", "{{.Client.APIVersion}}"]  # that both client and engine speak
_PLATFORMS = {"aarch64": "linux/arm64", "x86_64": "linux/amd64"}
_INCOMPLETE = "does not provide the specified platform"  # Docker 28, of an image of which it has the name alone


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Save it; the answer is that of ``wire.answer``."""
    return wire.answer(request, stdin, lambda check: save(request, check))


def save(request: Request, check: Check) -> dict[str, Any]:
    """Make the directory, or find it complete, and emit its blobs as ``listing`` does.

    Raises:
        Failed: Docker cannot save the image, or it is another one; of kind ``blobs`` if it has not all of it.
    """
    folder, asked = os.path.join(request["root"], BLOBS), [request["image_id"], request["have"]]
    complete = os.path.join(request["root"], "complete.json")  # written last
    found = common.read_json(complete)
    if found.get("asked") != asked or not all(os.path.exists(folder + name) for name in found["blobs"]):
        clear(request["root"])
        os.makedirs(folder)
        found = {"asked": asked, "blobs": _saved(request, folder, Pace(request["size"], check))}
        common.write_atomically(complete, json.dumps(found).encode())
    for name, size in found["blobs"].items():
        common.emit({"file": {"name": BLOBS + name, "size": size, "mtime": 0, "sha256": name}})
    return {}


def _saved(request: Request, folder: str, pace: Pace) -> dict[str, int]:
    """Fill the folder; bytes of the blobs that receivers need, by SHA-256."""
    have = request["have"]
    skipped = {digest or diff[7:] for diff, digest in have.items()}  # names, from Docker 25 on
    command = docker.save(request["image_id"], _platform(request["engine"]))
    with tempfile.TemporaryFile() as errors, programs.started(command, stderr=errors) as process:
        _take_apart(_printed(process, errors, pace), folder, skipped)
    blobs = Blobs(request, os.listdir(folder))
    needed = {each.config for each in blobs.manifests.values()}
    if blobs.config:
        files = zip(request["layers"], blobs.layers, strict=True)
        needed = {name for diff, (name, _) in files if have.get(diff) not in ("", name)}
        needed |= {blobs.config, blobs.manifest or blobs.config}
    if not needed <= blobs.sizes.keys():
        # containerd's store downloads no layer whose content another image there has, compressed otherwise; such an
        # image can be neither saved nor copied (containerd#8973, moby#49473)
        raise Failed("blobs", "the image's archive lacks files that it names")
    if not blobs.config:
        raise Failed("archive", OTHER)
    for name in blobs.sizes.keys() - needed:
        os.unlink(folder + name)
    image_layers.record(request, request["image_id"], blobs.layers)
    return {name: blobs.sizes[name] for name in sorted(needed)}


def _platform(engine: dict[str, Any]) -> str | None:
    """Platform to save; None where none is to be named.

    Only containerd's store has images for several platforms, of most of which it lacks the layers.
    """
    if not engine["containerd_store"]:
        return None
    version = tuple(int(each) for each in re.findall(r"\d+", programs.run(_API_VERSION)))
    return _PLATFORMS.get(os.uname().machine) if version >= (1, 48) else None


def _printed(process: subprocess.Popen[bytes], errors: BinaryIO, pace: Pace) -> Iterator[bytes]:
    """What ``docker save`` prints: for long it may be nothing."""
    heard = time.monotonic()
    for chunk in programs.chunks(process, 1):
        pace.add(len(chunk))
        if chunk:
            yield chunk
            heard = time.monotonic()
        within(heard, "docker save printed nothing")
    if process.wait():
        text = last_line(errors)
        kind = "disk" if docker.disk_is_full(text) else "blobs" if _INCOMPLETE in text else "docker"
        raise Failed(kind, "docker save: %s" % text)


def _take_apart(printed: Iterator[bytes], folder: str, skipped: Collection[str]) -> None:
    """Write the files of an archive by their SHA-256, but for those that are called by one to be ``skipped``."""
    output: Any = types.SimpleNamespace(read=lambda _size: next(printed, b""))
    try:
        with tarfile.open(fileobj=output, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                if member.isreg() and os.path.basename(member.name) not in skipped:
                    _write(archive.extractfile(member), folder)  # type: ignore[arg-type]
        for _ in printed:
            continue
    except tarfile.TarError as error:
        raise Failed("archive", "the image's archive is damaged: %s" % error) from None


def _write(source: IO[bytes], folder: str) -> None:
    """Write a file by its SHA-256, and leave none of it in the page cache."""
    digest, partial = hashlib.sha256(), os.path.join(folder, ".partial")
    with open(partial, "wb") as file:
        for chunk in iter(lambda: source.read(CHUNK), b""):
            digest.update(chunk)
            file.write(chunk)
            if file.tell() % _SYNC_BYTES == 0:
                os.fdatasync(file.fileno())
                forget(file.fileno())
        file.flush()
        os.fsync(file.fileno())
        forget(file.fileno())
    os.utime(partial, (0, 0))  # what arrived is resumed also where it was saved again
    os.replace(partial, os.path.join(folder, digest.hexdigest()))
