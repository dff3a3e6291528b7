"""Everything a node can say of itself, in one run of well under a second.

Readers run at the same time; one that fails or hangs costs its own reading and no other. What
could not be read is ``{"unread": "why"}``.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from sparkcluster.node import containers, engine, network, storage
from sparkcluster.node.machine import LIMIT_S, Machine, Unreadable, because

_QUERY = "name,compute_cap,driver_version,memory.total,power.draw,clocks.sm,utilization.gpu"
_GRACE_S = 0.3  # so that a program's own limit is told rather than ours
_MIB = 1024 * 1024


class Readings:
    """Runs readers side by side and keeps what each returned, until the limit is over."""

    def __init__(self) -> None:
        self._until = time.monotonic() + LIMIT_S + _GRACE_S
        self._values: Dict[str, Any] = {}
        self._threads: Dict[str, threading.Thread] = {}

    def start(self, key: str, reader: Callable[[], Any]) -> None:
        """Begin a reading; the thread is a daemon, so that a dead disk cannot keep the probe from ending."""

        def work() -> None:
            try:
                value = reader()
            except Exception as error:
                value = {"unread": because(error)}
            self._values[key] = value

        thread = threading.Thread(target=work, name=key, daemon=True)
        self._threads[key] = thread
        thread.start()

    def value(self, key: str) -> Any:
        """What the reader of ``key`` returned, or why it returned nothing."""
        self._threads[key].join(max(0.0, self._until - time.monotonic()))
        return self._values.get(key, {"unread": "no answer within %g s" % LIMIT_S})


def main(request: Dict[str, Any], _lines: Any = None) -> Dict[str, Any]:
    """Answer the document that ``sparkcluster.facts`` reads.

    Args:
        request: cluster, state_dir, hf_home, image (reference or None), model (id, revision, path; or None),
            runtime (docker or process) and python (of runtime process, or None).
    """
    return gather(request, Machine())


def gather(request: Dict[str, Any], machine: Machine) -> Dict[str, Any]:
    """The same, of any machine."""
    began = time.monotonic()
    facts = machine.identity()
    # the file first: it is what every other tool on the node reads
    facts["kernel"] = machine.line("/proc/sys/kernel/osrelease") or facts["kernel"]
    state_dir = absolute(request.get("state_dir") or "~/.local/state/sparkcluster", facts["home"])
    hf_home = absolute(request.get("hf_home") or "~/.cache/huggingface", facts["home"])
    cluster = str(request.get("cluster"))
    in_docker = request.get("runtime") != "process"
    reference, model = request.get("image"), request.get("model")
    if model and model.get("path"):
        model = dict(model, path=absolute(model["path"], facts["home"]))

    readings = Readings()
    start = readings.start
    start("smi", lambda: machine.run(["nvidia-smi", "--query-gpu=" + _QUERY, "--format=csv,noheader,nounits"]))
    start("header", lambda: machine.run(["nvidia-smi"]))
    start("docker", lambda: containers.docker(machine))
    start("image", lambda: containers.image(machine, reference, state_dir) if in_docker and reference else None)
    start("engine", lambda: None if in_docker else _engine(machine, request.get("python")))
    start(
        "ranks",
        lambda: containers.containers(machine) if in_docker else containers.processes(machine, state_dir),
    )
    start("weights", lambda: storage.weights(machine, model, hf_home) if model else None)
    start("disks", lambda: storage.disks(machine, [("state", state_dir), ("hf_home", hf_home)]))
    start("interfaces", lambda: network.interfaces(machine))
    start("hcas", lambda: network.hcas(machine))
    start("infiniband_devices", lambda: network.has_infiniband_devices(machine))
    start("listeners", lambda: network.listeners(machine))
    start("os", lambda: os_release(machine.text("/etc/os-release")))
    start("dgx", lambda: dgx_release(machine.text("/etc/dgx-release")))
    start("memory", lambda: meminfo(machine.text("/proc/meminfo")))
    start("release", lambda: storage.release(machine, state_dir, cluster))
    start("lease", lambda: storage.lease(machine, state_dir, cluster))
    start("rays", lambda: storage.rays(machine, state_dir))
    start("module", lambda: kernel_driver(machine.text("/proc/driver/nvidia/version")))

    docker = readings.value("docker")
    facts["docker"] = docker
    for key in ("image", "engine", "ranks", "weights", "interfaces", "hcas", "listeners"):
        facts[key] = readings.value(key)
    for key in ("os", "dgx", "memory", "release", "lease"):
        facts[key] = readings.value(key)
    facts["infiniband_devices"] = readings.value("infiniband_devices") is True
    brought = readings.value("rays")
    facts["rays"] = brought if isinstance(brought, list) else []
    facts["disks"] = disks = readings.value("disks")
    if isinstance(disks, list) and docker.get("root_dir"):
        start("docker_disk", lambda: storage.disks(machine, [("docker", docker["root_dir"])]))
        room = readings.value("docker_disk")
        facts["disks"] = disks + (room if isinstance(room, list) else [])
    smi = readings.value("smi")
    facts["gpus"] = _or_unread(lambda: gpus(smi))
    facts["driver"] = _driver(readings.value("module"), smi)
    facts["cuda"] = _or_unread(lambda: cuda(machine, readings.value("header")))
    facts["state_dir"], facts["hf_home"] = state_dir, hf_home
    facts["probe_s"] = round(time.monotonic() - began, 4)
    cleaned: Dict[str, Any] = _clean(facts)
    return cleaned


def absolute(path: str, home: str) -> str:
    """``path`` with ``~`` as this node's user means it."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(home, path))


