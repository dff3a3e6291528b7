"""Checks that the nodes of a group are alike: system, kernel, driver, firmware, clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from statistics import median

from sparkcluster.checks.compare import Odd, odd_ones, order
from sparkcluster.checks.gpu import DEADLOCKS, SERIES, modules
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Facts, read

UPDATE = ("sudo apt update && sudo apt full-upgrade -y", "sudo reboot")
FIRMWARE = ("sudo fwupdmgr refresh --force && sudo fwupdmgr upgrade", "sudo reboot")
# Hosts that keep time by NTP are within milliseconds. Logs of ranks are put in order by their times, and ranks die
# within a second of one another; certificates of hubs and registries fail by minutes.
SKEW_S = 1.0
GRAVE_SKEW_S = 30.0


@check(
    "HOST-007",
    "The operating system is the same on every node",
    needs=("os",),
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark user guide, system updates",
    remedy="bring the older node up to date",
)
def system(context: Context) -> Iterator[Seen]:
    """What serves on one node fails on the other, and reports of others cannot be compared with yours."""
    yield from _alike(context, "the operating system", UPDATE, _system)


@check(
    "HOST-008",
    "The kernel is the same on every node",
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark forum: nodes of unlike kernels hang in their first collective",
    remedy="the same linux-image, with its linux-modules-nvidia, and a reboot",
)
def kernel(context: Context) -> Iterator[Seen]:
    """Nodes of unlike kernels differ in RDMA and in the driver's modules, and hang or fail without a hint."""
    for group in context.topology.groups:
        for odd in odd_ones({name: context.facts[name].kernel for name in group.names}):
            version = odd.value if odd.newer else odd.wanted
            package = f"linux-image-{version} linux-modules-nvidia-{SERIES}-open-{version}"
            yield Seen(
                odd.node,
                f"{odd.node} has another kernel than the others",
                odd.seen,
                odd.behind(f"sudo apt-get update && sudo apt-get install -y {package}", "sudo reboot"),
            )


@check(
    "HOST-009",
    "The driver is the same on every node",
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark forum; practitioners' reports on two-node clusters",
    remedy="the same driver packages on every node, and a reboot",
)
def driver(context: Context) -> Iterator[Seen]:
    """Ranks on unlike drivers choose unlike kernels and hang in a collective, or one of them fails alone."""
    for group in context.topology.groups:
        if not context.docker:
            continue
        for odd in _drivers({name: read(context.facts[name].driver) for name in group.names}):
            # Nobody is sent to a series that deadlocks, however new it is: that is HOST-010.
            follow = odd.newer and odd.value.split(".")[0] != DEADLOCKS
            facts = context.facts[odd.others[0] if follow else odd.node]
            series = (odd.value if follow else odd.wanted).split(".")[0]
            packages = f"nvidia-driver-{series}-open {modules(facts).replace(SERIES, series, 1)}"
            commands = (f"sudo apt-get update && sudo apt-get install -y {packages}", "sudo reboot")
            yield Seen(
                odd.node,
                f"{odd.node} has another driver than the others",
                odd.seen,
                odd.behind(*commands) if follow else commands,
            )


def _drivers(values: Mapping[str, str | None]) -> list[Odd]:
    """As ``odd_ones``, but that a series that deadlocks is never what the others should have."""
    sane = {name: value for name, value in values.items() if value and value.split(".")[0] != DEADLOCKS}
    if not sane:
        return odd_ones(values)
    counts = Counter(sane.values())
    right = max(counts, key=lambda value: (counts[value], order(value)))
    have = tuple(name for name, value in sane.items() if value == right)
    rest = {name: value for name, value in values.items() if value and name not in sane}
    return [*odd_ones(sane), *(Odd(name, value, right, have, even=False) for name, value in rest.items())]


