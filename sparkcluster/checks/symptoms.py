"""Checks of the logs, GPUs, kernels and counters of a running cluster."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from sparkcluster.checks.check import AGAIN, DOWN, REBOOT, UP, Seen
from sparkcluster.checks.gpu import POWER_CYCLE, short_of_power
from sparkcluster.checks.running_cluster import RunningCluster, clipped, running_check
from sparkcluster.engines.common_signatures import TCP
from sparkcluster.engines.signature import rows
from sparkcluster.facts.base import Unread, read
from sparkcluster.findings import Remedy, Severity, edit, on_node
from sparkcluster.printable import shell
from sparkcluster.report import share, size

# Every token of a tensor-parallel model crosses the interconnect; smaller counts are indistinguishable from noise.
TOKENS, SOCKET_BYTES = 8, 200_000
# Our own margin: below it SSH begins to stall, and the kernel cannot reclaim memory that the driver holds.
MEMORY_FLOOR_BYTES = 3 * 2**30
SWAPPED_PAGES = 1000

# 79 fell off the bus; 119 and 120 its GSP stopped (NVIDIA/open-gpu-kernel-modules#446, #829); 154 it wants a reset;
# 169 with RmInitAdapter (Start9Labs/start-technologies PR #3693).
LOST = re.compile(
    r"NVRM: Xid \([^)]{0,80}\): (?:79|119|120|154|169)\b|RmInitAdapter failed|fallen off the bus|NVML: Unknown Error"
)
NO_NVRM_MEMORY = re.compile(r"NVRM: .{0,200}NV_ERR_NO_MEMORY")
OOM = re.compile(r"oom-kill:|Out of memory: Killed process|invoked oom-killer")


@running_check(
    "RUN-008",
    "NCCL uses RDMA",
    source="NVIDIA/nccl#941, NVIDIA/nccl#952",
    remedy=(TCP.hint or "", AGAIN),
)
def rdma(cluster: RunningCluster) -> Iterator[Seen]:
    """Over sockets the answers are correct, but the interconnect reaches 1 to 3 GB/s instead of 22.

    NCCL logs its network only with NCCL_DEBUG=INFO. Otherwise the ports' counters are used: tokens were generated, and
    sockets sent data but HCAs did not.
    """
    expected = {name for name, rank in cluster.ranks if len(rank.launcher.get("members") or ()) > 1}
    planned = cluster.recorded.nodes if cluster.recorded else {}
    environments = {name: node.get("env") for name, node in planned.items()}
    expected -= {
        name for name, env in environments.items() if isinstance(env, dict) and env.get("NCCL_IB_DISABLE") == "1"
    }
    chosen = cluster.last_match(r"Using network (?P<network>\w+)")
    nothing = cluster.last_match(TCP.pattern)
    for name in sorted(expected):
        if name in chosen:
            match, line = chosen[name]
            seen = line if match["network"] == "Socket" else None
        else:
            seen = nothing[name][1] if name in nothing else _by_sockets(cluster, name)
        if seen:
            yield Seen(f"NCCL on {name} fell back from RDMA to TCP", clipped(seen), node=name)


def _by_sockets(cluster: RunningCluster, node: str) -> str | None:
    """Traffic of ``node`` while tokens were generated, if only sockets sent data; otherwise None."""
    made = [
        (counters[-1].generated or 0) - (counters[0].generated or 0)
        for counters in map(cluster.counters, cluster.inspected)
        if counters
    ]
    traffic = cluster.traffic(node)
    if max(made, default=0) < TOKENS or traffic is None:
        return None
    first, last = traffic
    rdma_bytes = sum(last.rdma_bytes.values()) - sum(first.rdma_bytes.values())
    socket_bytes = sum(last.socket_bytes.values()) - sum(first.socket_bytes.values())
    if not last.rdma_bytes or rdma_bytes or socket_bytes < SOCKET_BYTES:
        return None
    return f"{max(made):.0f} tokens generated; its HCAs sent 0 bytes, sockets on their ports {size(socket_bytes)}"


@running_check(
    "RUN-013",
    "Every rank keeps its GPU",
    source="NVIDIA/nvidia-container-toolkit#48",
    remedy=(on_node("sudo systemctl restart nvidia-cdi-refresh"), AGAIN),
)
def gpu_lost(cluster: RunningCluster) -> Iterator[Seen]:
    """`systemctl daemon-reload` or a stale CDI specification removes a container's GPU; a GPU failure, the host's.

    In the first case nvidia-smi on the host works, so it is run in the container; the second case is in the kernel log.
    Such kernel lines are a warning if the GPU and the model answer again.
    """
    reported = set()
    for name, rank in cluster.ranks:
        if isinstance(rank.gpu, str) and re.search(r"NVML|No devices were found|couldn't communicate", rank.gpu):
            reported.add(name)
            yield Seen(f"the rank on {name} has lost its GPU", clipped(rank.gpu), node=name)
    for name, facts in cluster.facts.items():
        lines = [line for line in read(facts.kernel_log) or () if LOST.search(line)]
        if not lines:
            continue
        reported.add(name)
        over = not cluster.sick and bool(read(facts.gpus))
        summary = f"the GPU of {name} failed" + (" and answers again" if over else "")
        yield Seen(summary, clipped(lines[-1]), (REBOOT, UP), severity="warning" if over else "error", node=name)
    yield from (seen for seen in cluster.causes_of("RUN-013") if seen.node not in reported)


@running_check(
    "RUN-014",
    "Enough memory is left",
    source="NVIDIA/dgx-spark-playbooks#97",
    remedy="lower the engine's share of the memory, or the context, and free the page cache",
)
def memory(cluster: RunningCluster) -> Iterator[Seen]:
    """GPU and CPU share one memory; when it runs out, the node freezes and answers only to ping.

    NVRM's `NV_ERR_NO_MEMORY` alone means little: healthy nodes log it by the dozen. It is an error only if memory
    is short or the model does not answer.
    """
    for name, facts in cluster.facts.items():
        have = read(facts.memory)
        short = have is not None and have.available_bytes + have.swap_free_bytes < MEMORY_FLOOR_BYTES
        remedy = (cluster.engine.memory_hint, AGAIN)
        for pattern, summary in (
            (OOM, "the kernel of {} killed a process for memory"),
            (NO_NVRM_MEMORY, "the driver of {} ran out of memory"),
        ):
            lines = [line for line in read(facts.kernel_log) or () if pattern.search(line)]
            if lines:
                severity: Severity = "error" if cluster.sick or short else "info"
                yield Seen(summary.format(name), clipped(lines[-1]), remedy, severity=severity, node=name)
                break
        if short and have is not None:
            seen = f"{share(have.available_bytes, have.total_bytes)} available"
            seen += f", {size(have.swap_total_bytes - have.swap_free_bytes)} in swap"
            yield Seen(f"{name} is almost out of memory", seen, remedy, severity="warning", node=name)
        elif (moved := _swapped_pages(cluster, name)) >= SWAPPED_PAGES:
            seen = f"{moved} pages moved to or from swap while it was inspected"
            yield Seen(f"{name} swaps", seen, remedy, severity="warning", node=name)
    yield from cluster.causes_of("RUN-014")


def _swapped_pages(cluster: RunningCluster, node: str) -> int:
    traffic = cluster.traffic(node)
    return traffic[1].swapped_pages - traffic[0].swapped_pages if traffic else 0


@running_check(
    "RUN-015",
    "The GPU gets full power",
    source="Blackwellboy/model-serving-minefield PR #55: BF16 36.5 TFLOP/s, and 91.6 after a power cycle",
    remedy=(DOWN, *POWER_CYCLE, UP),
)
def power(cluster: RunningCluster) -> Iterator[Seen]:
    """A GB10 with stuck power delivery runs at a third of its speed, without a throttle flag or an error.

    It shows full utilisation at 14 to 20 W and 500 to 850 MHz; a healthy one has 2,300 MHz and up to 92 W. A reboot
    does not help; a minute without AC does. Units that never exceed about 30 W have another problem.
    """
    for name in cluster.inspected:
        samples = cluster.gpus(name)
        if len(samples) > 1 and all(map(short_of_power, samples)):
            last = samples[-1]
            seen = f"{last.utilization_percent:.0f} % at {last.power_w:.1f} W and {last.sm_clock_mhz:.0f} MHz"
            yield Seen(f"the power delivery of {name} is stuck at a low limit", seen, node=name)


@dataclasses.dataclass(frozen=True, slots=True)
class KernelFault:
    """A fault in the kernel log, from kernel_faults.toml."""

    pattern: str
    what: str
    source: str
    again: str = ""
    edit: str = ""

    @property
    def remedy(self) -> tuple[Remedy | str, ...]:
        """Remedy for the fault."""
        return (edit(self.edit), UP) if self.edit else (DOWN, REBOOT, self.again, UP)


FAULTS = tuple(KernelFault(**row) for row in rows(Path(__file__).with_name("kernel_faults.toml"), "faults"))
JOURNAL = on_node("sudo journalctl -b -1 -k -n 50 --no-pager")


def _last(lines: tuple[str, ...], fault: KernelFault, since: str = "") -> str | None:
    """The last of ``lines`` about ``fault``; for faults caused by a rank, only lines after ``since``."""
    found = (line for line in reversed(lines) if re.search(fault.pattern, line))
    return next((line for line in found if not fault.edit or (line[:4].isdigit() and line[:19] >= since)), None)


@running_check(
    "RUN-026",
    "The kernel reports no fault",
    source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#146; the SM121 guide: Xid 43",
    remedy="reboot that node; open a support case if the ConnectX-7 fails again",
)
def faults(cluster: RunningCluster) -> Iterator[Seen]:
    """After a fatal PCIe error the ConnectX-7 is not detected until a reboot, and processors may hang in its recovery.

    A warning while the model answers. Xid 31 and 43 count from the start of the ranks.
    """
    severity: Severity = "error" if cluster.sick else "warning"
    for name, facts in cluster.facts.items():
        starts = [rank.started_at for node, rank in cluster.ranks if node == name and rank.started_at]
        lines = read(facts.kernel_log) or ()
        for fault in FAULTS:
            line = _last(lines, fault, min(starts, default="never")[:19])
            if line is not None:
                yield Seen(fault.what.format(name), clipped(line), fault.remedy, severity=severity, node=name)


@running_check(
    "RUN-027",
    "Every node's previous boot ended with a shutdown",
    severity="warning",
    source="NVIDIA/dgx-spark-playbooks#97: the journal ends abruptly; journalctl(1)",
    remedy=[JOURNAL, UP],
)
def crashed(cluster: RunningCluster) -> Iterator[Seen]:
    """A node that froze, lost power or crashed has no trace of it in the log of its present boot.

    Info while the model answers. An unreadable log is reported only if the model does not answer.
    """
    for name, facts in cluster.facts.items():
        before = facts.boot_before
        if isinstance(before, Unread):
            if cluster.sick:
                summary = f"the log of the previous boot of {name} cannot be read"
                allow = on_node(shell("sudo usermod -aG adm", facts.user), "lets doctor read it, after a new login")
                yield Seen(summary, before.unread, (JOURNAL, allow), severity="info", node=name)
        elif before:
            fault = next(((each, line) for each in FAULTS if (line := _last(before, each))), None)
            summary = f"{name} restarted without a shutdown" + (f": {fault[0].what.format(name)}" if fault else "")
            remedy = (JOURNAL, *fault[0].remedy) if fault else None
            severity: Severity = "warning" if cluster.sick else "info"
            seen = clipped(fault[1] if fault else before[-1])
            yield Seen(summary, f"its kernel log ended with: {seen}", remedy, severity=severity, node=name)
