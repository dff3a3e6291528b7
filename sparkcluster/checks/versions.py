"""Checks that the nodes of a group have the same system, kernel, driver, firmware and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from sparkcluster.checks.compare import Outlier, outliers
from sparkcluster.checks.gpu import DEADLOCKS, SERIES, modules
from sparkcluster.checks.registry import Context, Seen, check, interconnect_check
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.printable import shell

INSTALL = "sudo apt-get update && sudo apt-get install -y"
UPDATE = ("sudo apt update && sudo apt full-upgrade -y", "sudo reboot")
FIRMWARE = ("sudo fwupdmgr refresh --force && sudo fwupdmgr upgrade", "sudo reboot")
# Hosts synchronised by NTP agree within milliseconds. Log lines of ranks are ordered by time, and ranks crash within
# a second of each other; certificates of hubs and registries fail if the clock is minutes off.
SKEW_S = 1.0
GRAVE_SKEW_S = 30.0


@interconnect_check(
    "HOST-007",
    "The operating system is the same on every node",
    needs=("os",),
    severity="warning",
    source="NVIDIA DGX Spark user guide, system updates",
    remedy="update the older node",
)
def system(context: Context) -> Iterator[Seen]:
    """What works on one node fails on the other, and published reports do not apply to your cluster."""
    yield from _different(context, "the operating system", UPDATE, _system)


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
            remedy = outlier.update(shell(INSTALL, *packages), "sudo reboot")
            yield _outlier(outlier, f"{outlier.node} has another kernel than the others", remedy)


@interconnect_check(
    "HOST-009",
    "The driver is the same on every node",
    severity="warning",
    source="NVIDIA DGX Spark forum; practitioners' reports on two-node clusters",
    remedy="install the same driver packages on every node, then reboot",
)
def driver(context: Context) -> Iterator[Seen]:
    """Ranks with different drivers choose different kernels and hang in a collective, or a single rank fails."""
    for group in context.topology.groups:
        if not context.docker:
            continue
        for outlier in outliers({name: read(context.facts[name].driver) for name in group.names}, _works):
            # Never recommend a series that deadlocks, however new: that is HOST-010.
            follow = outlier.newer and _works(outlier.value)
            facts = context.facts[outlier.others[0] if follow else outlier.node]
            series = (outlier.value if follow else outlier.expected).split(".")[0]
            packages = f"nvidia-driver-{series}-open", modules(facts).replace(SERIES, series, 1)
            commands = (shell(INSTALL, *packages), "sudo reboot")
            remedy = outlier.update(*commands) if follow else commands
            yield _outlier(outlier, f"{outlier.node} has another driver than the others", remedy)


def _works(version: str) -> bool:
    return version.split(".", maxsplit=1)[0] != DEADLOCKS


@interconnect_check(
    "HOST-011",
    "The system update is the same on every node",
    severity="warning",
    source="DGX Spark owners' reports: compare DGX_OTA_VERSION, never DGX_SWBUILD_VERSION",
    remedy="sudo apt full-upgrade and fwupdmgr upgrade on the older node",
)
def ota(context: Context) -> Iterator[Seen]:
    """An update contains kernel, driver and firmware that belong together; a mix of two updates causes failures.

    Compares the newest DGX_OTA_VERSION of /etc/dgx-release among machines of the same platform. A machine that was
    never updated has none and is ignored. DGX_SWBUILD_VERSION is not compared: it differs between equal nodes.
    """
    for group in context.topology.groups:
        platforms: dict[str | None, dict[str, str | None]] = {}
        for name in group.names:
            dgx = read(context.facts[name].dgx)
            if dgx is not None:
                platforms.setdefault(dgx.platform, {})[name] = dgx.ota_version
        for versions in platforms.values():
            for outlier in outliers(versions):
                summary = f"{outlier.node} has another system update than the others"
                yield _outlier(outlier, summary, outlier.update(*UPDATE))


@interconnect_check(
    "HOST-012",
    "The firmware of all HCAs is the same",
    needs=("hcas",),
    severity="warning",
    source="all DGX Sparks and OEM units in public reports have 28.45.4028",
    remedy="sudo fwupdmgr upgrade on the older node",
)
def firmware(context: Context) -> Iterator[Seen]:
    """Ports with different firmware negotiate less than full speed, or lose the link when the other node reboots."""
    yield from _different(
        context,
        "the firmware of its HCAs",
        FIRMWARE,
        lambda facts: " and ".join(sorted({hca.firmware for hca in read(facts.hcas) or () if hca.firmware})) or None,
    )


@interconnect_check(
    "HOST-013",
    "The VBIOS is the same on every node",
    severity="info",
    source="public reports list 9A.0B.25 and 9A.0B.2D",
    remedy="sudo fwupdmgr upgrade on the older node",
)
def vbios(context: Context) -> Iterator[Seen]:
    """Power limits and clocks may differ, and the slowest GPU limits the group."""
    if context.docker:
        yield from _different(
            context,
            "the VBIOS",
            FIRMWARE,
            lambda facts: next((gpu.vbios for gpu in read(facts.gpus) or ()), None),
        )


@check(
    "HOST-017",
    "The clocks agree",
    severity="warning",
    source="timedatectl(1)",
    remedy="sudo timedatectl set-ntp true",
    step="clock",
)
def clock(context: Context) -> Iterator[Seen]:
    """Log lines of ranks cannot be ordered, and hubs and registries refuse with `certificate is not yet valid`.

    Synchronised nodes agree within milliseconds. More than a second plus the error of the measurement is reported for
    information, more than 30 s is a warning. The reference is the median of the nodes and this machine.
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
                ("sudo timedatectl set-ntp true", "timedatectl timesync-status"),
                severity="warning" if certain > GRAVE_SKEW_S else "info",
                node=name,
            )


def _system(facts: Facts) -> str | None:
    release = read(facts.os)
    return None if release is None else f"{release.id} {release.version}"


def _outlier(outlier: Outlier, summary: str, remedy: tuple[str, ...]) -> Seen:
    return Seen(summary, outlier.seen, remedy, node=outlier.node)


def _different(
    context: Context, subject: str, commands: tuple[str, ...], value: Callable[[Facts], str | None]
) -> Iterator[Seen]:
    """A finding for every node of a group whose value differs from that of the majority."""
    for group in context.topology.groups:
        for outlier in outliers({name: value(context.facts[name]) for name in group.names}):
            yield _outlier(outlier, f"{subject} of {outlier.node} differs from the others", outlier.update(*commands))
