"""Root directories of virtual Sparks that run another Debian release than the machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sparkcluster.lab import rootfs, state
from sparkcluster.lab.machine import DEBIAN_PACKAGES

SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}
# Beside the programs that the lab starts: what the checks, the faults and their remedies use.
PACKAGES = ("python3", "iptables", "iputils-ping", *DEBIAN_PACKAGES.values())
EXTRA_PACKAGES = {"trixie": ("docker-cli",)}
"""Packages that a suite has split off from the ones above."""


def root(name: str) -> Path:
    """Root directory of ``machine`` or of a key of ``SUITES``, read-only: the lower layer of a Spark's overlay.

    The machine's own release needs no download.

    Raises:
        LabError: the machine's mirror has no such release.
    """
    source = None if name == "machine" else rootfs.apt_source()
    if source is None or source.suite == SUITES[name]:
        return Path("/")
    suite = SUITES[name]
    packages = sorted({*PACKAGES, *EXTRA_PACKAGES.get(suite, ())})
    source = dataclasses.replace(source, suite=suite)
    folder = rootfs.folder_of(name, [repr(source), *packages])
    with state.locked(folder / "lock"):
        if not (folder / "root").is_dir():
            rootfs.say(f"making a root of {name} by debootstrap, about a minute")
            with rootfs.scratch_directory() as scratch:
                rootfs.debootstrap(source, scratch / "root", packages)
                (scratch / "root").rename(folder / "root")
    return folder / "root"
