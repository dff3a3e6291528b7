"""A control group for each virtual Spark; Docker's groups are below it and are removed with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sparkcluster.lab.machine import mount

ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> dict[str, Path]:
    """Mount options and mount point of every hierarchy of this machine.

    On cgroup v1 the key is an option of ``mount -o`` (``cpu,cpuacct``, ``none,name=systemd``). On v2 it is empty, and
    there is one entry. A hybrid machine counts as v1: its unified tree has no controllers.
    """
    v1: dict[str, Path] = {}
    v2: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount_fields, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split(" ", 2)
        point = Path(mount_fields.split(" ")[4])
        if kind == "cgroup2":
            v2.setdefault("", point)
        elif kind == "cgroup":
            names = [name for name in options.split(",") if name not in ("rw", "ro", "xattr", "clone_children")]
            key = ",".join(name for name in names if not name.startswith("release_agent"))
            v1.setdefault("none," + key if key.startswith("name=") else key, point)
    return v1 or v2


def make(name: str, memory_bytes: int) -> None:
    """Create the group ``name`` in every hierarchy, with a memory limit, ready for processes."""
    for options, point in hierarchies().items():
        group = point / name
        group.mkdir(exist_ok=True)
        if "cpuset" in options.split(","):
            # A v1 cpuset accepts no process until it has CPUs and memory nodes.
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((point / file).read_text())
        if not options:
            _enable_all(point)
        for limit in (group / "memory.max", group / "memory.limit_in_bytes"):
            if limit.exists():
                limit.write_text(str(memory_bytes))


def join(name: str) -> None:
    """Move this process into the group ``name``."""
    for point in hierarchies().values():
        (point / name / "cgroup.procs").write_text("0")


def mount_hierarchies(target: Path) -> None:
    """Mount the hierarchies of this cgroup namespace (its root is the Spark's group) below ``target``."""
    here = hierarchies()
    if list(here) == [""]:
        mount("cgroup2", target, "cgroup2")
        # A v2 group with processes cannot delegate controllers: move ours into a leaf first.
        leaf = target / "init"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
        _enable_all(target)
        return
    mount("tmpfs", target, "tmpfs", data="mode=755")
    for options, point in here.items():
        inside = target / point.name
        inside.mkdir()
        mount("cgroup", inside, "cgroup", data=options)


def _enable_all(group: Path) -> None:
    for controller in (group / "cgroup.controllers").read_text().split():
        # Some controllers cannot be delegated on some machines; Docker works without them.
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def processes(name: str) -> set[int]:
    """Process IDs on this machine of all processes in and below the group ``name``."""
    found: set[int] = set()
    for group in _groups(name):
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
    return found - {0}


def remove(name: str) -> bool:
    """Remove the group ``name`` and all below it; return whether it is gone."""
    for group in sorted(_groups(name), key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            group.rmdir()
    return not any((point / name).exists() for point in hierarchies().values())


def _groups(name: str) -> Iterator[Path]:
    for point in hierarchies().values():
        for directory, _, _ in os.walk(point / name):
            yield Path(directory)
