"""Saves an image of this node's Docker engine for others, without layers they have, and loads what they saved."""

from __future__ import annotations

import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import docker, image_files, image_layers, programs
from sparkcluster.node.image_archive import Archive, Saved
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.shared import staged_as
from sparkcluster.node.wire import Check, Failed

Request = dict[str, Any]

# docker save writes all layers to disk before its first byte of output; docker load unpacks after the last byte.
ENGINE_SILENT_S = 1200.0
# An archive may hold an image for several platforms, of which the engine reports the size of one.
_SIZES, _SPARE_BYTES = 4, 1 << 30
_NO_ENGINE = re.compile("cannot connect|connection (?:refused|reset)|EOF", re.IGNORECASE)
_API_VERSION = ["docker", "version", "--format", "{{.Client.APIVersion}}"]  # that both client and engine speak
_INCOMPLETE = "does not provide the specified platform"  # Docker 28, of an image of which it has the name alone


def save(request: Request, write: Callable[[Any], None], beat: Callable[[], None]) -> None:
    """Write the archive of the image without the layers that receivers have; ``beat`` is called each second.

    Raises:
        Failed: Docker cannot save it, or prints no archive.
    """
    engine = _engine()
    names = image_layers.files(request["state_dir"], engine, request["layers"])
    command = docker.save(request["image_id"], _platform())
    with tempfile.TemporaryFile() as errors, programs.started(command, stderr=errors) as process:
        saved = Saved(_printed(process, errors, beat), write)
        saved.send(image_files.dropped(request["have"], names))
    if engine["containerd_store"]:
        image_files.record(request, request["image_id"], saved.documents.files(request))


def _printed(process: subprocess.Popen[bytes], errors: BinaryIO, beat: Callable[[], None]) -> Iterator[bytes]:
    """What ``docker save`` prints: for long it may be nothing, or nothing for the receiver."""
    heard, told = time.monotonic(), time.monotonic()
    for chunk in programs.chunks(process, 1):
        now = time.monotonic()
        if chunk:
            heard = now
            yield chunk
        _within(heard + ENGINE_SILENT_S, "docker save printed nothing for %.0f s")
        if now - told >= 1:
            told = now
            beat()
    if process.wait():
        text = _last(errors)
        raise Failed("blobs" if _INCOMPLETE in text else "docker", "docker save: %s" % text)


def _engine() -> dict[str, Any]:
    """The engine as ``image_layers`` knows it; one of unknown version where it does not answer."""
    try:
        return image_files.engine(Machine())
    except Unreadable:
        return {"version": "", "containerd_store": False}


def _platform() -> str | None:
    try:
        info = Machine().docker_document("/info") or {}
        return _saved_platform(info, programs.run(_API_VERSION).strip(), os.uname().machine)
    except (Unreadable, programs.Failed):
        return None


def _saved_platform(info: dict[str, Any], api: str, machine: str) -> str | None:
    """Platform for ``save`` on a ``machine``, by the engine's ``/info`` and API version; None if none is to be named.

    Only containerd's store has images for several platforms, of most of which it lacks the layers.
    """
    numbers = tuple(int(number) for number in api.split(".") if number.isdigit())
    architecture = {"aarch64": "arm64", "x86_64": "amd64"}.get(machine)
    wanted = architecture and numbers >= (1, 48) and docker.in_containerd(info)
    return "linux/%s" % architecture if wanted else None


def present(request: Request) -> dict[str, Any] | None:
    """What Docker says of the image, if that is here and whole."""
    image = programs.inspect(docker.inspect_image(request["image_id"]))
    return image if image is not None and docker.is_whole(image) else None


def accept(request: Request, image: dict[str, Any], absent: int, check: Check) -> str:
    """Tag the image if it is the requested one; its ID. ``absent`` is how many of its layers did not come.

    Raises:
        Failed: it is another one.
    """
    found = ((image.get("RootFS") or {}).get("Layers") or [], docker.config_sum(image.get("Config") or {}))
    if found != (request["layers"], request["config_sum"]):
        what = image.get("Id") or "nothing"
        raise Failed("partial" if absent else "docker", "received %s instead of %s" % (what, request["image_id"]))
    check()
    try:
        programs.run(docker.tag(image["Id"], staged_as(request["reference"])))
    except programs.Failed as error:
        raise Failed("docker", "docker tag: %s" % error) from None
    return str(image["Id"])


