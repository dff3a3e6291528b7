"""Root directories of virtual Sparks that run another Debian release than the machine."""

from __future__ import annotations

from pathlib import Path

from sparkcluster.lab import rootfs, state
from sparkcluster.lab.machine import BARE_PACKAGES, DEBIAN_PACKAGES

SUITES = {"debian-12": "bookworm", "debian-13": "trixie", "debian-14": "forky"}
# In addition to the programs that the lab starts: programs for the checks, the faults and their remedies.
PACKAGES = ("python3", "iptables", "iputils-ping", *DEBIAN_PACKAGES.values())
EXTRA_PACKAGES = {"trixie": ("docker-cli",), "forky": ("docker-cli",)}
"""Packages that a suite has split off from the packages above."""


def root(name: str, *, bare: bool = False) -> Path:
    """Root directory for ``machine`` or a key of ``SUITES``, read-only: the lower layer of a Spark's overlay.

    For ``bare`` it includes the programs of a bare Spark, and dbus, which avahi-daemon requires by a virtual package
    that debootstrap does not resolve.

    The machine's own release needs no download.

    Raises:
        LabError: the machine's mirror has no such release.
    """
    if name == "machine" or rootfs.apt_source().suite == SUITES[name]:
        return Path("/")
    source = rootfs.apt_source(SUITES[name])
    more = (*BARE_PACKAGES.values(), "dbus") if bare else ()
    packages = sorted({*PACKAGES, *EXTRA_PACKAGES.get(source.suite, ()), *more})
    folder = rootfs.folder_of(name, [repr(source), *packages])
    with state.locked(folder / "lock"):
        if not (folder / "root").is_dir():
            rootfs.say(f"creating a root of {name} with debootstrap (about a minute)")
            with rootfs.scratch_directory() as scratch:
                rootfs.debootstrap(source, scratch / "root", packages)
                (scratch / "root").rename(folder / "root")
    return folder / "root"
