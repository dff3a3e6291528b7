"""Adapts a container's configuration to this machine, just before runc reads it."""

from __future__ import annotations

import json
import os
import resource
from typing import Any

from . import gpu

CAP_SYS_RESOURCE = 24


def fit_container(args: list[str]) -> int:
    """Adapt ``--bundle DIRECTORY`` (a new container) or ``--process FILE`` (a command in a container).

    Limits that this machine may not grant (it lacks CAP_SYS_RESOURCE, as many virtual machines do) are lowered to its
    own, since runc would reject them. A container on the host's network sees the Spark's /sys/class, as on a real
    Spark, and every container its /proc/meminfo.
    """
    option, path = args
    if option == "--bundle":
        path += "/config.json"
    with open(path) as file:
        config: dict[str, Any] = json.load(file)
    if not may_raise_limits():
        clip(config["process"] if option == "--bundle" else config)
    if option == "--bundle":
        show_memory(config)
        show_hardware(config)
        bring_nvidia_smi(config, path.rpartition("/")[0])
    with open(path, "w") as file:
        json.dump(config, file)
    return 0


def may_raise_limits() -> bool:
    """Whether this process may raise a hard limit."""
    with open("/proc/self/status") as file:
        effective = next(line for line in file if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> CAP_SYS_RESOURCE & 1)


def clip(process: dict[str, Any]) -> None:
    """Lower the limits of an OCI process to the limits of this process."""
    for limit in process.get("rlimits") or ():
        hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if hard != resource.RLIM_INFINITY:
            limit["hard"], limit["soft"] = min(limit["hard"], hard), min(limit["soft"], hard)


def show_memory(config: dict[str, Any]) -> None:
    """Mount the Spark's /proc/meminfo into a container; the file is written in place, so it stays up to date."""
    bind = {"destination": "/proc/meminfo", "type": "bind", "source": "/proc/meminfo", "options": ["bind", "ro"]}
    config["mounts"].append(bind)


def show_hardware(config: dict[str, Any]) -> None:
    """Mount the simulated parts of /sys into a container that shares the Spark's network."""
    private = [entry["type"] for entry in config["linux"]["namespaces"] if not entry.get("path")]
    if "network" not in private:
        for place in ("/sys/class", "/sys/devices/virtual/net"):
            bind = {"destination": place, "type": "bind", "source": place, "options": ["rbind", "ro"]}
            config["mounts"].append(bind)


def bring_nvidia_smi(config: dict[str, Any], bundle: str) -> None:
    """Mount a program that lists the GPU into a container with ``--gpus``, like NVIDIA's toolkit."""
    environment = dict(each.partition("=")[::2] for each in config["process"].get("env", ()))
    if "utility" not in environment.get("NVIDIA_DRIVER_CAPABILITIES", "").split(","):
        return
    source = bundle + "/nvidia-smi"
    with open(source, "w") as file:
        file.write("#!/bin/sh\necho 'GPU 0: %s (UUID: %s)'\n" % (gpu.NAME, gpu.FIELDS["uuid"]))
    os.chmod(source, 0o755)
    bind = {"destination": "/usr/bin/nvidia-smi", "type": "bind", "source": source, "options": ["bind", "ro"]}
    config["mounts"].append(bind)