def assignments(text: str) -> Dict[str, str]:
    """``NAME=value`` lines of a file in shell's form; the last line of a name wins, quotes are taken off."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and re.match(r"^[A-Za-z_]\w*$", name):
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found[name] = value
    return found


def os_release(text: str) -> Dict[str, str]:
    """``/etc/os-release``."""
    found = assignments(text)
    return {
        "id": found.get("ID", ""),
        "version": found.get("VERSION_ID", ""),
        "pretty_name": found.get("PRETTY_NAME", ""),
    }


def dgx_release(text: str) -> Dict[str, Optional[str]]:
    """``/etc/dgx-release``; every over-the-air update appends its lines. The serial number is left out."""
    found = assignments(text)
    if not any(name.startswith("DGX_") for name in found):
        raise Unreadable("no DGX_ lines: /etc/dgx-release")
    return {
        "name": found.get("DGX_NAME") or found.get("DGX_PRETTY_NAME") or "",
        "platform": found.get("DGX_PLATFORM") or None,
        "ota_version": found.get("DGX_OTA_VERSION") or None,
        "swbuild_version": found.get("DGX_SWBUILD_VERSION") or None,
    }


def meminfo(text: str) -> Dict[str, int]:
    """``/proc/meminfo`` in bytes."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    wanted = {
        "total_bytes": "MemTotal",
        "free_bytes": "MemFree",
        "available_bytes": "MemAvailable",
        "cached_bytes": "Cached",
        "swap_total_bytes": "SwapTotal",
        "swap_free_bytes": "SwapFree",
    }
    for name in wanted.values():
        if name not in found:
            raise Unreadable("no %s: /proc/meminfo" % name)
    return {key: found[name] for key, name in wanted.items()}


def kernel_driver(text: str) -> str:
    """Driver version in ``/proc/driver/nvidia/version``."""
    found = re.search(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\b", text, re.MULTILINE)
    if not found:
        raise Unreadable("no version: /proc/driver/nvidia/version")
    return found.group(1)


def gpus(smi: Any) -> List[Dict[str, Any]]:
    """GPUs that nvidia-smi listed; ``[N/A]`` and ``[Not Supported]`` are None."""
    found = []
    for fields in _smi_rows(smi):
        memory = _figure(fields[3])
        found.append(
            {
                "name": fields[0],
                "compute_capability": fields[1] if re.match(r"^\d+\.\d+$", fields[1]) else None,
                "memory_total_bytes": None if memory is None else int(memory) * _MIB,
                "power_w": _figure(fields[4]),
                "sm_clock_mhz": _figure(fields[5]),
                "utilization_percent": _figure(fields[6]),
            }
        )
    return found


def cuda(machine: Machine, header: Any) -> str:
    """CUDA version that the driver offers, else that of the toolkit on the host."""
    if isinstance(header, tuple):
        # "CUDA UMD Version" is what newer drivers call it
        found = re.search(r"CUDA(?: \w+)? Version\s*:\s*(\d+\.\d+)", header[1])
        if found:
            return found.group(1)
    try:
        version = machine.document("/usr/local/cuda/version.json")["cuda"]["version"]
        return ".".join(str(version).split(".")[:2])
    except (Unreadable, KeyError, TypeError):
        raise Unreadable("neither nvidia-smi nor /usr/local/cuda/version.json names it") from None


def _smi_rows(smi: Any) -> List[List[str]]:
    """Rows of nvidia-smi's answer.

    Raises:
        Unreadable: with its exit code and its own words.
    """
    if not isinstance(smi, tuple):
        raise Unreadable(smi["unread"])
    exit_code, output = smi
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if exit_code:
        raise Unreadable("nvidia-smi exit %d: %s" % (exit_code, lines[0] if lines else "no output"))
    rows = [[field.strip() for field in line.rsplit(",", 6)] for line in lines]
    if not rows or any(len(row) != 7 for row in rows):
        raise Unreadable("nvidia-smi: %s" % (lines[0] if lines else "no output"))
    return rows


def _driver(module: Any, smi: Any) -> Any:
    """The kernel module's version; nvidia-smi's own where the file is not there."""
    if isinstance(module, str):
        return module
    try:
        version = _smi_rows(smi)[0][2]
    except Unreadable as error:
        return {"unread": "%s; %s" % (module["unread"], error)}
    return version if re.match(r"^\d+\.\d", version) else module


def _engine(machine: Machine, python: Optional[str]) -> Dict[str, Any]:
    """What the engine's own Python holds."""
    exit_code, output = machine.run([python or "python3", "-I", "-c", engine.SNIPPET])
    if exit_code:
        last = (output.strip().splitlines() or ["no output"])[-1]
        raise Unreadable("%s exit %d: %s" % (python or "python3", exit_code, last))
    found = engine.parse(output)
    found["family"] = "other"
    return found


def _or_unread(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:
        return {"unread": because(error)}


def _figure(text: str) -> Optional[float]:
    """The number in a field of nvidia-smi, or None."""
    return float(text) if re.match(r"^\d+(\.\d+)?$", text) else None


def _clean(value: Any) -> Any:
    """``value`` without the lone surrogates of names that are no UTF-8, which JSON readers refuse."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    return value
