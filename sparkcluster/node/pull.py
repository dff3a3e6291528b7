"""Pulls an image from its registry to this node. Python 3.8, standard library only.

The engine ends a pull when the connection that asked for it ends, so a process of its own asks, which outlives the
operator's connection; it changes nothing but Docker's store of images, and ends by itself. This program starts it, or
finds it at work, and reports how far it is. The request says ``do`` (pull or cancel), ``reference``, ``tag`` (a name
that the image gets, or None), ``images_dir``, and the lease.

``state_dir/pulls/HASH/pull.json``, one for each reference, says how far the pull is and how it ended; the process
that pulls holds a lock on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import threading
import time
from typing import Any, BinaryIO, Dict, Optional

from sparkcluster.node import common, docker, programs, wire
from sparkcluster.node.docker_api import ask_helper, auth_header, kind_of, pull_path, user_config
from sparkcluster.node.machine import Machine, Unreadable
from sparkcluster.node.pull_progress import Progress
from sparkcluster.node.wire import Failed

Request = Dict[str, Any]

_PAUSE_S = 0.5  # between two looks at the file, and two writes of it
_AGAIN_S = (2, 5, 10, 20, 30)  # before another attempt, where the registry or the engine broke off
_BROKEN = ("docker", "registry")
_MESSAGE = 500
_FILE_BYTES = 4096  # written at once over what was there, so that readers see one or the other


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Pull, or end the pull; the answer is that of ``wire.answer``."""
    action = cancel if request["do"] == "cancel" else pull
    return wire.answer(request, stdin, lambda check: action(request, check))


def pull(request: Request, check: wire.Check) -> dict[str, Any]:
    """Follow the pull of the reference, which is started unless it is under way, to its end."""
    path = _path(request)
    lock = common.try_lock(path)
    if lock is not None:
        _start(request, lock)
    while True:
        running, said = common.is_locked(path), common.read_json(path) or {}
        if "done" in said:
            _name(request)
            return dict(said["done"])
        if "failed" in said:
            raise Failed(said["kind"], said["failed"])
        if not running:
            raise Failed("lost", "the process that pulled the image was ended")
        check()
        if "pull" in said:
            common.emit({"bytes": said["bytes"], "total": said["pull"]["total"], "pull": said["pull"]})
        time.sleep(_PAUSE_S)


def _name(request: Request) -> None:
    """Give the image its ``tag``, unless the engine has nothing but its name."""
    image = programs.inspect(docker.inspect_image(request["reference"]))
    if image is not None and not docker.is_whole(image):
        raise Failed("blobs", "it was pulled without its layers")
    if request.get("tag"):
        programs.run(docker.tag(request["reference"], common.staged_as(request["tag"])))


def cancel(request: Request, check: wire.Check) -> dict[str, Any]:
    """End the pull of the reference, if one is under way."""
    path = _path(request)
    pid = (common.read_json(path) or {}).get("pid")
    if isinstance(pid, int) and pid > 1 and common.is_locked(path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return {}


def _path(request: Request) -> str:
    name = hashlib.sha256(request["reference"].encode()).hexdigest()[:16]
    return os.path.join(common.expand(request["state_dir"]), "pulls", name, "pull.json")


def _start(request: Request, lock: BinaryIO) -> None:
    """Start the process that pulls, in a session of its own; it gets the ``lock``."""
    before = _said(lock.read())
    lock.truncate(0)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        lock.close()
        return
    try:
        os.setsid()
        if not os.fork():
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            _Puller(request, lock.fileno(), 0 if "done" in before else before.get("bytes", 0)).run()
    finally:
        os._exit(0)


def _said(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Puller:
    """The process that pulls; ``earlier`` are the bytes of a pull that did not end."""

    def __init__(self, request: Request, file: int, earlier: int) -> None:
        self.request = request
        self.file = file
        self.earlier = earlier
        self.bytes = 0
        self.moved = False

    def run(self) -> None:
        """Pull, and write how it ended."""
        try:
            self._write(done={"bytes": self._pull()})
        except programs.Failed as error:
            self._write(failed=str(error)[:_MESSAGE], kind=error.kind)
        except Exception as error:
            self._write(failed=("%s: %s" % (type(error).__name__, error))[:_MESSAGE], kind="other")

    def _write(self, **more: Any) -> None:
        document = {"pid": os.getpid(), "bytes": self.bytes, **more}
        os.pwrite(self.file, json.dumps(document).encode().ljust(_FILE_BYTES), 0)

    def _pull(self) -> int:
        """Bytes that were downloaded; pulls again if the registry or the engine breaks off."""
        for pause_s in (*_AGAIN_S, 0):
            try:
                return self._attempt()
            except programs.Failed as error:
                if error.kind not in _BROKEN or not self.moved or not pause_s:
                    raise
                time.sleep(pause_s)
        raise AssertionError

    def _attempt(self) -> int:
        documents: queue.Queue[Optional[Dict[str, Any]]] = queue.Queue()
        threading.Thread(target=_stream, args=(self.request["reference"], documents), daemon=True).start()
        progress = Progress(time.monotonic())
        room, room_at, written = 0, time.monotonic(), 0.0
        while True:
            try:
                document = documents.get(timeout=_PAUSE_S)
            except queue.Empty:
                document = {}
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
            written, self.bytes = now, progress.done_bytes
            self._write(pull={**progress.as_json(now), "earlier_bytes": self.earlier})
            free = self._free()
            if free != room:
                room, room_at = free, now
            why = progress.stalled(now, room_at)
            if why:
                raise Failed("stalled", "the pull made no progress: " + why)
        self.bytes = progress.done_bytes
        if not progress.status:
            raise Failed("docker", "the Docker engine ended the pull without a result")
        return self.bytes

    def _free(self) -> int:
        try:
            return Machine().space(self.request["images_dir"])[1]
        except OSError:
            return 0


def _stream(reference: str, documents: queue.Queue[Optional[Dict[str, Any]]]) -> None:
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
