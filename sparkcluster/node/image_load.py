"""Loads an image of which the blobs have arrived into this node's Docker, and removes them.

The request is that of ``image_blobs``, and says ``image_id`` (what a node that has it knows it by), ``reference`` (what
it is called when it is the right one), its ``blobs`` (SHA-256), and as ``image_save`` ``engine`` and ``have``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO

from sparkcluster.node import docker, image_layers, programs, wire
from sparkcluster.node.image_blobs import OTHER, Blobs, clear, last_line, within
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.model_files import forget
from sparkcluster.node.shared import BLOBS, staged_as
from sparkcluster.node.wire import CHUNK, Check, Failed, Pace

Request = dict[str, Any]

_BLOCK = 512
_LOADED = re.compile(r"^Loaded image(?: ID)?: (sha256:[0-9a-f]{64})$")  # else it prints a name
_NO_ENGINE = re.compile("cannot connect|connection (?:refused|reset)|EOF", re.IGNORECASE)


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
    text = _piped(blobs, check, may_lack=bool(absent))
    named = _LOADED.search(text)
    image = programs.inspect(docker.inspect_image(named.group(1) if named else request["image_id"])) or {}
    found = ((image.get("RootFS") or {}).get("Layers") or [], docker.config_sum(image.get("Config") or {}))
    if found != (request["layers"], blobs.config_sum(blobs.config)):
        what = image.get("Id") or "nothing"
        raise Failed("partial" if absent else "docker", "received %s instead of %s" % (what, request["image_id"]))
    image_layers.record(request, image["Id"], blobs.layers)
    check()
    programs.run(docker.tag(image["Id"], staged_as(request["reference"])))
    clear(request)
    return {"image_id": str(image["Id"])}


def _absent(request: Request, blobs: Blobs) -> dict[str, str]:
    """Diff IDs of the layers whose files did not come, by these: the engine has them.

    An engine with a store of its own says itself if it has not. containerd's would load the image without them.
    """
    files = zip(request["layers"], blobs.layers, strict=True)
    absent = {name: diff for diff, (name, _) in files if name not in blobs.sizes}
    if set(absent.values()) - request["have"].keys():
        raise Failed("archive", "the image's archive lacks a layer")
    here = absent
    if absent and request["engine"]["containerd_store"]:
        here = {}
        with contextlib.suppress(Unreadable):
            held = image_layers.held(Machine(), request["state_dir"], request["engine"])[1]
            here = {digest: diff for diff, digest, _ in held}
    if not absent.items() <= here.items():
        raise Failed("partial", "the image's archive lacks files that are not here either")
    return absent


def _piped(blobs: Blobs, check: Check, *, may_lack: bool) -> str:
    """What ``docker load`` prints when it has read the archive of ``blobs``, each of which is removed then."""
    files = dict.fromkeys(filter(blobs.sizes.get, [blobs.config, blobs.manifest, *(name for name, _ in blobs.layers)]))
    pace = Pace(sum(blobs.sizes[name] for name in files), check)
    with tempfile.TemporaryFile() as output:
        with programs.started(docker.load(), stdin=subprocess.PIPE, stdout=output, bufsize=0) as process:
            stdin: IO[bytes] = process.stdin  # type: ignore[assignment]
            os.set_blocking(stdin.fileno(), False)
            with contextlib.suppress(BrokenPipeError):  # it failed, and its output says why
                for name in files:
                    with open(blobs.folder + name, "rb") as file:
                        _add(stdin, BLOBS + name, blobs.sizes[name], _chunks(file), pace)
                    os.unlink(blobs.folder + name)
                for name, content in blobs.end():
                    _add(stdin, name, len(content), [content], pace)
                _feed(stdin, bytes(2 * _BLOCK), pace)
            stdin.close()
            since = time.monotonic()
            while process.poll() is None:
                within(since, "docker load has not finished")
                pace.add()
                time.sleep(0.2)
        text = last_line(output)
    if process.returncode or text.startswith("Error unpacking"):  # containerd's store exits with 0 then
        partial = may_lack and process.returncode >= 0 and not _NO_ENGINE.search(text)
        kind = "disk" if docker.disk_is_full(text) else "partial" if partial else "docker"
        raise Failed(kind, "docker load: %s" % text)
    return text


def _add(stdin: IO[bytes], name: str, size: int, content: Iterable[bytes], pace: Pace) -> None:
    """Feed a file of an archive."""
    header = tarfile.TarInfo(name)
    header.size = size
    for chunk in itertools.chain([header.tobuf(tarfile.GNU_FORMAT)], content, [bytes(-size % _BLOCK)]):
        _feed(stdin, chunk, pace)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    for chunk in iter(lambda: file.read(CHUNK), b""):
        yield chunk
        forget(file.fileno(), file.tell() - len(chunk), len(chunk))


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
