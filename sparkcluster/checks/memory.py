"""Checks of the memory that CPU and GPU of each node share."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.docker import runs_rank
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.facts.model import Facts, Memory, read

GIB = 2**30
# Less than this in swap is what any system that has been up for days moves out.
SWAPPED_BYTES = 4 * GIB
# An engine that goes by MemFree refuses a node like this one was: 40 of 121 GiB in the page cache.
MUCH_CACHE = 0.2
DROP = "sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'"


@check(
    "HOST-006",
    "There is memory for what the engine will take",
    needs=("memory",),
    severity="warning",
    scope="container",
    source="NVIDIA DGX Spark known issues: what can be allocated is MemAvailable and free swap",
    remedy="end what else takes memory, or lower gpu-memory-utilization",
)
def memory(context: Context) -> Iterator[Seen]:
    """The engine refuses to start, or the node freezes and only ICMP still answers.

    GPU and CPU share one memory. The engine takes the share of it that `gpu-memory-utilization` names, or its default.
    """
    for name, facts, have, wanted in _claims(context):
        free = have.available_bytes + have.swap_free_bytes
        if free < wanted:
            yield Seen(
                name,
                f"{name} has less memory free than the engine will take",
                f"{free / GIB:.1f} of {have.total_bytes / GIB:.1f} GiB, {wanted / GIB:.1f} GiB wanted",
                _room(facts, have),
            )


@check(
    "HOST-022",
    "Page cache leaves the engine its memory",
    needs=("memory",),
    severity="warning",
    scope="container",
    remedy=DROP,
)
def page_cache(context: Context) -> Iterator[Seen]:
    """The engine ends with `Free memory on device is less than desired`, though the memory could be had.

    What files leave in the page cache is free for every program and taken for CUDA, which goes by MemFree. Reading
    weights or loading an image fills it. sparkcluster takes what it stages out of the cache again; what others
    read stays until it is dropped. Newer engines count the cache as free: a warning only where it holds a fifth of
    the memory and more, else told for information.
    """
    for name, _, have, wanted in _claims(context):
        enough = have.available_bytes + have.swap_free_bytes >= wanted
        held = min(have.cached_bytes, have.available_bytes - have.free_bytes)
        if enough and have.free_bytes < wanted <= have.free_bytes + held + have.swap_free_bytes and held > 0:
            yield Seen(
                name,
                f"page cache holds memory of {name} that the engine will want",
                f"{have.free_bytes / GIB:.1f} GiB free, {wanted / GIB:.1f} GiB wanted, about "
                f"{held / GIB:.1f} GiB would be freed",
                (DROP,),
                severity="warning" if held >= MUCH_CACHE * have.total_bytes else "info",
            )


@check(
    "HOST-023",
    "Little is swapped out",
    needs=("memory",),
    severity="info",
    source="practitioners' reports: a Spark that swaps stalls before it runs out",
    remedy="sudo swapoff -a && sudo swapon -a while nothing serves",
)
def swapped(context: Context) -> Iterator[Seen]:
    """Whatever was moved to disk is slow when it is wanted again: a sign that memory was short here lately.

    Swap itself is part of DGX OS, and counts as memory that can be had.
    """
    for name, facts in context.facts.items():
        have = read(facts.memory)
        if have is not None and have.swap_total_bytes - have.swap_free_bytes > SWAPPED_BYTES:
            out = have.swap_total_bytes - have.swap_free_bytes
            yield Seen(
                name,
                f"{name} has moved much of its memory to disk",
                f"{out / GIB:.1f} of {have.swap_total_bytes / GIB:.1f} GiB of swap in use",
                ("ps aux --sort=-rss | head", "sudo swapoff -a && sudo swapon -a"),
            )


@check(
    "HOST-024",
    "The kernel keeps memory together for RDMA",
    needs=("memory",),
    severity="warning",
    scope="interconnect",
    source="NVIDIA DGX Spark forum: CmaTotal 0 on 7.0.0-1019-nvidia without kho=off",
    remedy="kho=off on the kernel's command line",
)
def contiguous(context: Context) -> Iterator[Seen]:
    """Registering buffers of several GB for RDMA fails: `ibv_reg_mr … Cannot allocate memory`, and the rank dies.

    Healthy is a CmaTotal of 131072 kB. Kernel 7.0.0-1019-nvidia has none unless it is started with `kho=off`.
    """
    for member in context.topology.members.values():
        have = read(context.facts[member.name].memory)
        if member.hcas and have is not None and have.cma_total_bytes == 0:
            yield Seen(
                member.name,
                f"{member.name} keeps no contiguous memory for RDMA",
                f"CmaTotal 0 kB, kernel {context.facts[member.name].kernel}",
                (
                    "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX kho=off\"' | sudo tee /etc/default/grub.d/kho.cfg",
                    "sudo update-grub",
                    "sudo reboot",
                ),
            )


def _claims(context: Context) -> Iterator[tuple[str, Facts, Memory, int]]:
    """Nodes on which the engine is still to take its memory, with the bytes that it will want."""
    for name, facts in context.facts.items():
        have = read(facts.memory)
        if have is not None and not runs_rank(context, facts):
            yield name, facts, have, int(have.total_bytes * context.engine.memory_share(context.spec.playbook, facts))


def _room(facts: Facts, have: Memory) -> tuple[str, ...]:
    lower = max(0.1, int(100 * (have.available_bytes + have.swap_free_bytes) / have.total_bytes) / 100)
    others = [rank.name for rank in read(facts.ranks) or () if rank.state == "running"]
    ours = tuple(f"docker stop {name}   if it may end" for name in others)
    return (*ours, "ps aux --sort=-rss | head", f"set gpu-memory-utilization: {lower} in the playbook")
