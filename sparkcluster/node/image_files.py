"""An image as a directory of blobs: made of what ``docker save`` prints, copied as any files, and loaded by Docker.

An image has a configuration, which lists its layers by the SHA-256 of their content (diff IDs), a file for each layer,
and from Docker 25 on a manifest, which lists these files: containerd's store compresses layers. All of these are blobs,
files called by their SHA-256.

The request has the lease, and

- ``do``: save, load or clear;
- ``root``: the directory;
- ``image``: ``id`` (where it is), ``size_bytes``, ``layers`` (diff IDs) and ``config_sum`` (a hash of what a container
  of it starts with; None for any), as facts have them;
- ``reference``: what it is called once it was loaded and is the right one;
- ``engine``: as ``image_layers`` takes it;
- ``have``: of each layer that is left out (diff ID) the SHA-256 of the file that all receivers have, empty where any
  file of that content will do;
- ``blobs``: SHA-256 of those that belong to the copy; not for save, which emits them as ``listing`` does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
import types
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any, BinaryIO, NamedTuple

from sparkcluster.node import common, docker, image_layers, programs, wire
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.model_files import forget
from sparkcluster.node.shared import BLOBS, staged_as
from sparkcluster.node.wire import CHUNK, Check, Failed, Pace

Request = dict[str, Any]

_STEP_BYTES = 16 * CHUNK  # that are written before they leave the page cache
_API_VERSION = ["docker", "version", "--format", "{{.Client.APIVersion}}"]  # that both client and engine speak
_OTHER = "the image's archive is that of another image: its configuration or its layers differ"
_PLATFORMS = {"aarch64": "linux/arm64", "x86_64": "linux/amd64"}
_INCOMPLETE = "does not provide the specified platform"  # Docker 28, of an image of which it has the name alone
_NO_ENGINE = re.compile("cannot connect|connection (?:refused|reset)|EOF", re.IGNORECASE)
_DIGEST = re.compile(r"^sha256:([0-9a-f]{64})\Z")
_DOCUMENT_BYTES = 4 << 20
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Do it; the answer is that of ``wire.answer``."""
    action = {"save": save, "load": load, "clear": clear}[request["do"]]
    return wire.answer(request, stdin, lambda check: action(request, check))


def clear(request: Request, _check: Check) -> dict[str, Any]:
    """Remove all files but ``blobs``, whole or in part; without any, the directory."""
    folder = os.path.join(request["root"], BLOBS)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.lstrip(".").partition(".")[0] not in request["blobs"]:
                os.unlink(folder + name)
        if not request["blobs"]:
            shutil.rmtree(request["root"])
    return {}


def save(request: Request, check: Check) -> dict[str, Any]:
    """Make the directory, or find it complete, and emit its blobs as ``listing`` does.

    Raises:
        Failed: Docker cannot save the image, or it is another one; of kind ``blobs`` if it has not all of it.
    """
    folder, asked = os.path.join(request["root"], BLOBS), [request["image"]["id"], request["have"]]
    complete = os.path.join(request["root"], "complete.json")  # written last
    found = common.read_json(complete)
    if found.get("asked") != asked or not all(os.path.exists(folder + name) for name in found["blobs"]):
        shutil.rmtree(request["root"], ignore_errors=True)
        os.makedirs(folder)
        found = {"asked": asked, "blobs": _saved(request, folder, Pace(request["image"]["size_bytes"], check))}
        common.write_atomically(complete, json.dumps(found).encode())
    for name, size in found["blobs"].items():
        common.emit({"file": {"name": BLOBS + name, "size": size, "mtime": 0, "sha256": name}})
    return {}


def load(request: Request, check: Check) -> dict[str, Any]:
    """Load, compare and tag the image; its ID here. The blobs go one by one, as Docker has read them.

    Raises:
        Failed: it is another image, or Docker does not load it; of kind ``partial`` where it may if no layer is absent.
    """
    blobs = Blobs(request, request["blobs"])
    if not blobs.config:
        raise Failed("archive", _OTHER)
    absent = _absent(request, blobs)
    loaded = _piped(blobs, check, may_lack=absent).rpartition(" ")[2]  # Loaded image ID: sha256:…
    image = programs.inspect(docker.inspect_image(loaded)) or {}
    found = ((image.get("RootFS") or {}).get("Layers") or [], docker.config_sum(image.get("Config") or {}))
    if found != (request["image"]["layers"], blobs.starts):
        what = image.get("Id") or "nothing"
        raise Failed("partial" if absent else "docker", "received %s instead of %s" % (what, request["image"]["id"]))
    image_layers.record(request, image["Id"], blobs.layers)
    check()
    programs.run(docker.tag(image["Id"], staged_as(request["reference"])))
    shutil.rmtree(request["root"], ignore_errors=True)
    return {"image_id": str(image["Id"])}


