"""Checks whether the file fits the memory of its Spark."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import Context, Seen, node_check
from sparkcluster.engines.llama_cpp.memory import forecast
from sparkcluster.errors import UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.fit.source import Machine, Source
from sparkcluster.report import size


@node_check(
    "FIT-004",
    "File and KV cache fit the memory that is free",
    needs=("memory", "weights"),
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/llama-cpp/README.md, Troubleshooting",
    remedy="lower ctx-size, or serve a smaller file: `sparkcluster fit PLAYBOOK` says which",
)
def fits(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """llama.cpp allocates the KV cache of all of `ctx-size` when it starts, and fails, or puts layers on the CPU.

    Computed by the header of the GGUF, so that nodes without the file are skipped.
    """
    weights, memory = read(facts.weights), read(facts.memory)
    if weights is None or memory is None or weights.config is None or context.runs_rank(name):
        return
    playbook = context.spec.playbook
    files = {file.name: file.size_bytes for file in weights.files if file.name.endswith(".gguf")}
    model = Source(playbook.model.label, weights.config, size_bytes=sum(files.values()))
    try:
        found = forecast(playbook, model, Machine(memory.total_bytes, memory.available_bytes, 0))
    except UsageError:
        return
    if found["problems"] or found["doubts"]:
        needed = memory.available_bytes - found["memory"]["left_for_system_bytes"]
        yield Seen(
            f"{playbook.model.file} {'does' if found['problems'] else 'may'} not fit {name}",
            f"{size(needed)} needed, {size(memory.available_bytes)} free",
            found["advice"] or (found["problems"] or found["doubts"]),
            severity=None if found["problems"] else "warning",
        )
