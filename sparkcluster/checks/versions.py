"""Checks that the nodes of a group have the same system, kernel, driver, firmware and time."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from sparkcluster.checks.check import REBOOT, Context, Seen, check, interconnect_check
from sparkcluster.checks.compare import outliers
from sparkcluster.checks.gpu import DEADLOCKS, SERIES, modules
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.findings import Remedy, edit, on_node
from sparkcluster.printable import shell

INSTALL = "sudo apt-get update && sudo apt-get install -y"
UPDATE = (on_node("sudo apt update && sudo apt full-upgrade -y"), REBOOT)
SAME_VERSIONS = (edit("install the same versions for runtime.python on every node, or set another Python there"),)
FIRMWARE = (on_node("sudo fwupdmgr refresh --force && sudo fwupdmgr upgrade"), REBOOT)
# Hosts synchronised by NTP agree within milliseconds. Log lines of ranks are ordered by time, and ranks crash within
# a second of each other; certificates of hubs and registries fail if the clock is minutes off.
SKEW_S = 1.0
GRAVE_SKEW_S = 30.0


@interconnect_check(
    "HOST-007",
    "The operating system and its update are the same on every node",
    needs=("os",),
    severity="warning",
    source="NVIDIA DGX Spark user guide, system updates; owners' reports: compare DGX_OTA_VERSION",
    remedy=UPDATE,
)
def system(context: Context) -> Iterator[Seen]:
    """Kernel, driver and firmware of an update belong together; a launch may fail on nodes with another update.

    Compares the newest DGX_OTA_VERSION of /etc/dgx-release among machines of the same platform. A machine that was
    never updated has none and is ignored. DGX_SWBUILD_VERSION is not compared: it differs between equal nodes.
    """
    yield from _different(context, "the operating system", UPDATE, _system)
    platforms = {dgx.platform for facts in context.facts.values() if (dgx := read(facts.dgx)) is not None}
    for platform in platforms:
        yield from _different(context, "the system update", UPDATE, functools.partial(_ota, platform))


@interconnect_check(
    "HOST-008",
    "The kernel is the same on every node",
    severity="warning",
    source="NVIDIA DGX Spark forum: nodes with different kernels hang in their first collective",
    remedy="install the same linux-image with its linux-modules-nvidia, then reboot",
)
def kernel(context: Context) -> Iterator[Seen]:
    """Different kernels have different RDMA and driver modules, and hang or fail without a clear message."""
    for group in context.topology.groups:
        for outlier in outliers({name: context.facts[name].kernel for name in group.names}):
            version = outlier.value if outlier.newer else outlier.expected
            packages = f"linux-image-{version}", f"linux-modules-nvidia-{SERIES}-open-{version}"
            remedy = outlier.update(on_node(shell(INSTALL, *packages)), REBOOT)
            yield Seen(f"{outlier.node} has a different kernel than others", outlier.seen, remedy, node=outlier.node)


@interconnect_check(
    "HOST-009",
    "The driver is the same on every node",
    severity="warning",
    source="NVIDIA DGX Spark forum; practitioners' reports on two-node clusters",
    remedy="install the same driver packages on every node, then reboot",
)
def driver(context: Context) -> Iterator[Seen]:
    """Ranks with different drivers use different GPU kernels and hang in a collective, or a single rank fails."""
    for group in context.topology.groups:
        if not context.docker:
            continue
        for outlier in outliers({name: read(context.facts[name].driver) for name in group.names}, _works):
            # Never recommend a series that deadlocks (HOST-010), even if it is newer.
            follow = outlier.newer and _works(outlier.value)
            facts = context.facts[outlier.others[0] if follow else outlier.node]
            series = (outlier.value if follow else outlier.expected).split(".")[0]
            packages = f"nvidia-driver-{series}-open", modules(facts).replace(SERIES, series, 1)
            commands = (on_node(shell(INSTALL, *packages)), REBOOT)
            remedy = outlier.update(*commands) if follow else commands
            yield Seen(f"{outlier.node} has a different driver than others", outlier.seen, remedy, node=outlier.node)


def _works(version: str) -> bool:
    return version.split(".", maxsplit=1)[0] != DEADLOCKS


@interconnect_check(
    "HOST-012",
    "The firmware of HCAs and GPU is the same",
    needs=("hcas",),
    severity="warning",
    source="all DGX Sparks and OEM units in public reports have 28.45.4028; VBIOS 9A.0B.25 and 9A.0B.2D",
    remedy=FIRMWARE,
)
def firmware(context: Context) -> Iterator[Seen]:
    """Ports with different firmware negotiate less than full speed, or lose the link when the other node reboots.

    A different VBIOS is info: power limits and clocks may differ, and the slowest GPU limits the group.
    """
    yield from _different(
        context,
        "the firmware of its HCAs",
        FIRMWARE,
        lambda facts: " and ".join(sorted({hca.firmware for hca in read(facts.hcas) or () if hca.firmware})) or None,
    )
    for seen in _different(context, "the VBIOS", FIRMWARE, _vbios) if context.docker else ():
        yield dataclasses.replace(seen, severity="info")


@interconnect_check(
    "IMG-005",
    "The engine's versions are the same on every node",
    source="ray-project: `Version mismatch: The cluster was started with …`",
    remedy=SAME_VERSIONS,
)
def engines(context: Context) -> Iterator[Seen]:
    """Ray rejects its members with `Version mismatch`, and ranks of different versions wait for each other forever.

    Only for runtime `process`; IMG-001 compares images. A warning if only torch or NCCL differ.
    """
    for package, version in _PACKAGES.items() if not context.docker else ():
        title = package or context.engine.title
        for seen in _different(context, f"the version of {title}", SAME_VERSIONS, version):
            yield dataclasses.replace(seen, severity="warning" if package in {"torch", "NCCL"} else "error")


@check(
    "HOST-017",
    "The clocks agree",
    severity="warning",
    source="timedatectl(1)",
    remedy=(on_node("sudo timedatectl set-ntp true"), on_node("timedatectl timesync-status")),
    step="clock",
)
def clock(context: Context) -> Iterator[Seen]:
    """Log lines of ranks cannot be ordered, and connections to hubs fail with `certificate is not yet valid`.

    Synchronized nodes agree within milliseconds. More than a second plus the measurement error is info, more
    than 30 s is a warning. The reference is the median of the nodes and this machine.
    """
    offsets = {name: facts.clock_offset_s for name, facts in context.facts.items() if facts.clock_offset_s is not None}
    if not offsets:
        return
    # This machine has offset 0.
    reference = median([0.0, *offsets.values()]) if len(offsets) > 1 else 0.0
    for name, offset in offsets.items():
        skew = offset - reference
        certain = abs(skew) - (context.facts[name].clock_error_s or 0.0)
        if certain > SKEW_S:
            yield Seen(
                f"the clock of {name} is {'ahead' if skew > 0 else 'behind'}",
                f"by {abs(skew):.1f} s against the others",
                severity="warning" if certain > GRAVE_SKEW_S else "info",
                node=name,
            )


def _engine(version: Callable[[EngineFacts], str | None]) -> Callable[[Facts], str | None]:
    """Reader of an engine version in facts; None without an engine."""
    return lambda facts: version(found) if (found := engine_of(facts)) is not None else None


# Python without its patch version, as packages are built for it; the empty name stands for the engine.
_PACKAGES = {
    "": _engine(lambda engine: engine.version),
    "Ray": _engine(lambda engine: engine.ray_version),
    "Python": _engine(lambda engine: ".".join(re.findall(r"\d+", engine.python_version)[:2])),
    "torch": _engine(lambda engine: engine.torch_version),
    "NCCL": _engine(lambda engine: engine.nccl_loaded),
}


def _system(facts: Facts) -> str | None:
    release = read(facts.os)
    return None if release is None else f"{release.id} {release.version}"


def _ota(platform: str | None, facts: Facts) -> str | None:
    dgx = read(facts.dgx)
    return dgx.ota_version if dgx is not None and dgx.platform == platform else None


def _vbios(facts: Facts) -> str | None:
    return next((gpu.vbios for gpu in read(facts.gpus) or ()), None)


def _different(
    context: Context, subject: str, commands: Sequence[Remedy], value: Callable[[Facts], str | None]
) -> Iterator[Seen]:
    """A finding for every node whose value differs from the majority of its group."""
    for group in context.topology.groups:
        for outlier in outliers({name: value(context.facts[name]) for name in group.names}):
            summary = f"{subject} of {outlier.node} differs from the others"
            yield Seen(summary, outlier.seen, outlier.update(*commands), node=outlier.node)
