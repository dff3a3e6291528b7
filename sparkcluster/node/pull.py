"""Pulls an image from its registry to this node.

The engine ends a pull when the connection that asked for it ends, so a job (``job``) asks, which outlives the
operator's connection; it changes nothing but Docker's store of images, and ends by itself. The request says ``do``
(pull or cancel), ``reference``, ``tag`` (a name that the image gets, or None), and the lease. Each reference has a job,
in ``state_dir/pulls/HASH``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, programs
from sparkcluster.node.machine import Machine, Unreadable, quoted
from sparkcluster.node.pull_progress import Progress
from sparkcluster.node.shared import registry_of
from sparkcluster.node.wire import Failed

Request = dict[str, Any]
Ask = Callable[[str, str], dict[str, Any] | None]

_AGAIN_S = (2, 5, 10, 20, 30)  # before another attempt, where the registry or the engine broke off
_HUB = "https://index.docker.io/v1/"  # Docker Hub's name in config.json
_HUB_HOSTS = ("", "docker.io", "index.docker.io")
_HELPER_S = 20.0
# Of the engine, of containerd's resolver, and of registries; a layer's digest or a tag may have 401 in it.
_DENIED = re.compile(
    r"^(?:pull access denied|unauthorized|denied)\b|: (?:pull access denied|unauthorized|denied)\b"
    r"|unexpected status.*: (?:401|403)\b|(?:401 Unauthorized|403 Forbidden|no basic auth credentials)$"
)
_NO_BUILD = re.compile(r"no matching manifest for |no match for platform in manifest")


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


def pull_path(reference: str) -> str:
    """Path of the API that pulls ``reference``; without a tag it would pull all of the repository's."""
    name, at, tag = reference.partition("@")
    head, colon, last = name.rpartition(":")
    if colon and "/" not in last:
        name, tag = head, tag if at else last
    return "/images/create?fromImage=%s&tag=%s" % (quoted(name), quoted(tag or "latest"))


def auth_header(reference: str, config: dict[str, Any], ask: Ask) -> str | None:
    """Value of X-Registry-Auth by the user's ``config.json``; None without a login.

    ``ask`` returns what the credential helper of a name knows of a server.
    """
    host = registry_of(reference)
    server = _HUB if host in _HUB_HOSTS else host
    login: dict[str, Any] = {}
    try:
        helper = (config.get("credHelpers") or {}).get(server) or config.get("credsStore")
        found = (ask(helper, server) if helper else None) or {}
        if found.get("Username") == "<token>":
            login = {"identitytoken": found["Secret"]}
        elif found.get("Username"):
            login = {"username": found["Username"], "password": found["Secret"]}
        else:
            auths = config.get("auths") or {}
            entry: dict[str, Any] = auths.get(server) or next(
                (auths[name] for name in auths if _host(name) == server), {}
            )
            user, _, password = base64.b64decode(entry.get("auth") or "").decode().partition(":")
            if entry.get("identitytoken"):
                login = {"identitytoken": entry["identitytoken"]}
            elif user:
                login = {"username": user, "password": password.rstrip("\0")}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # not what docker login writes
    if not login:
        return None
    return base64.urlsafe_b64encode(json.dumps({**login, "serveraddress": server}).encode()).decode()


def user_config() -> dict[str, Any]:
    """What ``docker login`` has written for this user."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        return Machine().document(os.path.join(os.path.abspath(folder), "config.json"))
    except Unreadable:
        return {}


def ask_helper(name: str, server: str) -> dict[str, Any] | None:
    """What ``docker-credential-NAME`` knows of ``server``; None if that is nothing."""
    try:
        argv = ["docker-credential-" + name, "get"]
        found = json.loads(programs.run(argv, _HELPER_S, stdin=None, input=server.encode()))
    except (programs.Failed, ValueError):
        return None
    return found if isinstance(found, dict) else None


def kind_of(message: str, status: int = 0) -> str:
    """Kind of a failed pull, by the HTTP ``status`` of the engine where it has one, else by its message."""
    if status in (401, 403) or _DENIED.search(message):
        return "auth"
    if _NO_BUILD.search(message):
        return "platform"
    return "disk" if docker.disk_is_full(message) else "registry"


def _host(name: str) -> str:
    return name.partition("://")[2].partition("/")[0] if "://" in name else name.partition("/")[0]
