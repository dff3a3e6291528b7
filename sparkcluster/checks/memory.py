"""Checks of the unified memory of each node."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import REBOOT, Context, Seen, container_check, member_check, node_check
from sparkcluster.checks.docker import hand_over
from sparkcluster.errors import PlanError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts, Memory
from sparkcluster.findings import Remedy, edit, on_node
from sparkcluster.printable import shell
from sparkcluster.report import share, size
from sparkcluster.topology.model import Member

GIB = 2**30
# An engine that reads MemFree refused a node with 40 of 121 GiB in the page cache.
MUCH_CACHE = 0.2
# What a Spark with nothing running may have in use: stock installs had 102 of 121.69 GiB free for CUDA, with the caches
# dropped (github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47); a leak is 30 GiB.
IN_USE = 24 * GIB
DROP = on_node("sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'")
TOP = on_node("ps aux --sort=-rss | head")


@container_check(
    "HOST-006",
    "There is enough free memory for the engine",
    needs=("memory",),
    severity="warning",
    remedy="stop other programs, or lower gpu-memory-utilization",
)
def memory(context: Context) -> Iterator[Seen]:
    """The engine refuses to start, or the node freezes and answers only to ping.

    GPU and CPU share one memory. The engine takes the share set by `gpu-memory-utilization`, or its default. Free
    swap does not count: memory of the GPU is not swapped out.
    """
    for name, _, memory, needed in _needs(context):
        free = memory.available_bytes
        if free < needed:
            yield Seen(
                f"{name} has less free memory than the engine takes",
                f"{share(free, memory.total_bytes)} free, {size(needed)} needed",
                _free_memory(context, name, memory),
                node=name,
            )


@container_check(
    "HOST-022",
    "The page cache leaves enough memory for the engine",
    needs=("memory",),
    severity="warning",
    remedy=[DROP],
)
def page_cache(context: Context) -> Iterator[Seen]:
    """The engine fails with `Free memory on device is less than desired`, though the memory is available.

    The page cache is free memory to every program but CUDA, which reads MemFree. Reading weights or loading an image
    fills it. `up` drops what it starts from the cache, without root; what others read stays. Newer engines count the
    cache as free: a warning if it is a fifth of the memory or more, else for information.
    """
    for name, _, memory, needed in _needs(context):
        cached = min(memory.cached_bytes, memory.available_bytes - memory.free_bytes)
        if memory.free_bytes < needed <= memory.available_bytes and cached > 0:
            yield Seen(
                f"the page cache of {name} uses memory that the engine needs",
                f"{size(memory.free_bytes)} free, {size(needed)} needed, about {size(cached)} would be freed",
                severity="warning" if cached >= MUCH_CACHE * memory.total_bytes else "info",
                node=name,
            )


@node_check(
    "HOST-032",
    "Memory in use belongs to a program",
    needs=("memory",),
    severity="warning",
    remedy=(on_node("nvidia-smi"), on_node("ls -l /dev/shm"), on_node("sudo reboot", "if no program uses the GPU")),
)
def unexplained(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """An engine that was killed may leave memory of the GPU, or files in /dev/shm, that no program holds any more.

    What programs use themselves (AnonPages) is not counted; what a program of the GPU allocates is, since it is in no
    process's own memory. Information where the engine's share fits beside it.
    """
    memory, ranks = read(facts.memory), read(facts.ranks)
    if memory is None or memory.anonymous_bytes is None or ranks is None:
        return
    if any(rank.state == "running" for rank in ranks):
        return
    used = memory.total_bytes - memory.available_bytes - memory.anonymous_bytes
    if used > IN_USE:
        takes = context.engine.memory_share(context.spec.playbook, facts)
        fits = memory.available_bytes >= int(memory.total_bytes * takes)
        yield Seen(
            f"{name} has memory in use that belongs to no program, or to one that uses the GPU",
            f"{size(used)} beside the {size(memory.anonymous_bytes)} that programs hold",
            severity="info" if fits else None,
        )


@member_check(
    "HOST-024",
    "The kernel reserves contiguous memory for RDMA",
    needs=("memory",),
    severity="warning",
    source="NVIDIA DGX Spark forum: CmaTotal 0 on 7.0.0-1019-nvidia without kho=off",
    remedy=(
        on_node("echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX kho=off\"' | sudo tee /etc/default/grub.d/kho.cfg"),
        on_node("sudo update-grub"),
        REBOOT,
    ),
)
def contiguous(context: Context, name: str, member: Member) -> Iterator[Seen]:
    """Registering RDMA buffers of several GB fails with `ibv_reg_mr … Cannot allocate memory`, and the rank exits.

    A healthy CmaTotal is 131072 kB. Kernel 7.0.0-1019-nvidia has none unless booted with `kho=off`.
    """
    memory = read(context.facts[name].memory)
    if member.hcas and memory is not None and memory.cma_total_bytes == 0:
        seen = f"CmaTotal 0 kB, kernel {context.facts[name].kernel}"
        yield Seen(f"{name} reserves no contiguous memory for RDMA", seen)


def _needs(context: Context) -> Iterator[tuple[str, Facts, Memory, int]]:
    """Nodes on which the engine has not taken its memory yet, with the bytes that it needs, once that is planned.

    Not of a model on demand: what others hold now may be given up when it is loaded.
    """
    for name, facts in context.facts.items() if context.spec.idle_s is None else ():
        memory = read(facts.memory)
        if memory is not None and not context.runs_rank(name):
            try:
                playbook = context.engine.planned(context.spec, context.facts, context.topology).playbook
            except PlanError:  # the plan reports it
                return
            takes = context.engine.memory_share(playbook, facts)
            yield name, facts, memory, int(memory.total_bytes * takes)


def _free_memory(context: Context, node: str, memory: Memory) -> list[Remedy]:
    facts = context.facts[node]
    lower = max(0.1, int(100 * memory.available_bytes / memory.total_bytes) / 100)
    running = [rank.name for rank in read(facts.ranks) or () if rank.state == "running"]
    stop = [on_node(shell("docker stop", name), "if it is not needed") for name in running]
    stop += hand_over(context, node, [each for each in facts.containers if each.engine])
    return [*stop, TOP, edit(f"set gpu-memory-utilization: {lower} in the playbook")]
