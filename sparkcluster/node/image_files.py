"""An image as a directory of blobs: made from ``docker save``, copied like other files, loaded by ``docker load``.

An image has a configuration, which lists its layers by the SHA-256 of their content (diff IDs); a file for each layer;
and since Docker 25 a manifest, which lists these files, as containerd's store compresses layers. All of these are
blobs: files named by their SHA-256.

The request has the lease, and

- ``do``: save, load or clear;
- ``root``: the directory;
- ``image``: ``id`` (on the source), ``size_bytes``, ``layers`` (diff IDs) and ``config_sum`` (a hash of a container's
  start settings; None for any), as in the facts;
- ``reference``: the name to give the image after it was loaded and verified;
- ``engine``: see ``image_layers``;
- ``have``: for each layer to skip (diff ID), the SHA-256 of the file that all receivers have; empty if any file with
  that content will do;
- ``blobs``: SHA-256 of the blobs of the copy; not for save, which emits them as ``listing`` does.
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

_STEP_BYTES = 16 * CHUNK  # bytes that are written before they are dropped from the page cache
_API_VERSION = ["docker", "version", "--format", "{{.Client.APIVersion}}"]  # supported by both client and engine
_OTHER = "the archive contains another image: its configuration or its layers differ"
_PLATFORMS = {"aarch64": "linux/arm64", "x86_64": "linux/amd64"}
_INCOMPLETE = "does not provide the specified platform"  # Docker 28, for an image without its content
_NO_ENGINE = re.compile("cannot connect|connection (?:refused|reset)|EOF", re.IGNORECASE)
_DIGEST = re.compile(r"^sha256:([0-9a-f]{64})\Z")
_DOCUMENT_BYTES = 4 << 20
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Run the action; answers as ``wire.answer``."""
    action = {"save": save, "load": load, "clear": clear}[request["do"]]
    return wire.answer(request, stdin, lambda check: action(request, check))


def clear(request: Request, _check: Check) -> dict[str, Any]:
    """Remove all files except ``blobs``, complete or partial; without ``blobs``, the directory."""
    folder = os.path.join(request["root"], BLOBS)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if name.lstrip(".").partition(".")[0] not in request["blobs"]:
                os.unlink(folder + name)
        if not request["blobs"]:
            shutil.rmtree(request["root"])
    return {}


