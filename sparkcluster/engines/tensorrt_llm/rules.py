"""Checks of playbooks of TensorRT-LLM, and of its log."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import AGAIN, Context, Seen, node_check
from sparkcluster.checks.memory import misfits
from sparkcluster.checks.running_cluster import RunningCluster, clipped, running_check
from sparkcluster.engines.tensorrt_llm.memory import number
from sparkcluster.facts.model import Facts
from sparkcluster.findings import edit

DROP = "free the page cache before the start: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"


@node_check(
    "FIT-006",
    "Weights and KV cache of TensorRT-LLM fit the free memory",
    needs=("memory", "weights"),
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/trt-llm/README.md, Troubleshooting",
    remedy=(DROP, "lower max-seq-len or max-num-tokens: see `sparkcluster fit PLAYBOOK`"),
)
def fits(context: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """The engine loads for minutes and fails with `Executor creation failed due to insufficient GPU memory`.

    Nodes without the model are skipped, since its config.json is needed, and models on demand, since others free their
    memory before they are loaded.
    """
    return misfits(context, name, facts, doubtful="info")


@running_check(
    "RUN-029",
    "TensorRT-LLM serves the playbook's full context",
    severity="warning",
    source="docs/internals/sources.md: 86,720 of 131,072 tokens on a Spark",
    remedy=(DROP, edit("lower max-seq-len in the playbook")),
)
def shortened(cluster: RunningCluster) -> Iterator[Seen]:
    """Longer requests are refused: the memory that was free at startup did not hold one request of full context.

    CUDA counts the page cache as used memory, and loading the weights fills it.
    """
    wanted = number(cluster.spec.playbook, "max-seq-len")
    for name, (match, line) in cluster.last_match(r"Adjusted max_seq_len to (\d{1,9})").items():
        if int(match[1]) < wanted:
            summary = f"requests on {name} are limited to {int(match[1]):,} of {wanted:,} tokens"
            yield Seen(
                summary, clipped(line), (DROP, edit(f"set max-seq-len: {match[1]} in the playbook"), AGAIN), node=name
            )
