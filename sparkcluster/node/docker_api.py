"""What the Docker CLI adds to a pull by the engine's API: names, logins, errors."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from typing import Any

from sparkcluster.node import docker, programs
from sparkcluster.node.machine import Machine, Unreadable, quoted
from sparkcluster.node.shared import registry_of

_HUB = "https://index.docker.io/v1/"  # Docker Hub's name in config.json
_HUB_HOSTS = ("", "docker.io", "index.docker.io")
_HELPER_S = 20.0
# Of the engine, of containerd's resolver, and of registries; a layer's digest or a tag may have 401 in it.
_DENIED = re.compile(
    r"^(?:pull access denied|unauthorized|denied)\b|: (?:pull access denied|unauthorized|denied)\b"
    r"|unexpected status.*: (?:401|403)\b|(?:401 Unauthorized|403 Forbidden|no basic auth credentials)$"
)
_NO_BUILD = re.compile(r"no matching manifest for |no match for platform in manifest")

Ask = Callable[[str, str], dict[str, Any] | None]


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
