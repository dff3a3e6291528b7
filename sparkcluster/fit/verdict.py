"""Whether a model fits a Spark, at which --gpu-memory-utilization, and how much memory is left. Pure.

vLLM's budget is ``utilization x visible memory``. It subtracts weights, a step and the driver, and uses the rest for
the KV cache (``Worker.determine_available_memory`` in ``vllm/v1/worker/gpu_worker.py``). Weights and KV cache follow
from the model. ``runtime`` estimates the memory of a step, with constants fitted to public measurements. docs/fit.md
has the deviations, and how much vLLM's own profiling varies between starts; the verdict leaves room for both.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import Literal

from sparkcluster.fit.config import ModelConfig
from sparkcluster.fit.defaults import EngineSettings
from sparkcluster.fit.kv import Layout, layout
from sparkcluster.fit.layers import State
from sparkcluster.fit.source import GIB, Machine
from sparkcluster.fit.weights import Weights
from sparkcluster.report import size

GB = 10**9

Verdict = Literal["does not fit", "too close to call", "fits"]
VERDICTS: tuple[Verdict, ...] = ("does not fit", "too close to call", "fits")

HOST_BYTES = 3 * GIB
"""Memory of the engine's processes outside its budget: 2.9 and 3.0 GB in the same measurements."""

