"""Copies an image from one node's Docker engine to another's. Python 3.8, standard library only."""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
import time
from typing import Any, BinaryIO, Dict, List, Tuple

from sparkcluster.node import common, docker, wire
from sparkcluster.node.common import staged_as
from sparkcluster.node.wire import Check, Failed, Pace, Wire

Request = Dict[str, Any]

# docker save writes all layers to disk before its first byte of output; docker load unpacks after the last byte.
_ENGINE_SILENT_S = 1200.0


def send(request: Request, line: Wire, check: Check) -> dict[str, Any]:
    """Send the image unless the receiver has it: ``docker save`` into the connection."""
    if line.read_line() == {"has": True}:
        return {"bytes": 0}
    pace = Pace(0, check, quiet=True)
    with tempfile.TemporaryFile() as errors:
        with _start(docker.save(request["image_id"]), errors) as process:
            output = process.stdout
            if output is None:
                raise Failed("other", "docker save has no output")
            try:
                limit = time.monotonic() + _ENGINE_SILENT_S
                while True:
                    if not select.select([output], [], [], 2)[0]:
                        _within(limit, "docker save printed nothing for %.0f s")
                        line.send_frame(b"")
                        continue
                    chunk = output.read1(wire.CHUNK)  # type: ignore[attr-defined]
                    if not chunk:
                        break
                    limit = time.monotonic() + _ENGINE_SILENT_S
                    line.send_frame(chunk)
                    pace.add(len(chunk))
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise Failed("docker", "docker save: %s" % _last(errors))
    line.end_frames()
    while line.read_line() != {"loaded": True}:
        continue
    return {"bytes": pace.done}


def receive(request: Request, line: Wire, check: Check) -> dict[str, Any]:
    """Load the image, tag it, and verify that it is the requested one."""
    image_id = request["image_id"]
    pace = Pace(int(request.get("size") or 0), check)
    there = inspect(image_id)
    line.send_line({"has": there is not None})
    if there is None:
        image_id = _load(line, pace, check) or image_id
        there = inspect(image_id)
        line.send_line({"loaded": True})
    if there is None:
        raise Failed("docker", "docker load succeeded, but %s is missing" % image_id)
    if there[0] != request["image_id"] and there[1] != request.get("layers"):
        raise Failed("docker", "received %s instead of %s" % (there[0], request["image_id"]))
    check()
    code, output = _run(docker.tag(there[0], staged_as(request["reference"])))
    if code:
        raise Failed("docker", "docker tag: %s" % output)
    return {"bytes": pace.done, "image_id": there[0]}


def _load(line: Wire, pace: Pace, check: Check) -> str | None:
    """Pipe the stream to ``docker load``; the ID that it prints."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(docker.load(), stdin=subprocess.PIPE, stdout=output, stderr=output)
        with process:
            stdin = process.stdin
            if stdin is None:
                raise Failed("other", "docker load has no input")
            try:
                while True:
                    chunk = line.read_frame()
                    if chunk is None:
                        break
                    if chunk:
                        _feed(process, stdin, chunk)
                    pace.add(len(chunk))
                _close(stdin)
                limit = time.monotonic() + _ENGINE_SILENT_S
                while process.poll() is None:
                    _within(limit, "docker load did not finish within %.0f s")
                    line.alive()
                    pace.add()
                    time.sleep(0.2)
            except BrokenPipeError:
                process.wait()
                raise Failed(_kind(_last(output)), "docker load: %s" % _last(output)) from None
            except BaseException:
                process.kill()
                _close(stdin)
                raise
        text = _last(output)
        if process.returncode:
            raise Failed(_kind(text), "docker load: %s" % text)
    check()
    _, mark, found = text.rpartition("Loaded image ID: ")
    return found.strip() if mark else None


def _within(limit: float, text: str) -> None:
    if time.monotonic() > limit:
        raise Failed("docker", text % _ENGINE_SILENT_S)


def _feed(process: subprocess.Popen[bytes], stdin: Any, chunk: bytes) -> None:
    """Write to ``docker load``, with a time limit."""
    if not select.select([], [stdin], [], 60)[1]:
        raise Failed("docker", "docker load stopped reading")
    stdin.write(chunk)
    stdin.flush()


def _close(stdin: Any) -> None:
    try:
        stdin.close()
    except BrokenPipeError:
        return


def _kind(text: str) -> str:
    return "disk" if docker.disk_is_full(text) else "docker"


def inspect(reference: str) -> Tuple[str, List[str]] | None:
    """ID and layers of an image, or None if it is missing."""
    code, output = _run(docker.inspect_image(reference))
    if code:
        if docker.is_missing(output):
            return None
        raise Failed("docker", output)
    found = json.loads(output)[0]
    return found["Id"], (found.get("RootFS") or {}).get("Layers") or []


def _start(argv: List[str], errors: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    except FileNotFoundError:
        raise Failed("docker", "%s is not installed" % argv[0]) from None


def _run(argv: List[str], limit_s: float = 60) -> Tuple[int, str]:
    """Exit code, and standard output, or standard error of a failure."""
    try:
        done = common.run(argv, limit_s)
    except common.NotRun as error:
        raise Failed("docker", str(error)) from None
    output = done.stderr if done.returncode else done.stdout
    return done.returncode, output.decode("utf-8", "replace").strip()


def _last(file: BinaryIO) -> str:
    file.seek(0)
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
