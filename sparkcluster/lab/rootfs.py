"""Root file systems: Debian or Ubuntu from the machine's apt sources, or another release from the same mirror.

Built by debootstrap, once per recipe, and kept in the cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab.engine.install import cache_directory
from sparkcluster.lab.machine import run

# Packages of the engine's image besides Python: the libraries of vLLM's CPU build, and a C compiler, which every image
# with Triton has (the launcher compiles a small library with it).
LIGHT_PACKAGES = ("python3", "ibverbs-providers")  # the latter includes libibverbs, which NCCL loads
ENGINE_PACKAGES = ("gcc", "libnuma1", "libgomp1", "procps", "iproute2")
# Required by the gateway; every image of vLLM has them.
STUB_PACKAGES = ("python3-aiohttp", "python3-prometheus-client")
_LEFT_OUT = (
    "./var/lib/apt/lists/*",
    "./var/cache/apt/*",
    "./var/cache/debconf/*",
    "./var/log/*",
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
    "./usr/share/info/*",
    "./etc/resolv.conf",
    "./etc/hostname",
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Mirror, suite and components of the machine's distribution."""

    mirror: str
    suite: str
    components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Base:
    """A root file system as a tar file, and its version of Python (such as 3.11)."""

    archive: Path
    python: str


def apt_source(release: str | None = None) -> Source:
    """The mirror of the machine's release from its apt sources, or with another ``release``.

    Raises:
        LabError: no mirror found.
    """
    system = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=\"?([\w-]+)", system, re.MULTILINE)
    suite = found[1] if found else ""
    wanted = ("main", "universe") if re.search(r"^ID=\"?ubuntu", system, re.MULTILINE) else ("main",)
    argv = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    rows = [line.split() for line in run(argv).stdout.splitlines()]
    mirrors = {uri: [row[2] for row in rows if row[:2] == [uri, suite]] for uri, name, _ in rows if name == suite}
    for mirror, components in mirrors.items():
        return Source(mirror.rstrip("/"), release or suite, tuple(name for name in wanted if name in components))
    raise LabError(
        f"the apt sources of this machine list no mirror of {suite or 'its own release'}",
        step="build image",
        hint="sudo apt-get update, and see /etc/apt/sources.list",
    )


def light() -> Base:
    """The smallest system with Python and the RDMA libraries."""
    source = apt_source()
    folder = folder_of("light", [repr(source), *LIGHT_PACKAGES])
    if not (folder / "about.json").is_file():
        say("creating a small Debian with debootstrap (about a minute)")
        with scratch_directory() as scratch:
            root = scratch / "root"
            debootstrap(source, root, LIGHT_PACKAGES)
            _pack(root, folder)
    return _read_base(folder)


def full(packages: Iterable[str]) -> Base:
    """The system for an engine that also needs ``packages``."""
    base, names = light(), sorted(packages)
    folder = folder_of("full", [str(base.archive.parent.name), *names])
    if not (folder / "about.json").is_file():
        say(f"installing {' '.join(names)} in it")
        with unpacked(base) as root:
            shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
            run(["chroot", str(root), "apt-get", "-q", "update"], env=quiet, timeout_s=300)
            install = ["apt-get", "-q", "install", "-y", "--no-install-recommends", *names]
            run(["chroot", str(root), *install], env=quiet, timeout_s=600)
            _pack(root, folder)
    return _read_base(folder)


def say(line: str) -> None:
    """Write a progress line to stderr."""
    sys.stderr.write(f"lab: {line}\n")
    sys.stderr.flush()


@contextmanager
def unpacked(base: Base) -> Iterator[Path]:
    """A copy of the root file system in a folder that is removed afterwards."""
    with scratch_directory() as scratch:
        root = scratch / "root"
        root.mkdir()
        run(["tar", "-C", str(root), "--numeric-owner", "-xpf", str(base.archive)], timeout_s=300)
        yield root


def debootstrap(source: Source, root: Path, packages: Iterable[str]) -> None:
    """Create ``root`` with ``packages`` and their dependencies.

    Raises:
        LabError: it failed, or the mirror has no such release.
    """
    parts = [f"--include={','.join(packages)}", f"--components={','.join(source.components)}"]
    argv = ["debootstrap", "--variant=minbase", *parts, source.suite, str(root), source.mirror]
    try:
        # debootstrap of Debian 12 does not know this release
        run([*argv, *(["/usr/share/debootstrap/scripts/sid"] if source.suite == "forky" else [])], timeout_s=900)
    except LabError as error:
        if "Failed getting release file" not in str(error) and "No such script" not in str(error):
            raise
        raise LabError(
            f"{source.mirror} has no release {source.suite}",
            step="build image",
            hint="remove `system` from the spec, or add a mirror of Debian to /etc/apt/sources.list.d",
        ) from error


def _pack(root: Path, folder: Path) -> None:
    """Store ``root`` in the cache; the file that marks it as complete is written last."""
    python = run(["chroot", str(root), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "root.tar.part"
    run(tar(root, fresh), timeout_s=300)
    fresh.replace(folder / "root.tar")
    (folder / "about.json").write_text(json.dumps({"python": python.stdout.strip()}) + "\n")


def tar(root: Path, archive: Path | None = None) -> list[str]:
    """Command that packs a root file system reproducibly, sorted and without times, into a file or to stdout."""
    excludes = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    fixed = ["--sort=name", "--mtime=@0", "--numeric-owner", "--format=posix"]
    fixed.append("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime")
    return ["tar", "-C", str(root), *fixed, *excludes, "-cf", str(archive) if archive else "-", "."]


def _read_base(folder: Path) -> Base:
    about = json.loads((folder / "about.json").read_text())
    return Base(folder / "root.tar", about["python"])


def folder_of(kind: str, parts: list[str]) -> Path:
    """Directory in the cache for a build from ``parts``."""
    made_of = [*parts, os.uname().machine, *_LEFT_OUT]
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:12]
    return cache_directory() / "lab" / "base" / f"{kind}-{digest}"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A folder on the cache's file system, removed afterwards."""
    parent = cache_directory() / "lab" / "scratch"
    parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
