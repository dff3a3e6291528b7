"""The Docker engine, the playbook's image in it, and the ranks that sparkcluster made on this node."""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import Any, Dict, List, Optional, Set, Tuple

from sparkcluster.node import engine
from sparkcluster.node.common import staged_as
from sparkcluster.node.machine import Machine, Unreadable, quoted
from sparkcluster.node.shared import LABEL_CLUSTER, RANK_FILE

# Where the CDI specification puts its files (cncf-tags/container-device-interface, SPEC.md).
_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
_CONTAINERD_ROOT = "/var/lib/containerd"  # containerd's own default
ASKED = 3  # of an image; what was read by an older version is read again
_STARTS_WITH = ("Entrypoint", "Cmd", "WorkingDir", "User")
_STATES = {"created": "created", "running": "running", "exited": "exited", "dead": "dead"}


def docker(machine: Machine) -> Dict[str, Any]:
    """The Docker engine.

    Raises:
        Unreadable: none answers, or this user may not ask it.
    """
    info = _get(machine, "/info")
    if not info.get("ServerVersion"):
        raise Unreadable("the Docker engine cannot describe itself: %s" % info.get("message", "empty answer"))
    root = _text(info, "DockerRootDir")
    in_containerd = any("io.containerd.snapshotter.v1" in str(pair) for pair in info.get("DriverStatus") or [])
    discovered = [each for each in info.get("DiscoveredDevices") or [] if isinstance(each, dict)]
    devices = [str(each.get("ID")) for each in discovered if each.get("Source") == "cdi" and each.get("ID")]
    cdi = cdi_specs(machine, [str(each) for each in info.get("CDISpecDirs") or _CDI_DIRS])
    return {
        "version": _text(info, "ServerVersion"),
        "storage_driver": _text(info, "Driver"),
        "root_dir": root,
        "images_dir": _CONTAINERD_ROOT if in_containerd and _system_containerd(info) else root,
        "runtimes": sorted(map(str, info.get("Runtimes") or {})),
        # engines before 28.2 do not report CDI devices, so the files are read
        "cdi_devices": sorted(devices) or cdi_devices(cdi),
        "cdi_driver": cdi_driver(cdi),
        "cgroup_driver": _text(info, "CgroupDriver") or None,
        "containerd_store": in_containerd,
        "snap": root.startswith("/var/snap/"),
    }


def cdi_specs(machine: Machine, folders: List[str]) -> List[str]:
    """Texts of the CDI specifications, in order of priority (later folders win)."""
    found = []
    for folder in folders:
        try:
            paths = ["%s/%s" % (folder, name) for name in machine.names(folder)]
            found += [machine.text(path) for path in paths if path.endswith((".yaml", ".yml", ".json"))]
        except Unreadable:
            continue
    return found


def cdi_devices(specs: List[str]) -> List[str]:
    """Names of the devices in CDI specifications, such as ``nvidia.com/gpu=all``."""
    found: Set[str] = set()
    for text in specs:
        kind = re.search(r'^\s*"?kind"?\s*:\s*"?([\w./-]+)', text, re.MULTILINE)
        # names of devices are directly in the list of devices; deeper ones are of hooks and mounts
        names = re.findall(r'^(?: {0,4}- |  | {4,8}")name"?\s*:\s*"?([\w.:-]+)', text, re.MULTILINE)
        if kind:
            found.update("%s=%s" % (kind.group(1), name) for name in names)
    return sorted(found)


def cdi_driver(specs: List[str]) -> Optional[str]:
    """Driver version of the libraries that CDI mounts, such as 580.95.05; None if there is none.

    nvidia-ctk writes file names with the version, so after a driver update an old specification lists files that
    no longer exist.
    """
    for text in reversed(specs):
        found = re.search(r"/lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so\.(\d{3}\.\d+(?:\.\d+)?)\b", text)
        if found:
            return found.group(1)
    return None


def _system_containerd(info: Dict[str, Any]) -> bool:
    """Whether the engine uses the system's containerd instead of its bundled one."""
    containerd = info.get("Containerd")
    return isinstance(containerd, dict) and containerd.get("Address") == "/run/containerd/containerd.sock"


def pullable(reference: str, digests: List[str]) -> Optional[str]:
    """The name by digest under which any node can pull the image, None for one that came from no registry.

    Args:
        reference: as the playbook names the image.
        digests: Docker's RepoDigests, of every repository that the image is known by here.
    """
    if "@" in reference:
        return reference
    head, colon, tag = reference.rpartition(":")
    repository = head if colon and "/" not in tag else reference
    for prefix in ("docker.io/", "library/"):
        repository = repository[len(prefix) :] if repository.startswith(prefix) else repository
    return next((each for each in digests if each.startswith(repository + "@")), next(iter(digests), None))


def image(machine: Machine, reference: str, state_dir: str) -> Optional[Dict[str, Any]]:
    """The image ``reference`` on this node; None if there is none.

    Raises:
        Unreadable: the Docker engine does not answer.
    """
    status, found = machine.docker("/images/%s/json" % quoted(reference))
    if status == 404 and "@" in reference:
        status, found = machine.docker("/images/%s/json" % quoted(staged_as(reference)))
    if status == 404:
        return None
    if status != 200 or not isinstance(found, dict):
        raise Unreadable("the Docker engine answers %d to %s" % (status, reference))
    config = found.get("Config") or {}
    entrypoint = config.get("Entrypoint") or []
    return {
        "reference": reference,
        "id": _text(found, "Id"),
        "digest": pullable(reference, found.get("RepoDigests") or []),
        "layers": (found.get("RootFS") or {}).get("Layers") or [],
        "entrypoint": [entrypoint] if isinstance(entrypoint, str) else entrypoint,
        "env_names": sorted({each.partition("=")[0] for each in config.get("Env") or []}),
        "config_sum": config_sum(config),
        "architecture": found.get("Architecture") or None,
        "size_bytes": int(found.get("Size") or 0),
        "inside": inside(machine, state_dir, _text(found, "Id")),
    }


