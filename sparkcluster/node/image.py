"""Reads once what an image contains, and keeps it: an image ID is a hash, so its content never changes."""

from __future__ import annotations

import json
from typing import Any

from sparkcluster.node import common, container_facts, docker, engine, interpreter
from sparkcluster.node.machine import Machine, Unreadable, because, failed


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """What the image contains, as kept from an earlier run or read now: its engine facts, or ``{"unread": "why"}``.

    Args:
        request: state_dir, image_id (of this node's Docker engine) and keep (false: leave nothing on the node, the
            answer neither).
        machine: the node.
    """
    machine = machine or Machine()
    image_id = str(request["image_id"])
    state_dir = common.private(request["state_dir"])
    kept = container_facts.inside(machine, state_dir, image_id)
    if kept is not None:
        return kept
    try:
        found = dict(run(machine, image_id), asked=container_facts.INSPECTION, engine=engine.NAME)
        described = machine.docker_document(container_facts.image_path(image_id)) or {}
        found["family"] = family(described.get("Config") or {})
    except Exception as error:
        return {"unread": because(error)}
    if not request.get("keep", True):
        return found
    path = machine.at(container_facts.inside_path(state_dir, image_id))
    try:
        common.write_atomically(path, json.dumps(found, sort_keys=True).encode())
    except OSError:
        pass  # the next run reads the image again
    return found


def run(machine: Machine, image_id: str) -> dict[str, Any]:
    """What the image's Python reports.

    Its environment is left as the image sets it, PYTHONPATH too, since the engine runs in the same.

    Raises:
        Unreadable: it has no Python, or that did not answer.
    """
    for python in ("python3", "python"):
        exit_code, output = _docker_run(machine, image_id, python)
        if exit_code == 0:
            return interpreter.parse(output)
        if exit_code not in (docker.NOT_EXECUTABLE, docker.NOT_FOUND):
            raise failed("%s in the image" % python, exit_code, output)
    raise Unreadable("neither python3 nor python starts in the image")


def family(config: dict[str, Any]) -> str:
    """Who built the image: ``ngc`` (NVIDIA), ``upstream`` (the engine's makers), or ``other``."""
    entrypoint = config.get("Entrypoint") or []
    words = [entrypoint] if isinstance(entrypoint, str) else [str(word) for word in entrypoint]
    names = {str(each).partition("=")[0] for each in config.get("Env") or []}
    if engine.nvidias(config.get("Labels") or {}, names):
        return "ngc"
    return "upstream" if engine.built(words) else "other"


def _docker_run(machine: Machine, image_id: str, python: str) -> list[Any]:
    with docker.named("inspect", machine.run) as name:
        argv = docker.run_once(image_id, python, interpreter.SNIPPET, [*name, *docker.BESIDE])
        return list(machine.run(argv, docker.LOOK_S))
