"""Checks whether the file fits the memory of its Spark."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import Context, Seen, node_check
from sparkcluster.checks.memory import misfits
from sparkcluster.facts.model import Facts


@node_check(
    "FIT-004",
    "File and KV cache fit the free memory",
    needs=("memory", "weights"),
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/llama-cpp/README.md, Troubleshooting",
    remedy="lower ctx-size, or serve a smaller file: see `sparkcluster fit PLAYBOOK`",
)
def fits(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """llama.cpp allocates the KV cache for `ctx-size` tokens when it starts; it fails, or puts layers on the CPU.

    Computed from the header of the GGUF, so nodes without the file are skipped. Models on demand are skipped, since
    others free their memory before they are loaded.
    """
    return misfits(context, name, facts)
