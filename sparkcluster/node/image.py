"""An image in this node's Docker: its metadata, its content, and the GPUs of its containers.

The content is read once and cached: an image ID is a hash, so its content never changes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

from sparkcluster.node import common, docker, engine, interpreter
from sparkcluster.node.machine import Machine, Unreadable, because, failed, quoted
from sparkcluster.node.shared import repository_of, staged_as

INSPECTION = 6  # version of the inspection; results of older ones are discarded
# Without `utility` the toolkit does not add nvidia-smi (NVIDIA Container Toolkit, "Driver Capabilities").
_GPUS = ("--gpus", "all", "--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
_TOOLKIT = "nvidia-container-cli: .*"


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """The content of the image, or with ``count`` its containers' GPUs; ``{"unread": "why"}`` if that is unknown.

    Args:
        request: image_id, in this node's Docker; count (``gpus``), or state_dir and keep (false: write nothing on the
            node).
        machine: the node.
    """
    machine = machine or Machine()
    try:
        return (gpus if request.get("count") else inspect)(machine, request)
    except Exception as error:
        return {"unread": because(error)}


def gpus(machine: Machine, request: dict[str, Any]) -> dict[str, Any]:
    """``{"gpus": N}``; null if the container has no nvidia-smi, which proves nothing.

    nvidia-smi creates no CUDA context: next to a model that fills the memory, one could bring the node down.
    """
    code, output = run(machine, request["image_id"], ["nvidia-smi", "-L"], _GPUS)
    said = re.search(_TOOLKIT, output)
    if said is None and code in (docker.NOT_EXECUTABLE, docker.NOT_FOUND):
        return {"gpus": None}
    if code:
        # The last line of Docker's output refers to its help.
        said = said or re.search(r".*\S.*", output)
        raise Unreadable(said[0].strip() if said else "nvidia-smi exit %d" % code)
    return {"gpus": sum(line.startswith("GPU ") for line in output.splitlines())}


def inspect(machine: Machine, request: dict[str, Any]) -> dict[str, Any]:
    """The engine facts of the image, from the cache or read now.

    Raises:
        Unreadable: it has no Python, or its Python did not answer.
    """
    image_id = str(request["image_id"])
    state_dir = common.private(request["state_dir"])
    kept = inside(machine, state_dir, image_id)
    if kept is not None:
        return kept
    described = machine.docker_document(image_path(image_id)) or {}
    found = {
        **python_of(machine, image_id),
        "asked": INSPECTION,
        "engine": engine.NAME,
        "family": family(described.get("Config") or {}),
    }
    if request.get("keep", True):
        with contextlib.suppress(OSError):  # the next run reads the image again
            path = machine.at(inside_path(state_dir, image_id))
            common.write_atomically(path, json.dumps(found, sort_keys=True).encode())
    return found


def python_of(machine: Machine, image_id: str) -> dict[str, Any]:
    """The report of the image's Python.

    Its environment is unchanged, including PYTHONPATH, since the engine runs in the same one.
    """
    exit_code, output = run(machine, image_id, ["python3", "-c", interpreter.SNIPPET])
    if exit_code:
        raise failed("python3 in the image", exit_code, output)
    return interpreter.parse(output)


def run(machine: Machine, image_id: str, words: Sequence[str], options: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and output of a program in a container of the image."""
    with docker.named("inspect", machine.run) as name:
        return machine.run(docker.run_program(image_id, words, [*name, *docker.BESIDE, *options]), docker.LOOK_S)


def family(config: dict[str, Any]) -> str:
    """Who built the image: ``ngc`` (NVIDIA), ``upstream`` (the engine's project), or ``other``."""
    names = {str(each).partition("=")[0] for each in config.get("Env") or []}
    if engine.is_nvidia_image(config.get("Labels") or {}, names):
        return "ngc"
    return "upstream" if engine.is_official(config.get("Entrypoint") or []) else "other"


def pullable(reference: str, digests: list[str]) -> str | None:
    """The name by digest under which any node can pull the image; None for an image from no registry.

    ``digests`` are Docker's RepoDigests, of every repository that the image is known by here. If the image was loaded,
    they do not include the digest of the ``reference``.
    """
    own, digest = repository_of(reference), reference.partition("@")[2]
    other = None if digest else next(iter(digests), None)
    return next((each for each in digests if repository_of(each) == own and each.endswith(digest)), other)


def facts(machine: Machine, reference: str, state_dir: str) -> dict[str, Any] | None:
    """The image ``reference`` on this node; None if it is missing or incomplete.

    Raises:
        Unreadable: Docker does not answer.
    """
    paths = dict.fromkeys((image_path(reference), image_path(staged_as(reference))))
    found = next(filter(None, map(machine.docker_document, paths)), None)
    if found is None or not docker.is_whole(found):
        return None
    config = found.get("Config") or {}
    return {
        "reference": reference,
        "id": str(found.get("Id") or ""),
        "digest": pullable(reference, found.get("RepoDigests") or []),
        "layers": (found.get("RootFS") or {}).get("Layers") or [],
        "entrypoint": config.get("Entrypoint") or [],
        "user": str(config.get("User") or ""),
        "label_version": (config.get("Labels") or {}).get(engine.LABEL) or None,
        "env_names": sorted({each.partition("=")[0] for each in config.get("Env") or []}),
        "config_sum": docker.config_sum(config),
        "architecture": found.get("Architecture") or None,
        "size_bytes": int(found.get("Size") or 0),
        "inside": inside(machine, state_dir, str(found.get("Id") or "")),
    }


def image_path(reference: str) -> str:
    """Path of an image in Docker's API."""
    return "/images/%s/json" % quoted(reference)


def inside_path(state_dir: str, image_id: str) -> str:
    """File with the cached inspection of an image; never changes, since the ID is a hash of the image."""
    return "%s/images/%s.json" % (state_dir, image_id.replace(":", "-"))


def inside(machine: Machine, state_dir: str, image_id: str) -> dict[str, Any] | None:
    """The cached inspection of the image; None if there is none."""
    try:
        kept = machine.document(inside_path(state_dir, image_id))
    except Unreadable:
        return None
    # written by another version: inspect the image again
    return kept if kept.get("asked") == INSPECTION and kept.get("engine", "") == engine.NAME else None