class Manifest(NamedTuple):
    """Media type, SHA-256 of the configuration, and SHA-256 and bytes of each layer's file."""

    kind: str
    config: str
    layers: list[tuple[str, int]]


class Blobs:
    """The blobs ``names`` of the image of ``request``.

    Attributes:
        folder: where they are.
        sizes: bytes of each, by its SHA-256.
        sent: bytes that Docker has read of them.
        config: SHA-256 of the image's configuration; empty if it is not there.
        starts: hash of what a container starts with by that.
        manifests: by SHA-256, each that has as many layers as the image.
        manifest: SHA-256 of the image's; empty if it is not there.
        layers: SHA-256 and bytes of each layer's file, also of one that is not there; the bytes are 0 without manifest.
    """

    def __init__(self, request: Request, names: Iterable[str]) -> None:
        image = request["image"]
        self.folder = os.path.join(request["root"], BLOBS)
        self.sizes = {name: os.path.getsize(self.folder + name) for name in names}
        self.sent = 0
        self.config = self.starts = self.manifest = ""
        self.layers = [(diff[7:], 0) for diff in image["layers"]]
        self.manifests: dict[str, Manifest] = {}
        for name, size in self.sizes.items():
            if size < _DOCUMENT_BYTES:
                with contextlib.suppress(*_MALFORMED):
                    self._read(name, image)
        for name, manifest in self.manifests.items():
            if manifest.config == self.config:
                self.manifest, self.layers = name, manifest.layers

    def _read(self, name: str, image: dict[str, Any]) -> None:
        """Take in a configuration or a manifest; any other file raises one of ``_MALFORMED``."""
        with open(self.folder + name, "rb") as file:
            document = json.loads(file.read())
        if "rootfs" in document:
            starts = docker.config_sum(document.get("config") or {})
            if (document["rootfs"]["diff_ids"] or []) == image["layers"] and image["config_sum"] in (None, starts):
                self.config, self.starts = name, starts
        elif len(document["layers"]) == len(image["layers"]):
            layers = [(_sha256(each["digest"]), int(each["size"])) for each in document["layers"]]
            kind = document.get("mediaType") or "application/vnd.oci.image.manifest.v1+json"
            self.manifests[name] = Manifest(kind, _sha256(document["config"]["digest"]), layers)

    def end(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of what makes an archive of the blobs: one image, and no name for it."""
        layers = [BLOBS + name for name, _ in self.layers]
        documents: dict[str, Any] = {
            "manifest.json": [{"Config": BLOBS + self.config, "RepoTags": None, "Layers": layers}]
        }
        if self.manifest:
            kind, digest = self.manifests[self.manifest].kind, "sha256:" + self.manifest
            entry = {"mediaType": kind, "digest": digest, "size": self.sizes[self.manifest]}
            documents["index.json"] = {"schemaVersion": 2, "manifests": [entry]}
            documents["oci-layout"] = {"imageLayoutVersion": "1.0.0"}
        for name, document in documents.items():
            yield name, json.dumps(document).encode()


def _sha256(digest: str) -> str:
    return str(_DIGEST.findall(digest)[0])


# saving


def _saved(request: Request, folder: str, pace: Pace) -> dict[str, int]:
    """Fill the folder; bytes of the blobs that receivers need, by SHA-256."""
    have = request["have"]
    skipped = {digest or diff[7:] for diff, digest in have.items()}  # names, from Docker 25 on
    command = docker.save(request["image"]["id"], _platform(request["engine"]))
    with tempfile.TemporaryFile() as errors, programs.started(command, stderr=errors) as process:
        _take_apart(_printed(process, errors, pace), folder, skipped)
    blobs = Blobs(request, os.listdir(folder))
    needed = {each.config for each in blobs.manifests.values()}
    if blobs.config:
        files = zip(request["image"]["layers"], blobs.layers, strict=True)
        needed = {name for diff, (name, _) in files if have.get(diff) not in ("", name)}
        needed |= {blobs.config, blobs.manifest or blobs.config}
    if not needed <= blobs.sizes.keys():
        # containerd's store downloads no layer whose content another image there has, compressed otherwise; such an
        # image can be neither saved nor copied (containerd#8973, moby#49473)
        raise Failed("blobs", "the image's archive lacks files that it names")
    if not blobs.config:
        raise Failed("archive", _OTHER)
    for name in blobs.sizes.keys() - needed:
        os.unlink(folder + name)
    image_layers.record(request, request["image"]["id"], blobs.layers)
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
    """What ``docker save`` prints: for minutes nothing, while it writes all layers to disk."""
    for chunk in programs.chunks(process, 1):
        pace.add(len(chunk))
        if chunk:
            yield chunk
    if process.wait():
        text = _last_line(errors)
        kind = "disk" if docker.disk_is_full(text) else "blobs" if _INCOMPLETE in text else "docker"
        raise Failed(kind, "docker save: %s" % text)


def _take_apart(printed: Iterator[bytes], folder: str, skipped: Collection[str]) -> None:
    """Write the files of an archive by their SHA-256, but for those that are called by one to be ``skipped``."""
    output: Any = types.SimpleNamespace(read=lambda _size: next(printed, b""))
    try:
        with tarfile.open(fileobj=output, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                if member.isreg() and os.path.basename(member.name) not in skipped:
                    _write_blob(archive.extractfile(member), folder)  # type: ignore[arg-type]
        for _ in printed:
            continue
    except tarfile.TarError as error:
        raise Failed("archive", "the image's archive is damaged: %s" % error) from None


def _write_blob(source: IO[bytes], folder: str) -> None:
    """Write a file by its SHA-256, and leave none of it in the page cache."""
    digest, partial = hashlib.sha256(), os.path.join(folder, ".partial")
    with open(partial, "wb") as file:
        for chunk in iter(lambda: source.read(_STEP_BYTES), b""):
            digest.update(chunk)
            file.write(chunk)
            file.flush()
            os.fdatasync(file.fileno())
            forget(file.fileno())
    os.utime(partial, (0, 0))  # what arrived is resumed also where it was saved again
    os.replace(partial, os.path.join(folder, digest.hexdigest()))


# loading


def _absent(request: Request, blobs: Blobs) -> bool:
    """Whether files of layers did not come, since the engine has them.

    An engine with a store of its own says itself if it has not. containerd's would load the image without them.
    """
    files = zip(request["image"]["layers"], blobs.layers, strict=True)
    absent = {(diff, name) for diff, (name, _) in files if name not in blobs.sizes}
    if absent and request["engine"]["containerd_store"]:
        with contextlib.suppress(Unreadable):
            held = image_layers.held(Machine(), request["state_dir"], request["engine"])["blobs"]
            if absent <= {(each["layer"], each["digest"]) for each in held}:
                return True
        raise Failed("partial", "the image's archive lacks files that are not here either")
    return bool(absent)


def _piped(blobs: Blobs, check: Check, *, may_lack: bool) -> str:
    """What ``docker load`` prints when it has read the archive of ``blobs``, each of which is removed then."""
    pace = Pace(sum(blobs.sizes.values()), check)
    with tempfile.TemporaryFile() as output:
        with programs.started(docker.load(), stdin=subprocess.PIPE, stdout=output, bufsize=0) as process:
            # Another thread, since it reads nothing for minutes while it syncs a large layer.
            threading.Thread(target=_write, args=(blobs, process.stdin), daemon=True).start()
            while process.poll() is None:
                pace.add(blobs.sent - pace.done)
                time.sleep(0.2)
        text = _last_line(output)
    if process.returncode or text.startswith("Error unpacking"):  # containerd's store exits with 0 then
        partial = may_lack and process.returncode >= 0 and not _NO_ENGINE.search(text)
        kind = "disk" if docker.disk_is_full(text) else "partial" if partial else "docker"
        raise Failed(kind, "docker load: %s" % text)
    return text


def _write(blobs: Blobs, stdin: IO[bytes]) -> None:
    """Write the archive to ``docker load``, and remove each blob that it has read."""
    ended = contextlib.suppress(BrokenPipeError, ValueError)  # its output says why; or it was killed
    sizes: Any = {"bufsize": CHUNK, "copybufsize": CHUNK}
    with ended, stdin, tarfile.open(fileobj=stdin, mode="w|", format=tarfile.GNU_FORMAT, **sizes) as archive:
        for name in dict.fromkeys([blobs.config, blobs.manifest, *(name for name, _ in blobs.layers)]):
            if name in blobs.sizes:
                with open(blobs.folder + name, "rb") as file:
                    read = functools.partial(_read, file, blobs)
                    archive.addfile(_header(BLOBS + name, blobs.sizes[name]), types.SimpleNamespace(read=read))
                os.unlink(blobs.folder + name)
        for name, content in blobs.end():
            archive.addfile(_header(name, len(content)), io.BytesIO(content))


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size = size
    return header


def _read(file: BinaryIO, blobs: Blobs, size: int) -> bytes:
    """The next bytes of a file, which leave the page cache."""
    chunk = file.read(size)
    forget(file.fileno(), file.tell() - len(chunk), len(chunk))
    blobs.sent += len(chunk)
    return chunk


def _last_line(output: BinaryIO) -> str:
    """The last line of what Docker wrote to a file."""
    output.seek(0)
    return programs.last_lines(output.read()) or "no output"
