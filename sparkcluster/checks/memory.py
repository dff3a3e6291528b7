"""Checks of the unified memory of each node."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import REBOOT, Context, Seen, container_check, member_check, node_check
from sparkcluster.checks.docker import hand_over
from sparkcluster.errors import PlanError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts, Memory
from sparkcluster.findings import Remedy, Severity, edit, on_node
from sparkcluster.fit.safetensors import of_checkpoint
from sparkcluster.fit.source import Machine, Source
from sparkcluster.printable import shell
from sparkcluster.report import share, size
from sparkcluster.topology.model import Member

GIB = 2**30
# An engine that reads MemFree refused a node with 40 of 121 GiB in the page cache.
MUCH_CACHE = 0.2
# Memory that an idle Spark may use: stock installs had 102 of 121.69 GiB free for CUDA after the caches were dropped
# (github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47); a leak is 30 GiB.
IN_USE = 24 * GIB
DROP = on_node("sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'")
TOP = on_node("ps aux --sort=-rss | head")


@container_check(
    "HOST-006",
    "There is enough free memory for the engine",
    needs=("memory",),
    severity="warning",
    remedy="stop other programs, or lower the engine's share of the memory",
)
def memory(context: Context) -> Iterator[Seen]:
    """The engine refuses to start, or the node freezes and answers only to ping.

    GPU and CPU share one memory. The engine takes the share set by its arguments, or its default. Free swap does not
    count: GPU memory is not swapped out.
    """
    for name, _, memory, needed in _needs(context):
        free = memory.available_bytes
        if free < needed:
            yield Seen(
                f"{name} has less free memory than the engine needs",
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
    """The engine fails with `Free memory on device is less than desired` although memory is available.

    All programs can use page cache as free memory, except CUDA, which reads MemFree. Reading weights or loading an
    image fills the cache. `up` drops its own files from it, without root; other files stay. Newer engines count the
    cache as free: a warning if it is a fifth of the memory or more, else info.
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
    """A killed engine may leave allocated GPU memory, or files in /dev/shm, that no program uses.

    Memory of processes (AnonPages) is not counted. GPU allocations are counted, since they belong to no process.
    Info if enough memory is left for the engine's share.
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
            f"{size(used)} in addition to {size(memory.anonymous_bytes)} of processes",
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


def misfits(
    context: Context, name: str, facts: Facts, *, doubtful: Severity = "warning", keep_bytes: int = 0
) -> Iterator[Seen]:
    """Reports that the model does not fit the free memory of a node, by its engine's forecast; for checks of engines.

    ``doubtful`` is the severity if it may fit, or if less than ``keep_bytes`` would stay free. Empty if the model's
    config.json is unknown, if it runs there, and for models on demand: others free their memory before.
    """
    if context.runs_rank(name) or context.spec.idle_s is not None:
        return
    weights, memory, playbook = read(facts.weights), read(facts.memory), context.spec.playbook
    if weights is None or memory is None or weights.config is None:
        return
    nodes = next((group.size for group in context.topology.groups if name in group.names), 1)
    sizes = {file.name: file.size_bytes for file in weights.files}
    loaded = [file for file in sizes if file.endswith(".gguf")] or of_checkpoint(sizes)
    model = Source(playbook.model.label, weights.config, size_bytes=sum(sizes[file] for file in loaded))
    used = memory.total_bytes - memory.available_bytes
    try:
        machine = Machine(memory.total_bytes, memory.total_bytes, used)
        found = context.engine.forecast(playbook, model, machine, nodes=nodes)
    except UsageError:
        return
    if found is None:
        return
    left = found["memory"]["left_for_system_bytes"] - used
    why = [*found["problems"], *found["doubts"]]
    why += [f"only {size(max(0, left))} would stay free, keep {size(keep_bytes)}"] if left < keep_bytes else []
    if why:
        yield Seen(
            f"{playbook.model.file or playbook.model.label} {'does' if found['problems'] else 'may'} not fit {name}",
            f"{why[0]}; {size(memory.available_bytes)} free",
            found["advice"] or None,
            severity=None if found["problems"] else doubtful,
        )


def _needs(context: Context) -> Iterator[tuple[str, Facts, Memory, int]]:
    """Nodes without a running rank, with the bytes that the planned engine needs.

    Empty for a model on demand: other models may free their memory before it is loaded.
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
    argument = context.engine.common_arguments.get("memory")
    return [*stop, TOP, *([edit(f"set {argument}: {lower} in the playbook")] if argument else [])]
