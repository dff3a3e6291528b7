"""Whether a model fits a Spark, at which --gpu-memory-utilization, and what is left: pure arithmetic.

vLLM takes ``utilization x what it sees`` as its budget, subtracts weights, what a step needs and what the driver
takes, and makes the KV cache of the rest (``Worker.determine_available_memory`` in ``vllm/v1/worker/gpu_worker.py``).
Weights and KV cache follow from the model; what a step needs does not, and is estimated by ``runtime``, whose
constants were set so that public measurements come out. docs/fit.md shows how well, and how far vLLM's own profiling
is from one start to the next: the verdict leaves room for both.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import Literal

from sparkcluster.fit.config import ModelConfig
from sparkcluster.fit.defaults import Engine
from sparkcluster.fit.kv import Layout, layout
from sparkcluster.fit.layers import State
from sparkcluster.fit.source import GIB, Machine
from sparkcluster.fit.weights import Weights
from sparkcluster.report import size

GB = 10**9

Verdict = Literal["does not fit", "too close to say", "fits"]
VERDICTS: tuple[Verdict, ...] = ("does not fit", "too close to say", "fits")

HOST_BYTES = 3 * GIB
"""What the engine's processes take beside their budget: 2.9 and 3.0 GB, of the same measurements."""

DRIVER_BYTES = int(1.4 * GIB)
GRAPH_BYTES = int(0.05 * GIB)
"""Of one CUDA graph: 0.8 "effectively 0.758" with 51 sizes of both kinds on two Sparks
(https://github.com/eugr/spark-vllm-docker/issues/396)."""
LARGEST_GRAPH = 512
LOADER_BYTES = {"instanttensor": int(4.4 * GIB)}
"""What a --load-format keeps beside the weights: 15.01 less 10.58 GiB of KV cache, the loader alone being changed
(https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/204; three other runs: 5.1)."""
ENCODER_BYTES = int(2.0 * GIB)
NETWORK_BYTES = int(0.5 * GIB)
STREAM_NUMBERS = 16
"""Numbers of a token for each residual stream and hidden unit, where a model has several streams: 5.30 GiB with 8,224
tokens, 1.39 with 2,048 (https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark/issues/4)."""
FALLBACK_STEP_BYTES = int(0.9 * GIB)
"""What a step takes more where experts of four bits try FlashInfer's kernels first: 4.2 less 3.3 GiB of KV cache
with the same budget (github.com/Sggin1/DGX-SPARK, nvfp4-guide)."""
FALLBACK_HOST_BYTES = 7 * GB
"""What that takes beside the budget: the same guide's "+7 GB overhead"."""
LEAST_SHARE, MOST_SHARE, MOST_MORE_BYTES = 0.4, 1.35, GIB
"""What a step really takes, as a part of the estimate: every measurement in docs/fit.md is between 0.4 of it, and 1.35
of it and 1 GiB. On memory that CPU and GPU share, vLLM counts page cache and compilers that run meanwhile: the KV
cache of one recipe differed by 1.2 GiB in three starts (the issue above)."""
ESTIMATED_WEIGHTS = 0.05
"""How far weights that are estimated from config.json may be off; docs/fit.md has how far they are."""
CEILING = 0.90
"""Above it, Sparks were seen to lose the GPU's channel (Xid 43, conselara.dev/tags/vllm) or to be killed for memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """What one node holds, at one utilization.

    Attributes:
        runtime_bytes: what a step and the driver need beside weights and KV cache; estimated.
        budget_bytes: what the engine may take in all.
        host_bytes: what its processes take beside that; estimated.
        pool_bytes: KV cache; negative where not even the weights fit.
        least_bytes: KV cache if weights and a step take the most that they may.
        most_bytes: KV cache if they take the least.
        tokens: GPU KV cache size, as vLLM logs it.
        concurrency: Maximum concurrency, as vLLM logs it.
        requests: of full context at once, which it is to hold.
        left_bytes: what the system has when all is taken.
        smallest: the smallest utilization, in hundredths, that holds ``requests``; above 1 where none does.
        safe: likewise, if weights and a step take the most that they may.
        fixed: whether the KV cache was requested by its size: the utilization then decides about nothing but the memory
            that has to be free at the start (https://github.com/vllm-project/vllm/pull/21489, .../39852).
        problems: why it does not fit; none where it may.
        doubts: why it may not fit; none where it does or does not for certain.
        advice: what to change, in order; also where it fits, and something is near a limit.
    """

    engine: Engine
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
        """Whether the engine starts, and holds what was asked for."""
        return "does not fit" if self.problems else "too close to say" if self.doubts else "fits"

    @property
    def size_key(self) -> str:
        """What requests a KV cache by its size."""
        return "VLLM_CPU_KVCACHE_SPACE" if self.engine.device == "cpu" else "kv-cache-memory-bytes"


def runtime(config: ModelConfig, engine: Engine) -> int:
    """Bytes that a step of ``engine`` and the driver need beside weights and KV cache.

    An estimate: activations of the largest batch (the residual stream and its copies, the experts' two
    intermediates, the states' chunks), the logits of a full batch of sequences, CUDA graphs where vLLM
    counts them, the encoder's own profiling, buffers of NCCL and of the loader.
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


def graphs(engine: Engine) -> int:
    """CUDA graphs that vLLM profiles: one of each batch size, and another of each that only decodes.

    Sizes: ``_set_cudagraph_sizes`` in ``vllm/config/vllm.py``, as its logs have them (51 up to 512).
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
    engine: Engine,
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
        engine: how it is started.
        weights: of one rank.
        machine: the node's memory.
        utilization: None for the smallest that holds ``requests`` whatever a step takes.
        requests: of full context at once.
        pool_bytes: KV cache that was requested by its size, which takes the place of the utilization.

    Raises:
        UsageError: the engine cannot be started so with this model.
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
    else:  # it profiles nothing then
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


def largest_context(config: ModelConfig, engine: Engine, pool_bytes: int, requests: int = 1) -> int:
    """The longest context of which ``requests`` requests fit into a pool, in tokens; 0 where none does."""

    def needed(context: int) -> int:
        return layout(config, dataclasses.replace(engine, context=context)).bytes_for(requests)

    return bisect.bisect_right(range(1, engine.context + 1), pool_bytes, key=needed)


def _judged(found: Fit, config: ModelConfig) -> Fit:
    """``found`` with why it does not fit, or may not, and what to change."""
    problems: list[str] = []
    doubts: list[str] = []
    advice: list[str] = []
    needed = found.layout.bytes_for(found.requests)
    left, system, most = found.left_bytes, found.machine.system_bytes, _most(found)
    if found.least_bytes < needed:
        (problems if found.most_bytes < needed else doubts).append(_too_small(found))
        advice += [f"set {found.size_key} to {math.ceil(needed / GIB)} GiB"] if found.fixed else _smaller(found, config)
    if left < system:
        problems.append(f"{size(left)} would be left for the system, which takes {size(system)}")
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
    """The largest utilization, in hundredths, that leaves the system what it needs and is not known to crash."""
    machine = found.machine
    left = machine.visible_bytes - found.host_bytes - machine.system_bytes
    return max(0.0, min(CEILING, math.floor(left / machine.visible_bytes * 100) / 100))


def _too_small(found: Fit) -> str:
    pool, requests = found.pool_bytes, found.requests
    if found.most_bytes <= 0:
        return (
            f"weights of {size(found.weights.rank_bytes)} and what a step needs are "
            f"{size(-pool)} more than the {size(found.budget_bytes)} that the engine may take"
        )
    of = "one request" if requests == 1 else f"{requests} requests"
    needs = f"{of} of {found.engine.context:,} tokens needs {size(found.layout.bytes_for(requests))} of KV cache"
    if found.least_bytes == found.most_bytes:
        return f"{needs}, but only {size(pool)} is left"
    return f"{needs}, and {size(max(0, found.least_bytes))} to {size(found.most_bytes)} are left"


def _smaller(found: Fit, config: ModelConfig) -> list[str]:
    """What to change so that it fits, the least painful first."""
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
        advice.append(f"serve it on {nodes} Sparks: tensor_parallel {nodes}")
    if config.quantization.bits_per_weight is None or config.quantization.bits_per_weight > 8:
        advice.append("use a checkpoint with smaller weights, such as NVFP4 or FP8")
    return advice or ["use a smaller model"]
