"""Pulls an image from its registry to this node.

The engine ends a pull when the connection that asked for it ends, so a job (``job``) asks, which outlives the
operator's connection; it changes nothing but Docker's store of images, and ends by itself. The request says ``do``
(pull or cancel), ``reference``, ``tag`` (a name that the image gets, or None), ``images_dir``, and the lease. Each
reference has a job, in ``state_dir/pulls/HASH``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import threading
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, programs, wire
from sparkcluster.node.docker_api import ask_helper, auth_header, kind_of, pull_path, user_config
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.pull_progress import Progress
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

_PAUSE_S = 0.5  # between two words about it
_AGAIN_S = (2, 5, 10, 20, 30)  # before another attempt, where the registry or the engine broke off
_BROKEN = ("docker", "registry")
_ADOPTED_S = 180.0  # who holds the lease may want the same image; Docker drops what came of a pull that is ended


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Pull, or end the pull; the answer is that of ``wire.answer``."""
    action = cancel if request["do"] == "cancel" else pull
    return wire.answer(request, stdin, lambda check: action(request, check))


def pull(request: Request, check: wire.Check) -> dict[str, Any]:
    """Follow the pull of the reference, which is started unless it is under way, to its end."""
    directory = _directory(request)
    earlier = os.path.join(directory, "pull.json")  # the lock and the words of a version before jobs
    if common.is_locked(earlier):
        raise Failed("other", "an earlier version of sparkcluster pulls this image here; its process has %s" % earlier)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(earlier)
    done = job.run(directory, common.lease_of(request), lambda own: _Puller(request, own).pull(), check)
    check()
    _name(request)
    return done


def _name(request: Request) -> None:
    """Give the image its ``tag``, unless the engine has nothing but its name."""
    image = programs.inspect(docker.inspect_image(request["reference"]))
    if image is not None and not docker.is_whole(image):
        raise Failed("blobs", "it was pulled without its layers")
    if request.get("tag"):
        programs.run(docker.tag(request["reference"], common.staged_as(request["tag"])))


def cancel(request: Request, check: wire.Check) -> dict[str, Any]:
    """End the pull of the reference, if one is under way and nobody else wants it."""
    job.cancel(_directory(request), common.lease_of(request))
    return {}


def _directory(request: Request) -> str:
    name = hashlib.sha256(request["reference"].encode()).hexdigest()[:16]
    return os.path.join(common.private(request["state_dir"]), "pulls", name)


def _said(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Puller:
    """The process that pulls."""

    def __init__(self, request: Request, own: job.Job) -> None:
        self.request = request
        self.job = own
        self.earlier = int(own.before.get("bytes", 0))
        self.moved = False

    def pull(self) -> dict[str, Any]:
        """Pull, again if the registry or the engine breaks off; ``bytes`` that were downloaded."""
        for pause_s in (*_AGAIN_S, 0):
            try:
                return {"bytes": self._attempt()}
            except programs.Failed as error:
                if error.kind not in _BROKEN or not self.moved or not pause_s:
                    raise
                time.sleep(pause_s)
        raise AssertionError

    def _attempt(self) -> int:
        documents: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_stream, args=(self.request["reference"], documents), daemon=True).start()
        progress = Progress(time.monotonic())
        room, room_at, written = 0, time.monotonic(), 0.0
        while True:
            try:
                document = documents.get(timeout=_PAUSE_S)
            except queue.Empty:
                document = {}
            self.job.check(_ADOPTED_S, held=True)
            now = time.monotonic()
            if document is None:
                break
            if "error" in document:
                message = str((document.get("errorDetail") or {}).get("message") or document["error"])
                raise Failed(document.get("kind") or kind_of(message), message)
            progress.feed(document, now)
            self.moved = self.moved or progress.done_bytes > 0
            if now - written < _PAUSE_S:
                continue
            written, found = now, progress.as_json(now)
            said = {"bytes": found["bytes"], "total": found["total"]}
            self.job.say(**said, pull={**found, "earlier_bytes": self.earlier})
            free = self._free()
            if free != room:
                room, room_at = free, now
            why = progress.stalled(now, room_at)
            if why:
                raise Failed("stalled", "the pull made no progress: " + why)
        if not progress.status:
            raise Failed("docker", "the Docker engine ended the pull without a result")
        return progress.done_bytes

    def _free(self) -> int:
        try:
            return Machine().space(self.request["images_dir"])[1]
        except OSError:
            return 0


def _stream(reference: str, documents: queue.Queue[dict[str, Any] | None]) -> None:
    """What the engine says of a pull, and None at its end; it pulls as long as this connection lives."""
    login = auth_header(reference, user_config(), ask_helper)
    headers = ["Content-Length: 0"] + (["X-Registry-Auth: " + login] if login else [])
    try:
        with Machine().docker_stream(pull_path(reference), None, "POST", headers) as (status, body):
            if status == 200:
                for line in body:
                    documents.put(json.loads(line))
            else:
                message = _said(body.read(1 << 16)).get("message") or "the Docker engine answers %d" % status
                documents.put({"error": message, "kind": kind_of(message, status)})
    except Unreadable as error:
        documents.put({"error": str(error), "kind": "docker"})
    documents.put(None)
