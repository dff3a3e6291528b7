"""Pulls an image from its registry to this node.

The engine ends a pull when the connection that asked for it ends, so a job (``job``) asks, which outlives the
operator's connection; it changes nothing but Docker's store of images, and ends by itself. The request says ``do``
(pull or cancel), ``reference``, ``tag`` (a name that the image gets, or None), and the lease. Each reference has a job,
in ``state_dir/pulls/HASH``.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, programs
from sparkcluster.node.docker_api import ask_helper, auth_header, kind_of, pull_path, user_config
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.pull_progress import Progress
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

_AGAIN_S = (2, 5, 10, 20, 30)  # before another attempt, where the registry or the engine broke off


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Pull, or end the pull; the answer is that of ``wire.answer``."""
    return job.answer(request, stdin, "pulls", request["reference"], lambda own: pull(request, own), then=_name)


def _name(request: Request) -> None:
    """Give the image its ``tag``, unless the engine has nothing but its name."""
    image = programs.inspect(docker.inspect_image(request["reference"]))
    if image is not None and not docker.is_whole(image):
        raise Failed("blobs", "it was pulled without its layers")
    if request.get("tag"):
        programs.run(docker.tag(request["reference"], common.staged_as(request["tag"])))


def pull(request: Request, own: job.Job) -> dict[str, Any]:
    """Pull, again if the registry or the engine breaks off after the first byte; ``bytes`` that were downloaded."""
    moved = 0
    for pause_s in (*_AGAIN_S, None):
        progress = Progress(time.monotonic())
        try:
            _follow(request["reference"], own, progress)
            return {"bytes": progress.done_bytes}
        except programs.Failed as error:
            moved += progress.done_bytes
            if error.kind not in ("docker", "registry") or not moved or pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError


def _follow(reference: str, own: job.Job, progress: Progress) -> None:
    """Pull, and say how far it is."""
    said = float("-inf")
    for document in _documents(reference):
        if "error" in document:
            message = str((document.get("errorDetail") or {}).get("message") or document["error"])
            raise Failed(document.get("kind") or kind_of(message), message)
        now = time.monotonic()
        progress.feed(document, now)
        if now - said >= job.PAUSE_S:
            said, found = now, progress.as_json(now)
            earlier = {"earlier_bytes": int(own.before.get("bytes", 0))}
            own.say({"bytes": found["bytes"], "total": found["total"], "pull": {**found, **earlier}})
        why = progress.stalled(now)
        if why:
            raise Failed("stalled", "the pull made no progress: " + why)
    if not progress.status:
        raise Failed("docker", "the Docker engine ended the pull without a result")


def _documents(reference: str) -> Iterator[dict[str, Any]]:
    """What the engine says of a pull, and an empty object for each half second without; it ends with this process."""
    documents: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_stream, args=(reference, documents), daemon=True).start()
    while True:
        try:
            document = documents.get(timeout=job.PAUSE_S)
        except queue.Empty:
            document = {}
        if document is None:
            return
        yield document


def _stream(reference: str, documents: queue.Queue[dict[str, Any] | None]) -> None:
    """Put what the engine says of a pull, and None at its end; it pulls as long as this connection lives."""
    login = auth_header(reference, user_config(), ask_helper)
    headers = ["Content-Length: 0"] + (["X-Registry-Auth: " + login] if login else [])
    try:
        with Machine().docker_stream(pull_path(reference), None, "POST", headers) as (status, body):
            if status == 200:
                for line in body:
                    documents.put(json.loads(line))
            else:
                message = "the Docker engine answers %d" % status
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    message = str(json.loads(body.read(1 << 16))["message"])
                documents.put({"error": message, "kind": kind_of(message, status)})
    except Unreadable as error:
        documents.put({"error": str(error), "kind": "docker"})
    documents.put(None)