@check(
    "HOST-011",
    "The system update is the same on every node",
    severity="warning",
    scope="interconnect",
    source="DGX Spark owners' reports: compare DGX_OTA_VERSION, never DGX_SWBUILD_VERSION",
    remedy="sudo apt full-upgrade and fwupdmgr upgrade on the older node",
)
def ota(context: Context) -> Iterator[Seen]:
    """An update brings kernel, driver and firmware that belong together, and nodes between two of them misbehave.

    Compared is the newest DGX_OTA_VERSION of /etc/dgx-release, among machines of one platform. A machine that was
    never updated has none and is not judged, nor is DGX_SWBUILD_VERSION: matched nodes differ in it.
    """
    for group in context.topology.groups:
        platforms: dict[str | None, dict[str, str | None]] = {}
        for name in group.names:
            dgx = read(context.facts[name].dgx)
            if dgx is not None:
                platforms.setdefault(dgx.platform, {})[name] = dgx.ota_version
        for versions in platforms.values():
            for odd in odd_ones(versions):
                yield Seen(
                    odd.node,
                    f"{odd.node} is at another system update than the others",
                    odd.seen,
                    odd.behind(*UPDATE),
                )


@check(
    "HOST-012",
    "The firmware of all HCAs is the same",
    needs=("hcas",),
    severity="warning",
    scope="interconnect",
    source="every DGX Spark and OEM unit seen in public reports runs 28.45.4028",
    remedy="sudo fwupdmgr upgrade on the older node",
)
def firmware(context: Context) -> Iterator[Seen]:
    """Ports of unlike firmware negotiate less than full speed, or drop the link when the other side reboots."""
    yield from _alike(
        context,
        "the firmware of its HCAs",
        FIRMWARE,
        lambda facts: " and ".join(sorted({one.firmware for one in read(facts.hcas) or () if one.firmware})) or None,
    )


@check(
    "HOST-013",
    "The VBIOS is the same on every node",
    severity="info",
    scope="interconnect",
    source="public reports name 9A.0B.25 and 9A.0B.2D",
    remedy="sudo fwupdmgr upgrade on the older node",
)
def vbios(context: Context) -> Iterator[Seen]:
    """Power limits and clocks may differ, and the slower GPU sets the pace of the group."""
    if context.docker:
        yield from _alike(
            context,
            "the VBIOS",
            FIRMWARE,
            lambda facts: next((one.vbios for one in read(facts.gpus) or ()), None),
            severity="info",
        )


@check(
    "HOST-017",
    "The clocks agree",
    severity="warning",
    source="timedatectl(1)",
    remedy="sudo timedatectl set-ntp true",
)
def clock(context: Context) -> Iterator[Seen]:
    """Logs of ranks cannot be put in order, and far off, hubs and registries refuse: `certificate is not yet valid`.

    Nodes that keep time agree within milliseconds. Above a second, beyond what the measurement may be wrong by, it
    is told for information; above 30 s it is a warning. Right is what most of the nodes and this machine say.
    """
    offsets = {name: facts.clock_offset_s for name, facts in context.facts.items() if facts.clock_offset_s is not None}
    if not offsets:
        return
    # This machine counts as one of them, at 0.
    right = median([0.0, *offsets.values()]) if len(offsets) > 1 else 0.0
    for name, offset in offsets.items():
        skew = offset - right
        certain = abs(skew) - (context.facts[name].clock_error_s or 0.0)
        if certain > SKEW_S:
            yield Seen(
                name,
                f"the clock of {name} is {'ahead' if skew > 0 else 'behind'}",
                f"by {abs(skew):.1f} s against the others",
                ("sudo timedatectl set-ntp true", "timedatectl timesync-status"),
                severity="warning" if certain > GRAVE_SKEW_S else "info",
            )


def _system(facts: Facts) -> str | None:
    one = read(facts.os)
    return None if one is None else f"{one.id} {one.version}"


def _alike(
    context: Context,
    what: str,
    commands: tuple[str, ...],
    value: Callable[[Facts], str | None],
    *,
    severity: str = "warning",
) -> Iterator[Seen]:
    """A finding for every node of a group whose value is unlike that of the majority."""
    for group in context.topology.groups:
        for odd in odd_ones({name: value(context.facts[name]) for name in group.names}):
            yield Seen(
                odd.node,
                f"{what} of {odd.node} is unlike that of the others",
                odd.seen,
                odd.behind(*commands),
                severity="info" if severity == "info" else "warning",
            )