DRIVER_BYTES = int(1.4 * GIB)
GRAPH_BYTES = int(0.05 * GIB)
"""Memory of one CUDA graph: 0.8 "effectively 0.758" with 51 sizes of both kinds on two Sparks
(https://github.com/eugr/spark-vllm-docker/issues/396)."""
LARGEST_GRAPH = 512
LOADER_BYTES = {"instanttensor": int(4.4 * GIB)}
"""Memory that a --load-format keeps in addition to the weights: 15.01 against 10.58 GiB of KV cache with another loader
(https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/204; three other runs: 5.1)."""
ENCODER_BYTES = int(2.0 * GIB)
NETWORK_BYTES = int(0.5 * GIB)
STREAM_NUMBERS = 16
"""Numbers per token, residual stream and hidden unit, in a model with several streams: 5.30 GiB with 8,224 tokens, 1.39
with 2,048 (https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark/issues/4)."""
FALLBACK_STEP_BYTES = int(0.9 * GIB)
"""Additional memory of a step if 4-bit experts first try FlashInfer's kernels: 4.2 against 3.3 GiB of KV cache with the
same budget (github.com/Sggin1/DGX-SPARK, nvfp4-guide)."""
FALLBACK_HOST_BYTES = 7 * GB
"""Its additional memory outside the budget: the same guide's "+7 GB overhead"."""
LEAST_SHARE, MOST_SHARE, MOST_MORE_BYTES = 0.4, 1.35, GIB
"""Range of a step's real memory: in every measurement in docs/fit.md it is at least 0.4 times the estimate and at most
1.35 times the estimate plus 1 GiB. On unified memory, vLLM also counts page cache and compilers that run at the same
time: the KV cache of one recipe differed by 1.2 GiB in three starts (the issue above)."""
ESTIMATED_WEIGHTS = 0.05
"""Error of weights estimated from config.json; docs/fit.md has the real deviations."""
CEILING = 0.90
"""Above it, Sparks lost the GPU's channel (Xid 43, conselara.dev/tags/vllm) or processes were killed for memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Memory of one node at one utilization.

    Attributes:
        runtime_bytes: a step and the driver, in addition to weights and KV cache; estimated.
        budget_bytes: total memory budget of the engine.
        host_bytes: memory of its processes outside the budget; estimated.
        pool_bytes: KV cache; negative if not even the weights fit.
        least_bytes: KV cache if weights and a step take their maximum.
        most_bytes: KV cache if they take their minimum.
        tokens: GPU KV cache size, as logged by vLLM.
        concurrency: Maximum concurrency, as logged by vLLM.
        requests: required parallel requests of full context.
        left_bytes: memory left for the system.
        smallest: smallest utilization, in hundredths, with room for ``requests``; above 1 if there is none.
        safe: smallest utilization with room for ``requests`` if weights and a step take their maximum.
        fixed: whether the KV cache has a fixed size; the utilization then only sets the memory that must be free at the
            start (https://github.com/vllm-project/vllm/pull/21489, .../39852).
        problems: why it does not fit; empty if it may fit.
        doubts: why it may not fit; empty if the result is certain.
        advice: changes to make, in order; also if it fits but is near a limit.
    """

    engine: EngineSettings
    machine: Machine
    layout: Layout
    weights: Weights
    runtime_bytes: int
    utilization: float
    budget_bytes: int
    host_bytes: int
    pool_bytes: int
    least_bytes: int
    most_bytes: int
    tokens: int
    concurrency: float
    requests: int
    left_bytes: int
    smallest: float
    safe: float
    fixed: bool = False
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether the engine starts with room for ``requests``."""
        return "does not fit" if self.problems else "too close to call" if self.doubts else "fits"

    @property
    def size_key(self) -> str:
        """Name of the setting for a fixed KV cache size."""
        return "VLLM_CPU_KVCACHE_SPACE" if self.engine.device == "cpu" else "kv-cache-memory-bytes"


def runtime(config: ModelConfig, engine: EngineSettings) -> int:
    """Estimated bytes of a step of ``engine`` and of the driver, in addition to weights and KV cache.

    Includes activations of the largest batch (the residual stream and its copies, two intermediates of experts, chunks
    of states), logits of a full batch, CUDA graphs if vLLM counts them, profiling of encoders, and buffers of NCCL and
    the loader.
    """
    if engine.device == "cpu":
        return 2 * GIB
    tokens = engine.batched_tokens
    wide = max(*config.widths, 2 * config.shape.hidden)
    each = 4 * config.shape.hidden + 2 * wide / engine.ranks
    if config.experts is not None:
        chosen = min(8, config.experts.count)
        each = 4 * config.shape.hidden + chosen * (config.shape.hidden + 2 * config.experts.width / engine.ranks)
    if config.streams > 1:
        each += (STREAM_NUMBERS * config.streams - 4) * config.shape.hidden
    states = max(
        (state.recurrent_numbers(engine.ranks) for state in config.caches if isinstance(state, State)), default=0
    )
    numbers = tokens * each + states * tokens / 128
    logits = 2 * min(engine.sequences, tokens) * config.vocabulary * 4
    total = DRIVER_BYTES + 2 * numbers + logits + graphs(engine) * GRAPH_BYTES + LOADER_BYTES.get(engine.loader, 0)
    if config.multimodal:
        total += ENCODER_BYTES
    if engine.ranks * engine.stages > 1:
        total += NETWORK_BYTES
    if engine.falls_back:
        total += FALLBACK_STEP_BYTES
    return int(total)


def graphs(engine: EngineSettings) -> int:
    """Number of CUDA graphs that vLLM profiles: one per batch size, and a second one for sizes that only decode.

    Sizes: ``_set_cudagraph_sizes`` in ``vllm/config/vllm.py``, confirmed by its logs (51 up to 512).
    """
    if engine.eager or not engine.profiles_graphs or not engine.has("CUDA graphs are profiled"):
        return 0
    decoded = engine.sequences * (1 + engine.drafted)
    largest = engine.largest_graph or min(2 * decoded, LARGEST_GRAPH)
    sizes: list[int] = [
        batch for batch in (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_GRAPH + 1, 16)) if batch <= largest
    ]
    return len(sizes) + sum(batch <= decoded for batch in sizes)


def fit(
    config: ModelConfig,
    engine: EngineSettings,
    weights: Weights,
    machine: Machine,
    *,
    utilization: float | None,
    requests: int = 1,
    pool_bytes: int | None = None,
) -> Fit:
    """Whether a model fits one node.

    Args:
        config: the model.
        engine: its settings.
        weights: weights of one rank.
        machine: the node's memory.
        utilization: None for the smallest that is safe for ``requests``.
        requests: required parallel requests of full context.
        pool_bytes: fixed size of the KV cache, instead of a utilization.

    Raises:
        UsageError: the engine does not support these settings with this model.
    """
    cache = layout(config, engine)
    step = runtime(config, engine)
    fixed = weights.rank_bytes + step
    off = 0.0 if weights.counted else ESTIMATED_WEIGHTS * weights.rank_bytes
    more = int(off + (MOST_SHARE - 1) * step + MOST_MORE_BYTES)
    less = int(off + (1 - LEAST_SHARE) * step)

    def holds(taken: float) -> float:
        return math.ceil((taken + cache.bytes_for(requests)) / machine.visible_bytes * 100) / 100

    smallest, safe = holds(fixed), holds(fixed + more)
    if pool_bytes is None:
        taken = utilization if utilization is not None else max(safe, 0.01)
        budget = math.ceil(machine.visible_bytes * taken)
    else:  # without profiling
        budget, more, less = fixed + pool_bytes, 0, 0
        taken = budget / machine.visible_bytes
    pool = budget - fixed
    host = HOST_BYTES + (FALLBACK_HOST_BYTES if engine.falls_back else 0)
    left = machine.visible_bytes - budget - host
    found = Fit(
        engine=engine,
        machine=machine,
        layout=cache,
        weights=weights,
        runtime_bytes=step,
        utilization=taken,
        budget_bytes=budget,
        host_bytes=host,
        pool_bytes=pool,
        least_bytes=pool - more,
        most_bytes=pool + less,
        tokens=cache.tokens(pool),
        concurrency=cache.concurrency(pool),
        requests=requests,
        left_bytes=left,
        smallest=smallest,
        safe=safe,
        fixed=pool_bytes is not None,
    )
    return _judged(found, config)


def largest_context(config: ModelConfig, engine: EngineSettings, pool_bytes: int, requests: int = 1) -> int:
    """The longest context, in tokens, of which ``requests`` requests fit into a pool; 0 if none."""

    def needed(context: int) -> int:
        return layout(config, dataclasses.replace(engine, context=context)).bytes_for(requests)

    return bisect.bisect_right(range(1, engine.context + 1), pool_bytes, key=needed)


def _judged(found: Fit, config: ModelConfig) -> Fit:
    """``found`` with problems, doubts and advice."""
    problems: list[str] = []
    doubts: list[str] = []
    advice: list[str] = []
    needed = found.layout.bytes_for(found.requests)
    left, system, most = found.left_bytes, found.machine.system_bytes, _most(found)
    if found.least_bytes < needed:
        (problems if found.most_bytes < needed else doubts).append(_too_small(found))
        advice += [f"set {found.size_key} to {math.ceil(needed / GIB)} GiB"] if found.fixed else _smaller(found, config)
    if left < system:
        problems.append(f"only {size(left)} would be left for the system, which needs {size(system)}")
        spare = found.pool_bytes - (system - left)
        if found.fixed and spare >= needed:
            advice.append(f"set {found.size_key} to {spare // GIB} GiB or less")
        elif not found.fixed and most >= found.safe and found.utilization > most:
            advice.append(f"set gpu-memory-utilization to {most:.2f} or less")
    elif not found.fixed and found.utilization > CEILING:
        taken = f"gpu-memory-utilization {found.utilization:.2f}"
        advice.append(f"{taken} is above {CEILING:.2f}, where Sparks have crashed: set it lower")
    return dataclasses.replace(found, problems=tuple(problems), doubts=tuple(doubts), advice=tuple(advice))


def _most(found: Fit) -> float:
    """The largest utilization, in hundredths, that leaves enough for the system and has not crashed Sparks."""
    machine = found.machine
    left = machine.visible_bytes - found.host_bytes - machine.system_bytes
    return max(0.0, min(CEILING, math.floor(left / machine.visible_bytes * 100) / 100))


def _too_small(found: Fit) -> str:
    pool, requests = found.pool_bytes, found.requests
    if found.most_bytes <= 0:
        return (
            f"weights of {size(found.weights.rank_bytes)} and the memory of a step are "
            f"{size(-pool)} more than the engine's budget of {size(found.budget_bytes)}"
        )
    of, need = ("one request", "needs") if requests == 1 else (f"{requests} requests", "need")
    needs = f"{of} of {found.engine.context:,} tokens {need} {size(found.layout.bytes_for(requests))} of KV cache"
    if found.least_bytes == found.most_bytes:
        return f"{needs}, but only {size(pool)} is left"
    return f"{needs}, but {size(max(0, found.least_bytes))} to {size(found.most_bytes)} are left"


def _smaller(found: Fit, config: ModelConfig) -> list[str]:
    """Changes to make it fit, least intrusive first."""
    advice = []
    most, engine, requests = _most(found), found.engine, found.requests
    if found.safe <= most:
        return [f"set gpu-memory-utilization to {found.safe:.2f}"]
    room = math.floor(found.machine.visible_bytes * most) - found.budget_bytes + found.least_bytes
    if room > 0:
        context = largest_context(config, engine, room, requests) // 1024 * 1024
        if context:
            advice.append(f"set max-model-len to {context}, with gpu-memory-utilization {most:.2f}")
        possible = room // found.layout.request_bytes - 1
        if requests > 1 and possible >= 1:
            advice.append(f"plan for {possible} concurrent requests of full context instead of {requests}")
        if engine.kv_dtype == "auto" and config.quantization.kv_dtype is None:
            advice.append("set kv-cache-dtype to fp8, if the model tolerates it")
    nodes = 2 * engine.ranks
    if config.shape.heads and config.shape.heads % nodes == 0:
        advice.append(f"serve it on {nodes} Sparks, with tensor_parallel {nodes} or auto")
    if config.quantization.kind == "none":
        advice.append("use a checkpoint with smaller weights, such as NVFP4 or FP8")
    return advice or ["use a smaller model"]
