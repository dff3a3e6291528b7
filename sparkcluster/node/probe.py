"""Reads all facts of a node, in well under a second."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from sparkcluster.node import container_facts, gpu, image, image_layers, interpreter, network, ranks, storage, system
from sparkcluster.node.common import expand
from sparkcluster.node.machine import LIMIT_S, Machine, Readings, failed, unread
from sparkcluster.node.shared import COMPILERS, LABEL_CLUSTER

_NAME_S = 1.5  # for all DNS look-ups; an unreachable resolver takes 5 s or more
_ENGINE_S = 10.0  # without containers; normally 0.3 s, and required to start anything
# Readings for each requested release.
_OF_CLUSTER = ("release", "switch", "enabled", "lease", "staging")
_OF_RELEASE = ("image", "layers", "weights", "companions", *_OF_CLUSTER)


def main(request: dict[str, Any], _lines: Any = None, machine: Machine | None = None) -> dict[str, Any]:
    """Return the document that ``sparkcluster.facts`` parses.

    Args:
        request: cluster, state_dir, hf_home, image (reference or None), model (id, revision, path; or None),
            companions (like model), also (cluster, image, model and companions of other specs; their readings are in
            ``also`` of the document), runtime (docker or process), python (for runtime process, or None), names (to
            resolve on the node) and kernel_log (whether to read it).
        machine: the node.
    """
    machine = machine or Machine()
    began = time.monotonic()
    facts: dict[str, Any] = machine.identity()
    state_dir, hf_home = expand(request["state_dir"]), expand(request["hf_home"])
    cluster, names, in_docker = request["cluster"], request.get("names", ()), request["runtime"] == "docker"

    readings = Readings(LIMIT_S)
    value = readings.value
    readers: dict[str, Callable[[], Any]] = {
        "driver": lambda: gpu.driver(machine),
        "gpus": lambda: gpu.gpus(machine),
        "ranks": lambda: ranks.containers(machine, LABEL_CLUSTER) if in_docker else ranks.processes(machine, state_dir),
        "containers": lambda: ranks.others(machine),
        "disks": lambda: storage.disks(machine, state_dir, cluster, hf_home, value("docker")),
        "interfaces": lambda: network.interfaces(machine),
        "hcas": lambda: network.hcas(machine),
        "infiniband_devices": lambda: network.has_infiniband_devices(machine),
        "listeners": lambda: network.listeners(machine),
        "machine": lambda: system.machine_id(machine),
        "os": lambda: system.os_release(machine.text("/etc/os-release")),
        "dgx": lambda: system.dgx_release(machine.text("/etc/dgx-release")),
        "memory": lambda: system.meminfo(machine.text("/proc/meminfo")),
        "rays": lambda: storage.rays(machine, state_dir),
        "vocabularies": lambda: storage.vocabularies(machine, state_dir),
        "files": lambda: storage.files(machine, state_dir),
        "driver_module": lambda: gpu.module(machine, facts["kernel"]),
        "remove_ipc": lambda: system.remove_ipc(machine),
        "lingers": lambda: system.lingers(machine, facts["user"]),
        "firewall": lambda: system.firewall(machine),
        "compiler": lambda: next(filter(machine.exists, map("/usr/bin/".__add__, COMPILERS)), None),
        "kernel_log": lambda: system.kernel_log(machine) if request.get("kernel_log") else None,
        "boot_before": lambda: system.boot_before(machine) if request.get("kernel_log") else None,
    }
    readings.start("docker", lambda: container_facts.docker(machine))
    releases = [
        _of_release(machine, wanted, value, state_dir=state_dir, hf_home=hf_home)
        for wanted in (request, *(request.get("also") or ()))
    ]
    addresses = Readings(_NAME_S)
    for name in names:
        addresses.start(name, functools.partial(machine.resolve, name))
    engine = Readings(_ENGINE_S)
    engine.start("engine", lambda: None if in_docker else _engine(machine, request["python"]))
    facts.update(readings.all(readers), docker=value("docker"), engine=engine.value("engine"))
    own, *facts["also"] = [{key: each.value(key) for key in _OF_RELEASE} for each in releases]
    facts.update(own)
    facts["names"] = {name: addresses.value(name) for name in names}
    facts.update(reached_at=machine.reached_at(), state_dir=state_dir, hf_home=hf_home)
    facts["probe_s"] = round(time.monotonic() - began, 4)
    return facts


def _of_release(
    machine: Machine, wanted: dict[str, Any], value: Callable[[str], Any], *, state_dir: str, hf_home: str
) -> Readings:
    """Readers of the image, model and companions in ``wanted``, and of this node's files of its cluster."""
    reference, model, companions = wanted.get("image"), wanted.get("model"), wanted.get("companions") or ()
    readings = Readings(LIMIT_S)
    readings.start("image", lambda: image.facts(machine, reference, state_dir) if reference else None)
    readings.start(
        "layers",
        lambda: _layers(machine, state_dir, value("docker"), readings.value("image")) if reference else None,
    )
    readings.start("weights", lambda: storage.weights(machine, model, hf_home) if model else None)
    for key in _OF_CLUSTER:
        readings.start(key, functools.partial(getattr(storage, key), machine, state_dir, wanted["cluster"]))
    readings.start("companions", lambda: {each["id"]: storage.weights(machine, each, hf_home) for each in companions})
    return readings


def _layers(machine: Machine, state_dir: str, engine: Any, found: Any) -> dict[str, Any] | None:
    """Result of ``image_layers``, after engine and image were read; None if one of them cannot be."""
    return None if unread(engine) or unread(found) else image_layers.layers(machine, state_dir, engine, found)


def _engine(machine: Machine, python: str) -> dict[str, Any]:
    """The content of the engine's Python."""
    exit_code, output = machine.run([python, "-I", "-c", interpreter.SNIPPET], _ENGINE_S)
    if exit_code:
        raise failed(python, exit_code, output)
    return interpreter.parse(output)
