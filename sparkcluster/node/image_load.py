"""Loads an image of which the blobs have arrived into this node's Docker, and removes them.

The request is that of ``image_blobs``, and says ``image_id`` (what a node that has it knows it by), ``reference`` (what
it is called when it is the right one), and as ``image_save`` ``engine`` and ``have``.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import subprocess
import tarfile
import tempfile
import time
import types
from typing import IO, Any, BinaryIO

from sparkcluster.node import docker, image_layers, programs, wire
from sparkcluster.node.image_blobs import OTHER, Blobs, clear, last_line, within
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.model_files import forget
from sparkcluster.node.shared import BLOBS, staged_as
from sparkcluster.node.wire import CHUNK, Check, Failed, Pace

Request = dict[str, Any]


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Load it; the answer is that of ``wire.answer``."""
    return wire.answer(request, stdin, lambda check: load(request, check))


def load(request: Request, check: Check) -> dict[str, Any]:
    """Load, compare and tag the image; its ID here. The blobs go one by one, as Docker has read them.

    Raises:
        Failed: it is another image, or Docker does not load it; of kind ``partial`` where it may if no layer is absent.
    """
    blobs = Blobs(request, request["blobs"])
    if not blobs.config:
        raise Failed("archive", OTHER)
    absent = _absent(request, blobs)
    loaded = _piped(blobs, check, may_lack=absent).rpartition(" ")[2]  # Loaded image ID: sha256:…
    image = programs.inspect(docker.inspect_image(loaded)) or {}
    found = ((image.get("RootFS") or {}).get("Layers") or [], docker.config_sum(image.get("Config") or {}))
    if found != blobs.configs[blobs.config]:
        what = image.get("Id") or "nothing"
        raise Failed("partial" if absent else "docker", "received %s instead of %s" % (what, request["image_id"]))
    image_layers.record(request, image["Id"], blobs.layers)
    check()
    programs.run(docker.tag(image["Id"], staged_as(request["reference"])))
    clear(request["root"])
    return {"image_id": str(image["Id"])}


def _absent(request: Request, blobs: Blobs) -> bool:
    """Whether files of layers did not come, since the engine has them.

    An engine with a store of its own says itself if it has not. containerd's would load the image without them.
    """
    files = zip(request["layers"], blobs.layers, strict=True)
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
    with tempfile.TemporaryFile() as output:
        with programs.started(docker.load(), stdin=subprocess.PIPE, stdout=output, bufsize=0) as process:
            stdin: IO[bytes] = process.stdin  # type: ignore[assignment]
            pace = Pace(sum(blobs.sizes.values()), check)
            with contextlib.suppress(BrokenPipeError):  # it failed, and its output says why
                _write(blobs, stdin, pace)
            stdin.close()
            since = time.monotonic()
            while process.poll() is None:
                within(since, "docker load has not finished")
                pace.add()
                time.sleep(0.2)
        text = last_line(output)
    if process.returncode or text.startswith("Error unpacking"):  # containerd's store exits with 0 then
        kind = "disk" if docker.disk_is_full(text) else "partial" if may_lack else "docker"
        raise Failed(kind, "docker load: %s" % text)
    return text


def _write(blobs: Blobs, stdin: IO[bytes], pace: Pace) -> None:
    """Write the archive, and remove each blob that is in it."""
    os.set_blocking(stdin.fileno(), False)
    output: Any = types.SimpleNamespace(write=lambda chunk: _feed(stdin, chunk, pace), tell=lambda: 0)
    with tarfile.open(fileobj=output, mode="w", format=tarfile.GNU_FORMAT, copybufsize=CHUNK) as archive:
        for name in dict.fromkeys([blobs.config, blobs.manifest, *(name for name, _ in blobs.layers)]):
            if name in blobs.sizes:
                with _Blob(blobs.folder + name) as file:
                    _add(archive, BLOBS + name, blobs.sizes[name], file)
                os.unlink(blobs.folder + name)
        for name, content in blobs.end():
            _add(archive, name, len(content), io.BytesIO(content))


def _add(archive: tarfile.TarFile, name: str, size: int, content: Any) -> None:
    header = tarfile.TarInfo(name)
    header.size = size
    archive.addfile(header, content)


class _Blob(io.FileIO):
    """A file of which what was read leaves the page cache."""

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(size)
        forget(self.fileno(), self.tell() - len(chunk), len(chunk))
        return chunk


def _feed(stdin: IO[bytes], chunk: bytes, pace: Pace) -> None:
    """Write to ``docker load``, which reads nothing while it syncs a large layer."""
    remaining, since = memoryview(chunk), time.monotonic()
    while remaining:
        if select.select([], [stdin], [], 0.5)[1]:
            written = stdin.write(remaining) or 0
            remaining, since = remaining[written:], time.monotonic()
            pace.add(written)
        within(since, "docker load read nothing")
        pace.add()
