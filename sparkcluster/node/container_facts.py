"""Facts about Docker on this node."""

from __future__ import annotations

import re
from typing import Any

from sparkcluster.node.docker import in_containerd
from sparkcluster.node.machine import Machine

# Directories of CDI specifications (cncf-tags/container-device-interface, SPEC.md).
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_CONTAINERD_ROOT = "/var/lib/containerd"  # containerd's own default


def docker(machine: Machine) -> dict[str, Any]:
    """Facts about Docker.

    Raises:
        Unreadable: it does not answer, or this user has no permission.
    """
    info = machine.docker_document("/info")
    root = info.get("DockerRootDir", "")
    stored = in_containerd(info)
    # the system's containerd, not Docker's own
    shared = (info.get("Containerd") or {}).get("Address") == "/run/containerd/containerd.sock"
    cdi = cdi_specs(machine)
    return {
        "version": info["ServerVersion"],
        "storage_driver": info.get("Driver", ""),
        "root_dir": root,
        "images_dir": _CONTAINERD_ROOT if stored and shared else root,
        "runtimes": sorted(info.get("Runtimes") or {}),
        # Docker before 28.2 does not report them
        "cdi_devices": cdi_devices(cdi),
        "cdi_driver": cdi_driver(cdi),
        "cgroup_driver": info.get("CgroupDriver"),
        "containerd_store": stored,
        "snap": root.startswith("/var/snap/"),
    }


def cdi_specs(machine: Machine) -> list[str]:
    """Texts of the CDI specifications, in order of priority (later directories win)."""
    paths = ["%s/%s" % (folder, name) for folder in _CDI_DIRS for name in machine.names(folder)]
    return [machine.text(path, "") for path in paths if path.endswith((".yaml", ".yml", ".json"))]


def cdi_devices(specs: list[str]) -> list[str]:
    """Names of the devices in CDI specifications, such as ``nvidia.com/gpu=all``."""
    found: set[str] = set()
    for text in specs:
        kind = re.search(r'^\s*"?kind"?\s*:\s*"?([\w./-]+)', text, re.MULTILINE)
        # device names are directly in the list of devices; deeper names belong to hooks and mounts
        names = re.findall(r'^(?: {0,4}- |  | {4,8}")name"?\s*:\s*"?([\w.:-]+)', text, re.MULTILINE)
        if kind:
            found.update("%s=%s" % (kind.group(1), name) for name in names)
    return sorted(found)


def cdi_driver(specs: list[str]) -> str | None:
    """Driver version of the libraries that CDI mounts, such as 580.95.05; None if there is none.

    nvidia-ctk writes file names with the version, so after a driver update an old specification lists files that
    no longer exist.
    """
    for text in reversed(specs):
        found = re.search(r"/lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d{3}\.\d+(?:\.\d+)?)\b", text)
        if found:
            return found.group(1)
    return None