def load(request: Request, chunks: Iterator[bytes], beat: Callable[[], None]) -> tuple[dict[str, Any], int]:
    """Pipe the checked archive to ``docker load``; what Docker says of the image, and how many layers did not come.

    ``beat`` is called twice a second while Docker reads nothing.

    Raises:
        Failed: of kind ``partial`` where it may succeed if all layers come.
    """
    engine = _engine()
    prefix, blobs = _here(request, engine)
    with tempfile.TemporaryFile() as output:
        with programs.started(docker.load(), stdin=subprocess.PIPE, stdout=output, bufsize=0) as process:
            os.set_blocking(process.stdin.fileno(), False)  # type: ignore[union-attr]
            archive = Archive(chunks, lambda data: _feed(process.stdin, data, beat))
            try:
                archive.relay(request, prefix, blobs)
            except BrokenPipeError:
                process.wait()  # it failed, and its output says why
            process.stdin.close()  # type: ignore[union-attr]
            limit = time.monotonic() + ENGINE_SILENT_S
            while process.poll() is None:
                _within(limit, "docker load did not finish within %.0f s")
                beat()
                time.sleep(0.2)
        text = _last(output)
        if process.returncode or text.startswith("Error unpacking"):  # containerd's store exits with 0 then
            raise Failed(_kind(process.returncode, text, archive.absent), "docker load: %s" % text)
    image = programs.inspect(docker.inspect_image(loaded(text) or request["image_id"])) or {}
    if engine["containerd_store"] and image:
        image_files.record(request, image["Id"], archive.documents.files(request))
    return image, archive.absent


def _kind(exit_code: int, text: str, absent: int) -> str:
    """The kind of a failed ``docker load``: with the ``absent`` layers it may succeed, but not on a full disk."""
    if docker.disk_is_full(text):
        return "disk"
    return "partial" if absent and exit_code >= 0 and not _NO_ENGINE.search(text) else "docker"


def _here(request: Request, engine: dict[str, Any]) -> tuple[int, dict[str, str]]:
    """Which layers may be absent, as this node finds now: how many from the lowest, and layers by their files' digests.

    None where all are to come.
    """
    if all(each is None for each in request["have"]):
        return 0, {}
    try:
        chains, blobs = image_layers.held(Machine(), request["state_dir"], engine)
    except Unreadable:
        return 0, {}
    return image_layers.prefix(chains, request["layers"]), {digest: diff for diff, digest, _ in blobs}


def loaded(text: str) -> str | None:
    """ID in what ``docker load`` prints; None where it prints a name."""
    found = re.search(r"^Loaded image(?: ID)?: (sha256:[0-9a-f]{64})$", text.strip())
    return found.group(1) if found else None


def limited(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """``chunks`` of the archive of an image of ``size`` bytes; Failed if they are more than that can be."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        if 0 < _SIZES * size < done - _SPARE_BYTES:
            raise Failed("archive", "the image's archive is larger than the image")
        yield chunk


def _within(limit: float, text: str) -> None:
    if time.monotonic() > limit:
        raise Failed("docker", text % ENGINE_SILENT_S)


def _feed(stdin: Any, chunk: Any, beat: Callable[[], None]) -> None:
    """Write to ``docker load``, which reads nothing while it syncs a large layer."""
    remaining = memoryview(chunk)
    limit = time.monotonic() + ENGINE_SILENT_S
    while remaining:
        if select.select([], [stdin], [], 0.5)[1]:
            remaining = remaining[stdin.write(remaining) or 0 :]
            limit = time.monotonic() + ENGINE_SILENT_S
        else:
            _within(limit, "docker load read nothing for %.0f s")
            beat()


def _last(file: BinaryIO) -> str:
    file.seek(0)
    return programs.last_lines(file.read()) or "no output"
