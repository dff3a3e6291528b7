"""Root directories of virtual Sparks that run another Debian release or another Docker than the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sparkcluster.lab import rootfs, state
from sparkcluster.lab.machine import BARE_PACKAGES, DEBIAN_PACKAGES, run
from sparkcluster.lab.spec import SparkSpec

SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}
# Beside the programs that the lab starts: what the checks, the faults and their remedies use.
PACKAGES = ("python3", "iptables", "iputils-ping", *DEBIAN_PACKAGES.values())
EXTRA_PACKAGES = {"trixie": ("docker-cli",)}
"""Packages that a suite has split off from the ones above."""

NEWER_SUITE = "forky"
NEWER_PACKAGES = ("docker.io", "docker-cli", "containerd", "runc")
"""Docker 28.5 with containerd 2.1, which run on the libraries of Debian 13."""


def layers(spark: SparkSpec, *, bare: bool = False) -> list[Path]:
    """Directories below a Spark's own files, the topmost first.

    Raises:
        LabError: the machine's mirror lacks one of their releases.
    """
    newer = [newer_docker()] if spark.docker.endswith("-28") else []
    return [*newer, root(spark.system, bare=bare)]


def newer_docker() -> Path:
    """The files of ``NEWER_PACKAGES``, unpacked.

    Raises:
        LabError: they cannot be downloaded.
    """
    source = dataclasses.replace(rootfs.apt_source(), suite=NEWER_SUITE)
    folder = rootfs.folder_of("docker-28", [repr(source), *NEWER_PACKAGES])
    with state.locked(folder / "lock"):
        if not (folder / "root").is_dir():
            rootfs.say(f"downloading {' '.join(NEWER_PACKAGES)} of {NEWER_SUITE}")
            with rootfs.scratch_directory() as scratch:
                _unpack(source, scratch)
                (scratch / "root").rename(folder / "root")
    return folder / "root"


def _unpack(source: rootfs.Source, scratch: Path) -> None:
    """Download ``NEWER_PACKAGES`` as apt does, with lists of its own, and unpack them without installing."""
    signed = f"[signed-by={source.keyring}] " if source.keyring else ""
    (scratch / "list").write_text(f"deb {signed}{source.mirror} {source.suite} {' '.join(source.components)}\n")
    (scratch / "status").touch()
    for name in ("lists/partial", "archives/partial"):
        (scratch / name).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": scratch / "list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": scratch,
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch,
        "APT::Sandbox::User": "root",
    }
    apt = ["env", "-C", str(scratch), "apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    run([*apt, "--error-on=any", "update"], timeout_s=300)
    run([*apt, "download", *NEWER_PACKAGES], timeout_s=300)
    for package in scratch.glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(scratch / "root")])


def root(name: str, *, bare: bool = False) -> Path:
    """Root directory of ``machine`` or of a key of ``SUITES``, read-only: the lower layer of a Spark's overlay.

    For a ``bare`` Spark it has the programs that such a Spark needs, and dbus, which avahi-daemon requires by a virtual
    package that debootstrap does not resolve.

    The machine's own release needs no download.

    Raises:
        LabError: the machine's mirror has no such release.
    """
    source = None if name == "machine" else rootfs.apt_source()
    if source is None or source.suite == SUITES[name]:
        return Path("/")
    suite = SUITES[name]
    more = (*BARE_PACKAGES.values(), "dbus") if bare else ()
    packages = sorted({*PACKAGES, *EXTRA_PACKAGES.get(suite, ()), *more})
    source = dataclasses.replace(source, suite=suite)
    folder = rootfs.folder_of(name, [repr(source), *packages])
    with state.locked(folder / "lock"):
        if not (folder / "root").is_dir():
            rootfs.say(f"making a root of {name} by debootstrap, about a minute")
            with rootfs.scratch_directory() as scratch:
                rootfs.debootstrap(source, scratch / "root", packages)
                (scratch / "root").rename(folder / "root")
    return folder / "root"