def config_sum(config: Dict[str, Any]) -> str:
    """Checksum of how a container of the image starts; includes the values of variables, which stay on the node."""
    parts = [sorted(config.get("Env") or [])] + [config.get(key) or "" for key in _STARTS_WITH]
    return "%08x" % zlib.crc32(json.dumps(parts).encode())


def inside_path(state_dir: str, image_id: str) -> str:
    """File with the inspection of an image; it never changes, since the ID is a hash of the image."""
    return "%s/images/%s.json" % (state_dir, image_id.replace(":", "-"))


def inside(machine: Machine, state_dir: str, image_id: str) -> Optional[Dict[str, Any]]:
    """The stored inspection of the image; None if it was not inspected yet."""
    try:
        kept = machine.document(inside_path(state_dir, image_id))
    except Unreadable:
        return None
    # if another version wrote it, or it is damaged, the image is inspected again
    whole = all(isinstance(kept.get(key), str) for key in ("python", "python_version", "platform", "family"))
    same = kept.get("asked") == ASKED and kept.get("engine", "") == engine.NAME
    return kept if whole and same else None


def containers(machine: Machine) -> List[Dict[str, Any]]:
    """Every container that any sparkcluster started.

    Raises:
        Unreadable: the Docker engine does not answer.
    """
    filters = quoted(json.dumps({"label": [LABEL_CLUSTER]}))
    status, listed = machine.docker("/containers/json?all=1&filters=" + filters)
    if status != 200 or not isinstance(listed, list):
        raise Unreadable("the Docker engine answers %d to the list of containers" % status)
    found = []
    for each in listed:
        name = ((each.get("Names") or [""])[0]).lstrip("/") or each["Id"]
        try:
            details = _get(machine, "/containers/%s/json" % each["Id"]).get("State") or {}
        except Unreadable:
            details = {}  # removed since it was listed
        started = details.get("StartedAt") or ""
        record = {
            "name": name,
            "labels": each.get("Labels"),
            "image_id": each.get("ImageID"),
            "started_at": None if started.startswith("0001-") else started or None,
        }
        state = _STATES.get(_text(each, "State"), "unknown")
        exit_code = details.get("ExitCode") if state in ("exited", "dead") else None
        found.append(_rank(record, state, details.get("Pid") or None, exit_code))
    return sorted(found, key=lambda rank: str(rank["name"]))


def processes(machine: Machine, state_dir: str) -> List[Dict[str, Any]]:
    """Every rank of runtime ``process`` that was started below ``state_dir``."""
    found = []
    folders = ["%s/ranks" % state_dir]
    folders += ["%s/clusters/%s/ranks" % (state_dir, name) for name in machine.names(state_dir + "/clusters")]
    for folder in folders:
        for name in machine.names(folder):
            here = "%s/%s/" % (folder, name)
            if not machine.exists(here + RANK_FILE):
                continue
            try:
                record = machine.document(here + RANK_FILE)
                pid, ticks = int(record["pid"]), int(record["start_ticks"])
            except (Unreadable, KeyError, TypeError, ValueError):
                found.append(_rank({"name": name}, "unknown", None, None))
                continue
            if start_ticks(machine, pid) == ticks:
                found.append(_rank(record, "running", pid, None))
            else:
                code = machine.line(here + "exit")
                exit_code = int(code) if code and re.match(r"^-?\d+$", code) else None
                found.append(_rank(record, "exited", None, exit_code))
    return found


def start_ticks(machine: Machine, pid: int) -> Optional[int]:
    """Start time of process ``pid`` in ticks since boot; None if it has exited or is a zombie.

    With the ID alone, a later process with the same ID would be taken for the rank.
    """
    # the command name may contain blanks and brackets, so fields are counted from the last bracket
    fields = (machine.line("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X") or not fields[19].isdigit():
        return None
    return int(fields[19])


def _rank(record: Dict[str, Any], state: str, pid: Optional[int], exit_code: Optional[int]) -> Dict[str, Any]:
    labels = record.get("labels")
    started = record.get("started_at")
    return {
        "name": str(record.get("name")),
        "state": state,
        "exit_code": exit_code,
        "pid": pid,
        "image_id": record.get("image_id"),
        "started_at": None if started is None else str(started),
        "labels": {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {},
    }


def _get(machine: Machine, path: str) -> Dict[str, Any]:
    """The document at ``path`` of the Docker engine.

    Raises:
        Unreadable: it answers anything but 200 with an object.
    """
    answer: Tuple[int, Any] = machine.docker(path)
    status, document = answer
    if status != 200 or not isinstance(document, dict):
        raise Unreadable("the Docker engine answers %d to %s" % (status, os.path.basename(path)))
    return document


def _text(document: Dict[str, Any], key: str) -> str:
    return str(document.get(key) or "")
