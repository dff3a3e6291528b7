"""Checks of the GPU and driver of each node."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import CATALOGUE, REBOOT, Context, Seen, container_node_check, gpu_check
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.model import Facts, Gpu
from sparkcluster.facts.running import GpuSample
from sparkcluster.findings import edit, on_node

# As nvidia-smi prints it for a GB10.
CAPABILITY = "12.1"
# Driver series in use on Sparks; package names contain the series.
SERIES = "580"
DEADLOCKS = "590"
# Tag of the NGC image built for driver 590.44.
WANTS_590 = "25.12.post1"
BUSY_PERCENT = 90.0
# Full utilisation at 14-20 W and 500-850 MHz was reported, where a healthy GB10 draws 92 W at 2281-2405 MHz
# (Blackwellboy/model-serving-minefield PR #55).
THROTTLED_W, THROTTLED_MHZ = 20.0, 850.0
# 96 % at 22-26 W and not one token (MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11).
HUNG_W = (22.0, 26.0)
INSTALL_MODULES = on_node("sudo apt-get install -y {modules}")
KERNEL_LOG = on_node("sudo dmesg | grep -iE 'nvrm|xid' | tail")
POWER_CYCLE = (on_node("sudo poweroff"), "disconnect its power supply for a minute, then start it again")


@container_node_check(
    "HOST-003",
    "The GPU responds, and the running kernel has the driver's module",
    source="NVIDIA DGX Spark user guide; DGX Spark forum: GSP failures; no nvidia.ko after a kernel update",
    remedy=(on_node("nvidia-smi"), INSTALL_MODULES, REBOOT),
)
def gpu(_: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """The container does not start, or its engine fails with `No CUDA GPUs are available` or `driver not loaded`.

    A GPU that fell off the bus (`No devices were found`, exit code 6) usually returns with a reboot. After an update
    that installed the kernel without its modules, the next reboot starts that kernel.
    """
    driver = facts.driver.unread if isinstance(facts.driver, Unread) else None
    values = {"modules": modules(facts)}
    if module_missing(facts):
        summary = f"kernel {facts.kernel} of {name} has no nvidia module"
        yield Seen(summary, driver or "no module", (INSTALL_MODULES, REBOOT), values=values)
    elif not read(facts.gpus):
        yield Seen(
            f"the GPU of {name} does not respond",
            facts.gpus.unread if isinstance(facts.gpus, Unread) else "nvidia-smi lists none",
            None if driver else (on_node("nvidia-smi"), KERNEL_LOG, REBOOT),
            values=values,
        )


@container_node_check(
    "HOST-010",
    "The driver series works with CUDA graphs",
    needs=("driver",),
    remedy=(on_node(f"sudo apt-get install -y nvidia-driver-{SERIES}-open {{modules}}"), REBOOT),
)
def series(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Drivers 590.x deadlock while capturing CUDA graphs on GB10: the engine hangs without a message.

    580.142 is tested. Sources disagree: one guide measured the deadlock and recommends 580; another tells users of NGC
    25.12.post1 to update to 590.44, which that image is built for. This is a warning for that image, and if
    the playbook disables CUDA graphs.
    """
    playbook, argument = context.spec.playbook, context.engine.common_arguments.get("no_graphs", "")
    eager = playbook.args.get(argument, playbook.args.get(argument.replace("-", "_"))) is True
    slower = f"set {argument}: true in the playbook, at half the speed"
    image = context.spec.reference or ""
    wants = image.rpartition(":")[2].startswith(WANTS_590)
    driver = read(facts.driver)
    if driver is not None and driver.split(".")[0] == DEADLOCKS:
        yield Seen(
            f"{name} has a driver of series 590",
            f"{driver}{f', which {image} is built for' if wants else ''}",
            (*CATALOGUE["HOST-010"].remedy, *([edit(slower, instead=True)] if argument else [])),
            severity="warning" if eager or wants else "error",
            values={"modules": modules(facts)},
        )


@container_node_check(
    "HOST-015",
    "The installed driver is loaded",
    severity="warning",
    source="NVIDIA forum: `Failed to initialize NVML: Driver/library version mismatch`",
    remedy=[REBOOT],
)
def installed(_: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """New containers get libraries of the new driver, which do not work with the loaded old driver.

    They fail with `Driver/library version mismatch` after an update, until the next reboot.
    """
    loaded = read(facts.driver)
    on_disk = read(facts.driver_module)
    if loaded and on_disk and loaded != on_disk:
        yield Seen(
            f"the driver of {name} was updated but is not loaded yet",
            f"{loaded} is loaded, {on_disk} is installed",
        )


@gpu_check(
    "HOST-018",
    "The GPU is a GB10",
    severity="warning",
    source="NVIDIA CUDA GPUs: GB10 has compute capability 12.1",
    remedy=[edit("remove the node from the inventory, or check args and env of the playbook for this GPU")],
)
def capability(_: Context, name: str, device: Gpu) -> Iterator[Seen]:
    """Playbooks and rules are written for compute capability 12.1; kernels chosen for it fail on other GPUs."""
    if device.compute_capability not in {None, CAPABILITY}:
        yield Seen(
            f"the GPU of {name} is not a GB10",
            f"{device.name}, compute capability {device.compute_capability}, not {CAPABILITY}",
        )


@gpu_check(
    "HOST-021",
    "No other program uses the GPU",
    needs=("ranks",),
    severity="warning",
    source="MiaAI-Lab DeepSeek-v4-Flash-DSpark #10, #11: 96 % at 22-26 W is a collective that hangs",
    remedy=(on_node("nvidia-smi"), on_node("docker ps"), "stop the other process"),
)
def idle(context: Context, name: str, device: Gpu) -> Iterator[Seen]:
    """Another process uses compute and memory that the engine needs, and both together may freeze the node.

    A draw of 22-26 W is typical of a hanging collective, such as ranks left over from an earlier launch.
    """
    if _busy(device.utilization_percent) and not context.runs_rank(name):
        hung = waits_in_collective(device)
        watts = "" if device.power_w is None else f" at {device.power_w:.1f} W"
        yield Seen(
            f"the GPU of {name} is busy, but not with this cluster",
            f"{device.utilization_percent:.0f} %{watts}{', typical of a hanging collective' if hung else ''}",
        )


def module_missing(facts: Facts) -> bool:
    """Whether the running kernel has no nvidia module, neither loaded nor on disk."""
    missing = "driver_module" in facts.model_fields_set and facts.driver_module is None
    return missing and isinstance(facts.driver, Unread) and not read(facts.gpus)


def modules(facts: Facts) -> str:
    """Name of the package with the driver's modules for the running kernel."""
    return f"linux-modules-nvidia-{SERIES}-open-{facts.kernel}"


def short_of_power(gpu: GpuSample) -> bool:
    """Whether it is busy at the low power and clock of a GPU whose power delivery is stuck."""
    power, clock = gpu.power_w, gpu.sm_clock_mhz
    low = power is not None and power <= THROTTLED_W and clock is not None and clock <= THROTTLED_MHZ
    return low and _busy(gpu.utilization_percent)


def waits_in_collective(gpu: Gpu | GpuSample) -> bool:
    """Whether it is busy at the power of a hanging collective."""
    throttled = gpu.sm_clock_mhz is not None and gpu.sm_clock_mhz <= THROTTLED_MHZ
    waiting = gpu.power_w is not None and HUNG_W[0] <= gpu.power_w <= HUNG_W[1]
    return waiting and not throttled and _busy(gpu.utilization_percent)


def _busy(percent: float | None) -> bool:
    return percent is not None and percent >= BUSY_PERCENT