def save(request: Request, check: Check) -> dict[str, Any]:
    """Create the directory, or find it complete, and emit its blobs as ``listing`` does.

    Raises:
        Failed: Docker cannot save the image, or saved another one; of kind ``blobs`` if parts of it are missing.
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
    """Load, verify and tag the image; return its ID here. Each blob is removed after Docker has read it.

    Raises:
        Failed: it is another image, or Docker cannot load it; of kind ``partial`` if it may work with all layers.
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
    """The blobs ``names`` of the image in ``request``.

    Attributes:
        folder: directory of the blobs.
        sizes: size of each, by SHA-256.
        sent: bytes that Docker has read.
        config: SHA-256 of the image's configuration; empty if it is missing.
        starts: hash of a container's start settings in that configuration.
        manifests: by SHA-256, every manifest with as many layers as the image.
        manifest: SHA-256 of the image's manifest; empty if it is missing.
        layers: SHA-256 and size of each layer's file, even if it is missing; size 0 without a manifest.
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
        """Store a configuration or a manifest; any other file raises one of ``_MALFORMED``."""
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
        """Names and contents of the files that turn the blobs into an archive of one unnamed image."""
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
    """Fill the directory; return the sizes of the blobs that receivers need, by SHA-256."""
    have = request["have"]
    skipped = {digest or diff[7:] for diff, digest in have.items()}  # file names, since Docker 25
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
        # containerd's store does not download a layer if another image has the same content in another compression;
        # such
        # an image can be neither saved nor copied (containerd#8973, moby#49473)
        raise Failed("blobs", "the archive of the image lacks files")
    if not blobs.config:
        raise Failed("archive", _OTHER)
    for name in blobs.sizes.keys() - needed:
        os.unlink(folder + name)
    image_layers.record(request, request["image"]["id"], blobs.layers)
    return {name: blobs.sizes[name] for name in sorted(needed)}


def _platform(engine: dict[str, Any]) -> str | None:
    """Platform to save; None if it must not be specified.

    Only containerd's store has multi-platform images, and it lacks the layers of most platforms.
    """
    if not engine["containerd_store"]:
        return None
    version = tuple(int(each) for each in re.findall(r"\d+", programs.run(_API_VERSION)))
    return _PLATFORMS.get(os.uname().machine) if version >= (1, 48) else None


def _printed(process: subprocess.Popen[bytes], errors: BinaryIO, pace: Pace) -> Iterator[bytes]:
    """Output of ``docker save``: nothing for minutes, while it writes all layers to disk."""
    for chunk in programs.chunks(process, 1):
        pace.add(len(chunk))
        if chunk:
            yield chunk
    if process.wait():
        text = _last_line(errors)
        kind = "disk" if docker.disk_is_full(text) else "blobs" if _INCOMPLETE in text else "docker"
        raise Failed(kind, "docker save: %s" % text)


def _take_apart(printed: Iterator[bytes], folder: str, skipped: Collection[str]) -> None:
    """Write the files of an archive under their SHA-256, except files named in ``skipped``."""
    output: Any = types.SimpleNamespace(read=lambda _size: next(printed, b""))
    try:
        with tarfile.open(fileobj=output, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                if member.isreg() and os.path.basename(member.name) not in skipped:
                    _write_blob(archive.extractfile(member), folder)  # type: ignore[arg-type]
        for _ in printed:
            continue
    except tarfile.TarError as error:
        raise Failed("archive", "the archive of the image is damaged: %s" % error) from None


def _write_blob(source: IO[bytes], folder: str) -> None:
    """Write a file under its SHA-256, without keeping it in the page cache."""
    digest, partial = hashlib.sha256(), os.path.join(folder, ".partial")
    with open(partial, "wb") as file:
        for chunk in iter(lambda: source.read(_STEP_BYTES), b""):
            digest.update(chunk)
            file.write(chunk)
            file.flush()
            os.fdatasync(file.fileno())
            forget(file.fileno())
    os.utime(partial, (0, 0))  # constant, so that a copy can resume after saving again
    os.replace(partial, os.path.join(folder, digest.hexdigest()))


# loading


def _absent(request: Request, blobs: Blobs) -> bool:
    """Whether files of layers were skipped, since Docker has them.

    Docker's own store reports missing layers. containerd's would load the image without them.
    """
    files = zip(request["image"]["layers"], blobs.layers, strict=True)
    absent = {(diff, name) for diff, (name, _) in files if name not in blobs.sizes}
    if absent and request["engine"]["containerd_store"]:
        with contextlib.suppress(Unreadable):
            held = image_layers.held(Machine(), request["state_dir"], request["engine"])["blobs"]
            if absent <= {(each["layer"], each["digest"]) for each in held}:
                return True
        raise Failed("partial", "the archive of the image lacks files that this node does not have")
    return bool(absent)


def _piped(blobs: Blobs, check: Check, *, may_lack: bool) -> str:
    """Output of ``docker load`` after it has read the archive of ``blobs``; each blob is removed after it was read."""
    pace = Pace(sum(blobs.sizes.values()), check)
    with tempfile.TemporaryFile() as output:
        with programs.started(docker.load(), stdin=subprocess.PIPE, stdout=output, bufsize=0) as process:
            # In a thread, since docker load may read nothing for minutes while it syncs a large layer.
            threading.Thread(target=_write, args=(blobs, process.stdin), daemon=True).start()
            while process.poll() is None:
                pace.add(blobs.sent - pace.done)
                time.sleep(0.2)
        text = _last_line(output)
    if process.returncode or text.startswith("Error unpacking"):  # with containerd's store the exit code is then 0
        partial = may_lack and process.returncode >= 0 and not _NO_ENGINE.search(text)
        kind = "disk" if docker.disk_is_full(text) else "partial" if partial else "docker"
        raise Failed(kind, "docker load: %s" % text)
    return text


def _write(blobs: Blobs, stdin: IO[bytes]) -> None:
    """Write the archive to ``docker load``, and remove each blob after it was read."""
    ended = contextlib.suppress(BrokenPipeError, ValueError)  # its output has the reason; or it was killed
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
    """The next bytes of a file; drops them from the page cache."""
    chunk = file.read(size)
    forget(file.fileno(), file.tell() - len(chunk), len(chunk))
    blobs.sent += len(chunk)
    return chunk


def _last_line(output: BinaryIO) -> str:
    """The last line of Docker's output in a file."""
    output.seek(0)
    return programs.last_lines(output.read()) or "no output"
