"""The Docker engine of this node, and the playbook's image in it."""

from __future__ import annotations

import re
from typing import Any

from sparkcluster.node import engine
from sparkcluster.node.common import staged_as
from sparkcluster.node.docker import config_sum, in_containerd, is_whole
from sparkcluster.node.machine import Machine, Unreadable, quoted
from sparkcluster.node.shared import repository_of

# Where the CDI specification puts its files (cncf-tags/container-device-interface, SPEC.md).
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_CONTAINERD_ROOT = "/var/lib/containerd"  # containerd's own default
INSPECTION = 5  # version of what is read of an image; an older result is read again


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


def pullable(reference: str, digests: list[str]) -> str | None:
    """The name by digest under which any node can pull the image, None for one that came from no registry.

    ``digests`` are Docker's RepoDigests, of every repository that the image is known by here. A digest that the
    ``reference`` has is none of them where the image was loaded.
    """
    own, digest = repository_of(reference), reference.partition("@")[2]
    other = None if digest else next(iter(digests), None)
    return next((each for each in digests if repository_of(each) == own and each.endswith(digest)), other)


def image(machine: Machine, reference: str, state_dir: str) -> dict[str, Any] | None:
    """The image ``reference`` on this node; None if there is none, or nothing but its name.

    Raises:
        Unreadable: the Docker engine does not answer.
    """
    paths = dict.fromkeys((image_path(reference), image_path(staged_as(reference))))
    found = next(filter(None, map(machine.docker_document, paths)), None)
    if found is None or not is_whole(found):
        return None
    config = found.get("Config") or {}
    entrypoint = config.get("Entrypoint") or []
    return {
        "reference": reference,
        "id": _text(found, "Id"),
        "digest": pullable(reference, found.get("RepoDigests") or []),
        "layers": (found.get("RootFS") or {}).get("Layers") or [],
        "entrypoint": [entrypoint] if isinstance(entrypoint, str) else entrypoint,
        "user": str(config.get("User") or ""),
        "labels_vllm": (config.get("Labels") or {}).get(engine.LABEL) or None,
        "env_names": sorted({each.partition("=")[0] for each in config.get("Env") or []}),
        "config_sum": config_sum(config),
        "architecture": found.get("Architecture") or None,
        "size_bytes": int(found.get("Size") or 0),
        "inside": inside(machine, state_dir, _text(found, "Id")),
    }


def image_path(reference: str) -> str:
    """Path of an image in the Docker engine's API."""
    return "/images/%s/json" % quoted(reference)


def inside_path(state_dir: str, image_id: str) -> str:
    """File with the inspection of an image; it never changes, since the ID is a hash of the image."""
    return "%s/images/%s.json" % (state_dir, image_id.replace(":", "-"))


def inside(machine: Machine, state_dir: str, image_id: str) -> dict[str, Any] | None:
    """The stored inspection of the image; None if it was not inspected yet."""
    try:
        kept = machine.document(inside_path(state_dir, image_id))
    except Unreadable:
        return None
    # if another version wrote it, or it is damaged, the image is inspected again
    whole = all(isinstance(kept.get(key), str) for key in ("python", "python_version", "platform", "family"))
    same = kept.get("asked") == INSPECTION and kept.get("engine", "") == engine.NAME
    return kept if whole and same else None


def _text(document: dict[str, Any], key: str) -> str:
    return str(document.get(key) or "")
