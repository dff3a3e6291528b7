"""Checks of what a running cluster's logs, GPUs, kernels and counters show beside its answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.diagnosis import (
    AGAIN,
    DOWN,
    UP,
    causes,
    clipped,
    cluster_sick,
    gpus,
    last_match,
    of,
)
from sparkcluster.checks.registry import Context, Seen, running_check
from sparkcluster.engines.common_signatures import TCP
from sparkcluster.facts.model import read

# Every token of a tensor-parallel model crosses the interconnect; below this nothing can be told from the rest.
TOKENS, SOCKET_BYTES = 8, 200_000
# Reported of a GB10 whose power delivery is wedged (Blackwellboy/model-serving-minefield PR #55).
WEDGE_PERCENT, WEDGE_W, WEDGE_MHZ = 90.0, 20.0, 850.0
# Our own margin: below it SSH begins to stall, and the kernel cannot kill what the driver holds.
MEMORY_FLOOR_BYTES = 3 * 2**30
SWAPPED_PAGES = 1000

# 79 fell off the bus; 119 and 120 its GSP stopped (NVIDIA/open-gpu-kernel-modules#446, #829); 154 it wants a reset;
# 169 with RmInitAdapter (Start9Labs/start-technologies PR #3693).
LOST = re.compile(
    r"NVRM: Xid \(.*?\): (?:79|119|120|154|169)\b|RmInitAdapter failed|fallen off the bus|NVML: Unknown Error"
)
NO_NVRM_MEMORY = re.compile(r"NVRM: .*NV_ERR_NO_MEMORY")
OOM = re.compile(r"oom-kill:|Out of memory: Killed process|invoked oom-killer")


def _explained(context: Context, code: str) -> Iterator[Seen]:
    """Roots with ``code`` in the logs of ranks that ended or do not answer."""
    for found in causes(context):
        if found.cause.code == code:
            remedy = (found.cause.hint or AGAIN, AGAIN)
            yield Seen(found.node, found.cause.summary, clipped(found.cause.line), remedy, severity="error")


@running_check(
    "RUN-008",
    "NCCL uses RDMA",
    source="NVIDIA/nccl#941, NVIDIA/nccl#952",
    remedy="check that the container has /dev/infiniband, and the HCA list is right: `sparkcluster preflight`",
)
def rdma(context: Context) -> Iterator[Seen]:
    """Over sockets the answers are right, but the interconnect reaches 1 to 3 GB/s instead of 22.

    NCCL logs it only with NCCL_DEBUG=INFO. Without it, the ports' counters show it: tokens were generated, sockets
    sent data and no HCA did.
    """
    wanted = {name for name, rank in of(context).ranks() if len(rank.launcher.get("members") or ()) > 1}
    recorded = of(context).recorded
    planned = recorded.record.get("plan", {}).get("nodes", {}) if recorded else {}
    wanted -= {name for name, node in planned.items() if node.get("env", {}).get("NCCL_IB_DISABLE") == "1"}
    chosen = last_match(context, r"Using network (?P<what>\w+)")
    nothing = last_match(context, TCP.pattern)
    remedy = (TCP.hint or "", AGAIN)
    for name in sorted(wanted):
        summary = f"NCCL on {name} fell back from RDMA to TCP"
        if name in chosen:
            match, line = chosen[name]
            if match["what"] == "Socket":
                yield Seen(name, summary, clipped(line), remedy)
        elif name in nothing:
            yield Seen(name, summary, clipped(nothing[name][1]), remedy)
        else:
            seen = _by_sockets(context, name)
            if seen:
                yield Seen(name, summary, seen, remedy)


def _by_sockets(context: Context, node: str) -> str | None:
    """What the ports of ``node`` sent while tokens were made, where that was by sockets alone."""
    observations = dict(of(context).seen())
    made = [
        (observation.counters[-1].generated or 0) - (observation.counters[0].generated or 0)
        for observation in observations.values()
        if isinstance(observation.counters, tuple) and len(observation.counters) > 1
    ]
    traffic = observations[node].traffic
    if max(made, default=0) < TOKENS or not isinstance(traffic, tuple) or len(traffic) < 2:
        return None
    first, last = traffic[0], traffic[-1]
    rdma_bytes = sum(last.rdma_bytes.values()) - sum(first.rdma_bytes.values())
    socket_bytes = sum(last.socket_bytes.values()) - sum(first.socket_bytes.values())
    if not last.rdma_bytes or rdma_bytes or socket_bytes < SOCKET_BYTES:
        return None
    return (
        f"{max(made):.0f} tokens generated; its HCAs sent 0 bytes, sockets on their ports {socket_bytes / 1e6:.1f} MB"
    )


@running_check(
    "RUN-009",
    "RDMA memory can be pinned",
    source="NVIDIA/nccl-tests#206",
    remedy="`--ulimit memlock=-1`, which every rank of sparkcluster has; else free the page cache",
)
def memlock(context: Context) -> Iterator[Seen]:
    """NCCL registers its buffers with the HCA, which fails with a memlock limit or with too little free memory."""
    yield from _explained(context, "RUN-009")


@running_check(
    "RUN-010",
    "The GIDs that NCCL uses exist",
    source="NVIDIA/nccl#1657",
    remedy="`sparkcluster preflight`, which resolves every GID again, then `sparkcluster down` and `up`",
)
def gid(context: Context) -> Iterator[Seen]:
    """The GID table of a port changes with its addresses; a queue pair on an empty entry never connects."""
    yield from _explained(context, "RUN-010")


@running_check(
    "RUN-013",
    "Every rank keeps its GPU",
    source="NVIDIA/nvidia-container-toolkit#48",
    remedy="`sudo systemctl restart nvidia-cdi-refresh`, or a reboot if the kernel reports it; then `up`",
)
def gpu_lost(context: Context) -> Iterator[Seen]:
    """A container loses its GPU by `systemctl daemon-reload` or a stale CDI specification, a host by a GPU failure.

    The host's nvidia-smi works in the first case, so it is run inside the container; the second is in the kernel
    log. Such kernel lines are a warning if the GPU and the model answer again.
    """
    reported = set()
    for name, rank in of(context).ranks():
        if isinstance(rank.gpu, str) and re.search(r"NVML|No devices were found|couldn't communicate", rank.gpu):
            reported.add(name)
            remedy = (f"on {name}: sudo systemctl restart nvidia-cdi-refresh", AGAIN)
            yield Seen(name, f"the rank on {name} has lost its GPU", clipped(rank.gpu), remedy)
    for name, facts in context.facts.items():
        lines = [line for line in _kernel(context, name) if LOST.search(line)]
        if not lines:
            continue
        reported.add(name)
        over = not cluster_sick(context) and bool(read(facts.gpus))
        remedy = (f"on {name}: sudo reboot", f"then {UP}")
        summary = f"the GPU of {name} failed" + (" and answers again" if over else "")
        yield Seen(name, summary, clipped(lines[-1]), remedy, severity="warning" if over else "error")
    yield from (seen for seen in _explained(context, "RUN-013") if seen.node not in reported)


def _kernel(context: Context, node: str) -> tuple[str, ...]:
    return read(context.facts[node].kernel_log) or ()


@running_check(
    "RUN-014",
    "Enough memory is left",
    source="NVIDIA/dgx-spark-playbooks#97",
    remedy="lower gpu-memory-utilization or max-model-len, and free the page cache",
)
def memory(context: Context) -> Iterator[Seen]:
    """GPU and CPU share one memory; when it runs out, the node freezes and answers only to ping.

    NVRM's `NV_ERR_NO_MEMORY` alone means little: healthy nodes log it by the dozen. It is an error only if memory
    is short or the model does not answer.
    """
    ailing = cluster_sick(context)
    for name, facts in context.facts.items():
        have = read(facts.memory)
        short = have is not None and have.available_bytes + have.swap_free_bytes < MEMORY_FLOOR_BYTES
        remedy = (context.engine.memory_hint, AGAIN)
        for pattern, what in (
            (OOM, "the kernel of {} killed for memory"),
            (NO_NVRM_MEMORY, "the driver of {} ran out"),
        ):
            lines = [line for line in _kernel(context, name) if pattern.search(line)]
            if lines:
                severity = "error" if ailing or short else "info"
                yield Seen(name, what.format(name), clipped(lines[-1]), remedy, severity=severity)  # type: ignore[arg-type]
                break
        if short and have is not None:
            seen = f"{have.available_bytes / 2**30:.1f} of {have.total_bytes / 2**30:.1f} GiB available"
            seen += f", {(have.swap_total_bytes - have.swap_free_bytes) / 2**30:.1f} GiB in swap"
            yield Seen(name, f"{name} is almost out of memory", seen, remedy, severity="warning")
        elif _swaps(context, name):
            seen = f"{_swaps(context, name)} pages moved to or from swap while it was inspected"
            yield Seen(
                name,
                f"{name} swaps",
                seen,
                (context.engine.memory_hint, "sudo swapoff -a on a node that only serves"),
                severity="warning",
            )
    yield from _explained(context, "RUN-014")


def _swaps(context: Context, node: str) -> int:
    observation = dict(of(context).seen()).get(node)
    if observation is None or not isinstance(observation.traffic, tuple) or len(observation.traffic) < 2:
        return 0
    moved = observation.traffic[-1].swapped_pages - observation.traffic[0].swapped_pages
    return moved if moved >= SWAPPED_PAGES else 0


@running_check(
    "RUN-015",
    "The GPU gets full power",
    source="Blackwellboy/model-serving-minefield PR #55: BF16 36.5 TFLOP/s, and 91.6 after a power cycle",
    remedy="shut down, disconnect the power supply for a minute, start again",
)
def power(context: Context) -> Iterator[Seen]:
    """A GB10 whose power delivery is stuck runs at a third of its speed, with no throttle flag and no error.

    It shows full utilisation at 14 to 20 W and 500 to 850 MHz; a healthy one has 2,300 MHz and up to 92 W. A reboot
    does not help; a minute without AC does. Units that never exceed about 30 W have another problem.
    """
    for name, _ in of(context).seen():
        samples = gpus(context, name)
        if len(samples) > 1 and all(
            (sample.utilization_percent or 0) >= WEDGE_PERCENT
            and sample.power_w is not None
            and sample.power_w <= WEDGE_W
            and sample.sm_clock_mhz is not None
            and sample.sm_clock_mhz <= WEDGE_MHZ
            for sample in samples
        ):
            last = samples[-1]
            seen = f"{last.utilization_percent:.0f} % at {last.power_w:.1f} W and {last.sm_clock_mhz:.0f} MHz"
            remedy = (DOWN, f"shut {name} down, disconnect its power supply for a minute, then start it", UP)
            yield Seen(name, f"the power delivery of {name} is stuck at a low limit", seen, remedy)
