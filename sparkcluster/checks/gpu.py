"""Checks of the GPU of each node and of its driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.docker import runs_ours
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Facts, Gpu, Unread, read

# What nvidia-smi says of a GB10, in every report.
CAPABILITY = "12.1"
# Series of drivers that owners of Sparks run; the packages of another are named after it.
SERIES = "580"
DEADLOCKS = "590"
# Tag of the NGC image that was built for driver 590.44.
WANTS_590 = "25.12.post1"
BUSY_PERCENT = 90.0
# Utilisation at 14-20 W and 500-850 MHz, where a healthy GB10 draws 92 W at 2281-2405 MHz (minefield PR #55).
WEDGED_W = (14.0, 20.0)
WEDGED_MHZ = (500.0, 850.0)
# 96 % at 22-26 W and not one token (MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11).
HUNG_W = (22.0, 26.0)


@check(
    "HOST-003",
    "The GPU answers",
    scope="container",
    source="NVIDIA DGX Spark user guide; DGX Spark forum, GSP failures",
    remedy="nvidia-smi, the kernel's log, a reboot",
)
def gpu(context: Context) -> Iterator[Seen]:
    """The container does not start, or its engine ends with `No CUDA GPUs are available`.

    A GPU that fell off the bus (`No devices were found`, exit 6) comes back with a reboot, mostly. That the kernel
    has no module for it at all is HOST-014.
    """
    for name, facts in context.facts.items():
        if read(facts.gpus) or module_missing(facts):
            continue
        unloaded = isinstance(facts.driver, Unread)
        yield Seen(
            name,
            f"{name} has no GPU that answers",
            facts.gpus.unread if isinstance(facts.gpus, Unread) else "nvidia-smi lists none",
            (
                "nvidia-smi",
                f"sudo apt-get install -y {modules(facts)}" if unloaded else "sudo dmesg | grep -iE 'nvrm|xid' | tail",
                "sudo reboot",
            ),
        )


@check(
    "HOST-010",
    "The driver is of a series that is known to serve",
    needs=("driver",),
    scope="container",
    source="practitioner's guide to vLLM on DGX Spark: 590.x deadlocks CUDA graphs on GB10",
    remedy="the packages of series 580",
)
def series(context: Context) -> Iterator[Seen]:
    """Drivers 590.x deadlock while CUDA graphs are captured on GB10: the engine hangs without a word.

    580.142 is the tested one. With `enforce-eager: true` no graph is captured, and it is a warning; so it is for
    NGC's 25.12.post1, which is built for 590.44 and newer. That image runs on 580 by forward compatibility, so 580
    suits either.
    """
    playbook = context.spec.playbook
    eager = playbook.args.get("enforce-eager", playbook.args.get("enforce_eager")) is True
    wants = (playbook.image or "").rpartition(":")[2].startswith(WANTS_590)
    for name, facts in context.facts.items():
        driver = read(facts.driver)
        if driver is not None and driver.split(".")[0] == DEADLOCKS:
            yield Seen(
                name,
                f"{name} has a driver of series 590",
                f"{driver}{f', which {playbook.image} is built for' if wants else ''}",
                (
                    f"sudo apt-get install -y nvidia-driver-{SERIES}-open {modules(facts)}",
                    "sudo reboot",
                    "or set enforce-eager: true in the playbook, which costs half the speed",
                ),
                severity="warning" if eager or wants else "error",
            )


@check(
    "HOST-014",
    "The kernel that runs has its driver",
    scope="container",
    source="NVIDIA DGX Spark forum: no nvidia.ko after a kernel update; `nvml error: driver not loaded`",
    remedy="the linux-modules-nvidia package of that kernel, and a reboot",
)
def module(context: Context) -> Iterator[Seen]:
    """No container with a GPU starts: `nvml error: driver not loaded`.

    A kernel that came with an update before its modules did runs without them after the next reboot.
    """
    for name, facts in context.facts.items():
        if module_missing(facts):
            yield Seen(
                name,
                f"kernel {facts.kernel} of {name} has no nvidia module",
                facts.driver.unread if isinstance(facts.driver, Unread) else "no module for it",
                (f"sudo apt-get install -y {modules(facts)}", "sudo reboot"),
            )


@check(
    "HOST-015",
    "The driver that runs is the one that is installed",
    severity="warning",
    scope="container",
    source="NVIDIA forum: `Failed to initialize NVML: Driver/library version mismatch`",
    remedy="sudo reboot",
)
def installed(context: Context) -> Iterator[Seen]:
    """New containers get libraries of the new driver, which refuse the old one that is loaded still.

    `Driver/library version mismatch` after an update, until the next reboot.
    """
    for name, facts in context.facts.items():
        loaded = read(facts.driver)
        lying = read(facts.driver_module) if facts.driver_module is not None else None
        if loaded and lying and loaded != lying and re.match(r"^\d+\.\d+", lying):
            yield Seen(
                name,
                f"the driver of {name} was updated and not loaded yet",
                f"{loaded} is loaded, {lying} is installed",
                ("sudo reboot",),
            )


@check(
    "HOST-018",
    "The GPU is a GB10",
    severity="warning",
    scope="container",
    source="NVIDIA CUDA GPUs: GB10 has compute capability 12.1",
    remedy="leave the node out of the inventory, or know what you do",
)
def capability(context: Context) -> Iterator[Seen]:
    """Playbooks and rules are made for compute capability 12.1, and kernels chosen for it fail elsewhere."""
    for name, facts in context.facts.items():
        for one in read(facts.gpus) or ():
            if one.compute_capability not in {None, CAPABILITY}:
                yield Seen(
                    name,
                    f"the GPU of {name} is no GB10",
                    f"{one.name}, compute capability {one.compute_capability}, not {CAPABILITY}",
                    ("take the node out of the inventory, or check args and env of the playbook for this GPU",),
                )


@check(
    "HOST-020",
    "The GPU gets its power",
    severity="warning",
    scope="container",
    source="minefield PR #55: 36.5 in place of 91.6 TFLOP/s until the power was removed",
    remedy="shut down, take the power supply off for a minute, start again",
)
def wedged(context: Context) -> Iterator[Seen]:
    """The GPU works at a third of its clock, without an error and without a flag, until its power was off.

    Known by 90 % utilisation and more at 14-20 W and 500-850 MHz; healthy are 92 W at 2281-2405 MHz. A reboot does
    not help, a minute without the power supply does. Only a GPU at work shows it.
    """
    for name, facts in context.facts.items():
        for one in read(facts.gpus) or ():
            if _wedged(one):
                yield Seen(
                    name,
                    f"the GPU of {name} is short of power",
                    f"{one.utilization_percent:.0f} % busy at {one.power_w:.1f} W and {one.sm_clock_mhz:.0f} MHz",
                    ("sudo poweroff", f"unplug the power supply of {name} for a minute, then start it again"),
                )


@check(
    "HOST-021",
    "Nobody else uses the GPU",
    needs=("ranks",),
    severity="warning",
    scope="container",
    source="MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11: 96 % at 22-26 W is a collective that hangs",
    remedy="stop what runs there",
)
def idle(context: Context) -> Iterator[Seen]:
    """Another process takes compute and memory that the engine counts on, and both may freeze the node.

    At 22-26 W it is the picture of a collective that hangs: ranks of an earlier launch that were left behind.
    """
    for name, facts in context.facts.items():
        if runs_ours(context, facts):
            continue
        for one in read(facts.gpus) or ():
            if _busy(one.utilization_percent) and not _wedged(one):
                hung = _in(HUNG_W, one.power_w) and not _in(WEDGED_MHZ, one.sm_clock_mhz)
                power = "" if one.power_w is None else f" at {one.power_w:.1f} W"
                yield Seen(
                    name,
                    f"the GPU of {name} is busy, and not with this cluster",
                    f"{one.utilization_percent:.0f} %{power}{', as in a collective that hangs' if hung else ''}",
                    ("nvidia-smi", "docker ps"),
                )


def module_missing(facts: Facts) -> bool:
    """Whether the running kernel has no nvidia module: the probe looked for one, found none, and none is loaded."""
    looked = "driver_module" in facts.model_fields_set and facts.driver_module is None
    return looked and isinstance(facts.driver, Unread) and not read(facts.gpus)


def modules(facts: Facts) -> str:
    """Name of the package with the driver's modules for the kernel that runs."""
    return f"linux-modules-nvidia-{SERIES}-open-{facts.kernel}"


def _wedged(one: Gpu) -> bool:
    """Whether its own lack of power is what makes it look busy."""
    return _busy(one.utilization_percent) and _in(WEDGED_W, one.power_w) and _in(WEDGED_MHZ, one.sm_clock_mhz)


def _busy(percent: float | None) -> bool:
    return percent is not None and percent >= BUSY_PERCENT


def _in(limits: tuple[float, float], value: float | None) -> bool:
    return value is not None and limits[0] <= value <= limits[1]
