"""A container started by a user: the output of ``docker inspect`` and its processes."""

from __future__ import annotations

import binascii
from typing import Any

from sparkcluster.node import docker
from sparkcluster.node.machine import Machine, Unreadable, because, quoted

_LIMIT_S = 20.0
# Uses no programs that an image may lack; base64, since arguments may contain newlines and `ps` joins them with spaces.
_LIST = """cd /proc; for p in [0-9]*; do
echo "$p $(base64 -w0 $p/cmdline) $(base64 -w0 $p/environ)"; done 2>/dev/null"""


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """``{"documents": [container, image, processes]}``, ``{"names": running containers}`` or ``{"unread": why}``.

    Args:
        request: name of the container; ``engines``, words of which each engine's command contains one. The environment
            of other processes is not sent.
        machine: the node.
    """
    machine = machine or Machine("/", _LIMIT_S)
    try:
        container = machine.docker_document("/containers/%s/json" % quoted(request["name"]))
        if container is None:
            listed = machine.docker_document("/containers/json", list) or []
            return {"names": sorted((each.get("Names") or ["?"])[0].lstrip("/") for each in listed)}
        image = machine.docker_document("/images/%s/json" % quoted(str(container.get("Image"))))
        running = (container.get("State") or {}).get("Running")
        found = _processes(machine, request["name"], request["engines"]) if running else []
    except Unreadable as error:
        return {"unread": because(error)}
    return {"documents": [container, *([image] if image else []), {"Processes": found}]}


def _processes(machine: Machine, name: str, engines: list[str]) -> list[dict[str, Any]]:
    """Processes in a running container, oldest first."""
    _, output = machine.run(docker.execute(name, "sh", "-c", _LIST), _LIMIT_S)
    found = []
    for line in output.splitlines():
        number, *parts = line.split(" ")
        argv, environ = [binascii.a2b_base64(part).decode("utf-8", "replace").split("\0")[:-1] for part in parts]
        if argv and _LIST not in argv:
            is_engine = any(word in each for each in argv for word in engines)
            found.append((int(number), {"Argv": argv, "Environ": environ if is_engine else []}))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]
