"""The Docker engine of this node."""

from __future__ import annotations

import re
from typing import Any

from sparkcluster.node.docker import in_containerd
from sparkcluster.node.machine import Machine, Unreadable

# Where the CDI specification puts its files (cncf-tags/container-device-interface, SPEC.md).
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_CONTAINERD_ROOT = "/var/lib/containerd"  # containerd's own default


def docker(machine: Machine) -> dict[str, Any]:
    """The Docker engine.

    Raises:
        Unreadable: none answers, or this user has no permission.
    """
    info = machine.docker_document("/info") or {}
    if not info.get("ServerVersion"):
        raise Unreadable("the Docker engine reports no version: %s" % info.get("message", "empty answer"))
    root = _text(info, "DockerRootDir")
    stored = in_containerd(info)
    containerd = info.get("Containerd")
    # the system's instead of the one that the engine brings
    shared = isinstance(containerd, dict) and containerd.get("Address") == "/run/containerd/containerd.sock"
    discovered = [each for each in info.get("DiscoveredDevices") or [] if isinstance(each, dict)]
    devices = [str(each.get("ID")) for each in discovered if each.get("Source") == "cdi" and each.get("ID")]
    cdi = cdi_specs(machine, [str(each) for each in info.get("CDISpecDirs") or _CDI_DIRS])
    return {
        "version": _text(info, "ServerVersion"),
        "storage_driver": _text(info, "Driver"),
        "root_dir": root,
        "images_dir": _CONTAINERD_ROOT if stored and shared else root,
        "runtimes": sorted(map(str, info.get("Runtimes") or {})),
        # engines before 28.2 do not report CDI devices, so the files are read
        "cdi_devices": sorted(devices) or cdi_devices(cdi),
        "cdi_driver": cdi_driver(cdi),
        "cgroup_driver": _text(info, "CgroupDriver") or None,
        "containerd_store": stored,
        "snap": root.startswith("/var/snap/"),
    }


def cdi_specs(machine: Machine, folders: list[str]) -> list[str]:
    """Texts of the CDI specifications, in order of priority (later folders win)."""
    found = []
    for folder in folders:
        try:
            paths = ["%s/%s" % (folder, name) for name in machine.names(folder)]
            found += [machine.text(path) for path in paths if path.endswith((".yaml", ".yml", ".json"))]
        except Unreadable:
            continue
    return found


def cdi_devices(specs: list[str]) -> list[str]:
    """Names of the devices in CDI specifications, such as ``nvidia.com/gpu=all``."""
    found: set[str] = set()
    for text in specs:
        kind = re.search(r'^\s*"?kind"?\s*:\s*"?([\w./-]+)', text, re.MULTILINE)
        # names of devices are directly in the list of devices; deeper ones are of hooks and mounts
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


def _text(document: dict[str, Any], key: str) -> str:
    return str(document.get(key) or "")
