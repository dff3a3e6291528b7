"""The document of ``fit --json`` for engines whose memory is weights, one pool of KV cache, and activations."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkcluster.fit.source import Machine


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """The KV cache of one rank, in bytes.

    Attributes:
        set_by: the argument that sets its size.
        bytes: expected size.
        wanted: size that the requests need.
        least: lower bound.
        most: upper bound.
        token_bytes: size of one token.
    """

    set_by: str
    bytes: int
    wanted: int
    least: int
    most: int
    token_bytes: float

    def tokens(self, size: int) -> int:
        """Tokens that fit into ``size`` bytes."""
        return int(size / max(1.0, self.token_bytes))


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Other memory of a rank, in bytes.

    Attributes:
        weights: the rank's weights.
        counted: whether the weights are counted from the tensors; else they are estimated.
        checkpoint: weights of the complete model.
        step: activations and the driver.
        host: the engine's processes, in addition to GPU memory.
    """

    weights: int
    counted: bool
    checkpoint: int
    step: int
    host: int


def answer(
    pool: Pool,
    taken: Taken,
    machine: Machine,
    *,
    context: int,
    requests: int,
    problems: list[str],
    doubts: list[str],
    advice: list[str],
    not_counted: list[str],
    nodes: int = 1,
    **names: str,
) -> dict[str, Any]:
    """The document.

    Args:
        pool: the KV cache.
        taken: everything else.
        machine: memory of the node.
        context: tokens of a request.
        requests: concurrent requests of that length.
        problems: why it does not fit.
        doubts: why it may not fit.
        advice: what to change.
        not_counted: what the figures omit.
        nodes: number of nodes that share the model by tensor parallelism.
        names: playbook, model, architecture and quantization.
    """
    left = machine.visible_bytes - taken.weights - taken.step - taken.host - pool.bytes
    tokens = pool.tokens(pool.bytes)
    return {
        **names,
        "fits": None if doubts and not problems else not problems,
        "verdict": "does not fit" if problems else "too close to call" if doubts else "fits",
        "problems": problems,
        "doubts": doubts,
        "advice": advice,
        "not_counted": not_counted,
        "nodes": nodes,
        "tensor_parallel": nodes,
        "pipeline_parallel": 1,
        "context": context,
        "concurrency_wanted": requests,
        "gpu_memory_utilization": None,
        "gpu_memory_utilization_is_auto": False,
        "smallest_gpu_memory_utilization": None,
        "safe_gpu_memory_utilization": None,
        "kv_cache": {
            "set_by": pool.set_by,
            "bytes_wanted": pool.wanted,
            "tokens": tokens,
            "tokens_most": pool.tokens(pool.most),
            "concurrency": round(tokens / max(1, context), 2),
            "bytes": pool.bytes,
            "bytes_least": pool.least,
            "bytes_most": pool.most,
            "tokens_least": pool.tokens(pool.least),
            "bytes_per_request": int(pool.token_bytes * context),
            "bytes_per_token": round(pool.token_bytes, 1),
            "block_bytes": 0,
            "groups": [],
        },
        "memory": {
            "installed_bytes": machine.installed_bytes,
            "visible_bytes": machine.visible_bytes,
            "budget_bytes": taken.weights + taken.step + pool.bytes,
            "weights_bytes": taken.weights,
            "weights_counted": taken.counted,
            "checkpoint_bytes": taken.checkpoint,
            "runtime_bytes": taken.step,
            "engine_host_bytes": taken.host,
            "left_for_system_bytes": left,
            "system_needs_bytes": machine.system_bytes,
        },
    }
