"""Pulls an image from its registry to this node.

Docker ends a pull when the connection that requested it ends, so the request comes from a job (``job``), which survives
a lost connection of the operator. It changes only Docker's image store, and ends automatically. The request has ``do``
(run or cancel), ``reference``, ``tag`` (a name to give the image, or None), and the lease. Each reference has one job,
in ``state_dir/pulls/HASH``.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import docker, job, programs
from sparkcluster.node.machine import Machine, Unreadable, quoted
from sparkcluster.node.shared import registry_of, repository_of, staged_as
from sparkcluster.node.wire import Failed

Request = dict[str, Any]
Layers = dict[str, tuple[int, int | None]]
"""Per layer the bytes downloaded, and its size, None until Docker reports it."""

_HUB = "https://index.docker.io/v1/"  # Docker Hub in config.json
_LOADED = ("Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists")
# Messages of Docker, of containerd's resolver, and of registries; a layer's digest or a tag may contain 401.
_DENIED = re.compile(
    r"^(?:pull access denied|unauthorized|denied)\b|: (?:pull access denied|unauthorized|denied)\b"
    r"|unexpected status.*: (?:401|403)\b|(?:401 Unauthorized|403 Forbidden|no basic auth credentials)$"
)
_NO_BUILD = re.compile(r"no matching manifest for |no match for platform in manifest")


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Pull, or cancel the pull; answers as ``wire.answer``."""
    key = json.dumps([request["reference"], request.get("tag")])
    return job.answer(request, stdin, "pulls", key, lambda own: pull(request, own.say))


def pull(request: Request, say: Callable[[dict[str, int]], None]) -> dict[str, int]:
    """Pull the image and tag it; ``say`` gets the ``bytes`` downloaded, and their ``total``, 0 until known.

    They are equal while Docker unpacks; containerd's image store may not report that (moby#49064).
    """
    layers: Layers = {}
    said, reported_at, status = {"bytes": 0, "total": 0}, time.monotonic(), ""
    for document in _pulled(request["reference"]):
        status = str(document.get("status"))
        found, now = count(layers, document), time.monotonic()
        if found != said and (found["bytes"] == found["total"] or now - reported_at >= job.PAUSE_S):
            said, reported_at = found, now
            say(said)
    if not status.startswith("Status: "):
        raise Failed("docker", "Docker ended the pull without a result")
    image = programs.inspect(docker.inspect_image(request["reference"]))
    if image is not None and not docker.is_whole(image):
        raise Failed("blobs", "it was pulled without its layers")
    if request.get("tag"):
        programs.run(docker.tag(request["reference"], staged_as(request["tag"])))
    return {"bytes": sum(done for done, _ in layers.values())}


def count(layers: Layers, document: dict[str, Any]) -> dict[str, int]:
    """Update ``layers`` from a document of Docker's stream; return the total bytes."""
    name, status, detail = str(document.get("id")), document.get("status"), document.get("progressDetail") or {}
    done, size = layers.get(name, (0, None))
    if status == "Pulling fs layer":
        layers[name] = 0, None
    elif status == "Downloading" and detail:
        left = detail.get("total", 0)  # for a resumed request, the remaining bytes
        size = max(size or 0, left)
        layers[name] = size - left + detail.get("current", 0), size
    elif status in _LOADED:
        layers[name] = size or done, size or done
    sizes = [size for _, size in layers.values()]
    total = 0 if None in sizes else sum(filter(None, sizes))
    return {"bytes": sum(done for done, _ in layers.values()), "total": total}


def _pulled(reference: str) -> Iterator[dict[str, Any]]:
    """Docker's progress documents of a pull, which lasts as long as this connection."""
    login = auth_header(reference, _config())
    headers = ["Content-Length: 0"] + (["X-Registry-Auth: " + login] if login else [])
    try:
        with Machine().docker_stream(pull_path(reference), None, "POST", headers) as (status, body):
            for document in map(json.loads, body):
                message = document.get("error") if status == 200 else document["message"]
                if message:
                    raise Failed(kind_of(message, status), message)
                yield document
    except Unreadable as error:
        raise Failed("docker", str(error)) from None


def pull_path(reference: str) -> str:
    """API path that pulls ``reference``; without a tag, Docker would pull all tags of the repository."""
    name, _, digest = reference.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "/images/create?fromImage=%s&tag=%s" % (quoted(repository_of(name)), quoted(digest or tag or "latest"))


def auth_header(reference: str, config: dict[str, Any]) -> str | None:
    """Value of X-Registry-Auth from the user's ``config.json`` or its credential helper; None without a login."""
    host = registry_of(reference)
    server = _HUB if host in ("", "docker.io", "index.docker.io") else host
    helper = config.get("credHelpers", {}).get(server) or config.get("credsStore")
    if helper:
        found = ask_helper(helper, server)
        user, secret = found.get("Username"), found.get("Secret")
    else:
        entry = config.get("auths", {}).get(server, {})
        user, _, secret = base64.b64decode(entry.get("auth", "")).decode().partition(":")
        if entry.get("identitytoken"):
            user, secret = "<token>", entry["identitytoken"]  # as helpers return it
    if not user:
        return None
    login = {"identitytoken": secret} if user == "<token>" else {"username": user, "password": secret}
    return base64.urlsafe_b64encode(json.dumps({**login, "serveraddress": server}).encode()).decode()


def _config() -> dict[str, Any]:
    """The file written by ``docker login`` for this user."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        return Machine().document(os.path.join(os.path.abspath(folder), "config.json"))
    except Unreadable:
        return {}


def ask_helper(name: str, server: str) -> dict[str, str]:
    """Login for ``server`` from ``docker-credential-NAME``; empty if it has none."""
    try:
        output = programs.run(["docker-credential-" + name, "get"], sent=server.encode())
    except programs.Failed:
        return {}
    return dict(json.loads(output))


def kind_of(message: str, status: int) -> str:
    """Kind of a failed pull, from Docker's HTTP ``status`` or its message."""
    if status in (401, 403) or _DENIED.search(message):
        return "auth"
    if _NO_BUILD.search(message):
        return "platform"
    return "disk" if docker.disk_is_full(message) else "registry"
