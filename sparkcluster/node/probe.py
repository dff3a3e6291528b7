"""Reads all facts of a node in well under a second.

Readers run concurrently; one that fails or hangs does not affect the others. A failed reading is
``{"unread": "why"}``.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import Any, Callable, Dict, Optional

from sparkcluster.node import container_facts, gpu, interpreter, network, storage, system
from sparkcluster.node.machine import LIMIT_S, Machine, Unreadable, because

_GRACE_S = 0.3  # so that the limit of a program ends first and is reported
_NAME_S = 1.5  # for all look-ups; an unreachable resolver takes 5 s and more
_ENGINE_S = 10.0  # without containers; 0.3 s, and without an answer nothing can be started
_DEPTH = 60  # of nesting; readers of the document have a limit, too


class Readings:
    """Runs readers concurrently, with a time limit for each."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._values: Dict[str, Any] = {}
        self._threads: Dict[str, threading.Thread] = {}

    def start(self, key: str, reader: Callable[[], Any]) -> None:
        """Start a reading; its thread is a daemon, so that a hanging disk does not block the probe."""

        def work() -> None:
            try:
                value = _clean(reader())
            except Exception as error:
                value = {"unread": because(error)}
            self._values[key] = value

        thread = threading.Thread(target=work, name=key, daemon=True)
        self._threads[key] = thread
        thread.start()

    def value(self, key: str, limit_s: Optional[float] = None) -> Any:
        """Result of the reader of ``key``, or why there is none; ``limit_s`` counts from the start of the probe."""
        limit_s = LIMIT_S if limit_s is None else limit_s
        until = self._began + limit_s + _GRACE_S
        self._threads[key].join(max(0.0, until - time.monotonic()))
        return self._values.get(key, {"unread": "no answer within %g s" % limit_s})


def main(request: Dict[str, Any], _lines: Any = None) -> Dict[str, Any]:
    """Return the document that ``sparkcluster.facts`` parses.

    Args:
        request: cluster, state_dir, hf_home, image (reference or None), model (id, revision, path; or None),
            runtime (docker or process), python (of runtime process, or None), names (to be resolved here) and
            kernel_log (whether it is wanted).
    """
    return gather(request, Machine())


def gather(request: Dict[str, Any], machine: Machine) -> Dict[str, Any]:
    """As ``main``, for any machine."""
    began = time.monotonic()
    facts = machine.identity()
    # the file first, as other tools on the node do
    facts["kernel"] = machine.line("/proc/sys/kernel/osrelease") or facts["kernel"]
    state_dir = absolute(request.get("state_dir") or "~/.local/state/sparkcluster", facts["home"])
    hf_home = absolute(request.get("hf_home") or "~/.cache/huggingface", facts["home"])
    cluster = str(request.get("cluster"))
    in_docker = request.get("runtime") != "process"
    reference, model = request.get("image"), request.get("model")
    if model and model.get("path"):
        model = dict(model, path=absolute(model["path"], facts["home"]))

    facts["reached_at"] = machine.reached_at()
    names = [str(name) for name in request.get("names") or ()]

    readings = Readings()
    start = readings.start
    for name in names:
        start("name " + name, functools.partial(machine.resolve, name))
    start("loaded", lambda: gpu.loaded(machine.text("/proc/driver/nvidia/version")))
    start("smi", lambda: gpu.smi(machine))
    start("cuda", lambda: gpu.cuda(machine, readings.value("loaded")))
    start("docker", lambda: container_facts.docker(machine))
    start("image", lambda: container_facts.image(machine, reference, state_dir) if in_docker and reference else None)
    start("engine", lambda: None if in_docker else _engine(machine, request.get("python")))
    start(
        "ranks",
        lambda: container_facts.containers(machine) if in_docker else container_facts.processes(machine, state_dir),
    )
    start("weights", lambda: storage.weights(machine, model, hf_home) if model else None)
    start("disks", lambda: storage.disks(machine, [("state", state_dir), ("hf_home", hf_home)]))
    start("interfaces", lambda: network.interfaces(machine))
    start("hcas", lambda: network.hcas(machine))
    start("infiniband_devices", lambda: network.has_infiniband_devices(machine))
    start("listeners", lambda: network.listeners(machine))
    start("os", lambda: system.os_release(machine.text("/etc/os-release")))
    start("dgx", lambda: system.dgx_release(machine.text("/etc/dgx-release")))
    start("memory", lambda: system.meminfo(machine.text("/proc/meminfo")))
    start("release", lambda: storage.release(machine, state_dir, cluster))
    start("lease", lambda: storage.lease(machine, state_dir, cluster))
    start("rays", lambda: storage.rays(machine, state_dir))
    start("driver_module", lambda: gpu.module(machine, facts["kernel"]))
    start("remove_ipc", lambda: system.remove_ipc(machine))
    start("lingers", lambda: system.lingers(machine, facts["user"]))
    start("firewall", lambda: system.firewall(machine))
    start("kernel_log", lambda: system.kernel_log(machine) if request.get("kernel_log") else None)

    docker = readings.value("docker")
    facts["docker"] = docker
    facts["engine"] = readings.value("engine", _ENGINE_S)
    for key in ("image", "ranks", "weights", "interfaces", "hcas", "listeners", "os", "dgx", "memory"):
        facts[key] = readings.value(key)
    for key in ("release", "lease", "cuda", "driver_module", "remove_ipc", "kernel_log"):
        facts[key] = readings.value(key)
    facts["infiniband_devices"] = readings.value("infiniband_devices") is True
    facts["lingers"] = readings.value("lingers") is True
    brought, firewall = readings.value("rays"), readings.value("firewall")
    facts["rays"] = brought if isinstance(brought, list) else []
    facts["firewall"] = firewall if isinstance(firewall, str) else None
    facts["disks"] = disks = readings.value("disks")
    if isinstance(disks, list) and docker.get("images_dir"):
        start("docker_disk", lambda: storage.disks(machine, [("docker", docker["images_dir"])]))
        room = readings.value("docker_disk")
        facts["disks"] = disks + (room if isinstance(room, list) else [])
    smi = readings.value("smi")
    facts["gpus"] = _or_unread(lambda: gpu.gpus(smi))
    facts["driver"] = gpu.driver(readings.value("loaded"), smi)
    facts["names"] = {name: readings.value("name " + name, _NAME_S) for name in names}
    facts["state_dir"], facts["hf_home"] = state_dir, hf_home
    facts["probe_s"] = round(time.monotonic() - began, 4)
    cleaned: Dict[str, Any] = _clean(facts)
    return cleaned


def absolute(path: str, home: str) -> str:
    """``path`` with ``~`` expanded for this node's user."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(home, path))


def _engine(machine: Machine, python: Optional[str]) -> Dict[str, Any]:
    """What the engine's own Python holds."""
    exit_code, output = machine.run([python or "python3", "-I", "-c", interpreter.SNIPPET], _ENGINE_S)
    if exit_code:
        last = (output.strip().splitlines() or ["no output"])[-1]
        raise Unreadable("%s exit %d: %s" % (python or "python3", exit_code, last))
    found = interpreter.parse(output)
    found["family"] = "other"
    return found


def _or_unread(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:
        return {"unread": because(error)}


def _clean(value: Any, depth: int = 0) -> Any:
    """``value`` without lone surrogates (from names that are not UTF-8), which JSON readers refuse.

    Raises:
        Unreadable: it is nested too deeply.
    """
    if depth > _DEPTH:
        raise Unreadable("nested deeper than %d levels" % _DEPTH)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_clean(each, depth + 1) for each in value)
    return value
