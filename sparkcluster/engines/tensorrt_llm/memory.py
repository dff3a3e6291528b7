"""The memory of a model on TensorRT-LLM: weights, the KV cache, which is allocated at startup, and activations.

The KV cache is ``free_gpu_memory_fraction`` (0.9) of the memory that is free after weights and activations, and at most
``max_tokens`` (``KvCacheCreator`` in tensorrt_llm/_torch/pyexecutor/_util.py). CUDA counts the page cache as used
memory (vllm-project/vllm#48140), and loading fills it: gpt-oss 120B got 5.95 GiB, 86,720 tokens of 73,728 bytes, on a
Spark without other programs (docs/internals/sources.md). So only bounds are computed. If the context does not fit, the
server shortens it and starts.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from sparkcluster.engines.answer import Pool, Taken, answer
from sparkcluster.engines.tensorrt_llm.flags import OPTIONS
from sparkcluster.errors import UsageError
from sparkcluster.fit import config as configs
from sparkcluster.fit import weights as fit_weights
from sparkcluster.fit.config import DTYPE_BYTES, ModelConfig
from sparkcluster.fit.defaults import NEWEST, EngineSettings
from sparkcluster.fit.layers import Attention, Latent, State
from sparkcluster.fit.source import GIB, Machine, Source
from sparkcluster.fit.verdict import runtime
from sparkcluster.report import size
from sparkcluster.spec.playbook import Playbook

FRACTION = 0.9
BATCH, BATCHED_TOKENS = 2048, 8192
"""Defaults of --max_batch_size and --max_num_tokens (tensorrt_llm/builder.py, BuildConfig)."""
HOST_BYTES = 3 * GIB
"""Memory of its processes: the value of vLLM, since it was not measured."""
CACHED = 0.8
"""Part of the weights that stays in the page cache: 47.9 of 60.8 GiB in the log above."""
_KV_BYTES = {**DTYPE_BYTES, "fp8": 1, "nvfp4": 9 / 16}


def options(playbook: Playbook) -> dict[str, Any]:
    """The content of the options file, which overrides the command line; {} without one."""
    found = playbook.args.get(OPTIONS)
    return found if isinstance(found, dict) else {}


def cache_options(playbook: Playbook) -> dict[str, Any]:
    """The section about the KV cache in the options file."""
    found = options(playbook).get("kv_cache_config")
    return found if isinstance(found, dict) else {}


def number(playbook: Playbook, name: str, default: int = 0) -> int:
    """An integer of the options file or the command line; ``default`` if not set, or not a positive integer."""
    found = options(playbook).get(name.replace("-", "_"), playbook.args.get(name))
    return found if type(found) is int and found > 0 else default


def beside_others(playbook: Playbook, _chosen: Collection[str] = ()) -> Playbook:
    """``playbook`` with a KV cache for one request of full context, unless it sets ``max_tokens``.

    A fraction of the free memory would depend on the order in which models start.
    """
    context = number(playbook, "max-seq-len")
    if playbook.command is not None or not context or "max_tokens" in cache_options(playbook):
        return playbook
    changed = copy.deepcopy(options(playbook))
    changed["kv_cache_config"] = {**cache_options(playbook), "max_tokens": context}
    return playbook.model_copy(update={"args": {**playbook.args, OPTIONS: changed}})


def forecast(
    playbook: Playbook,
    model: Source,
    machine: Machine,
    *,
    nodes: int = 1,
    context: int | None = None,
    requests: int | None = 1,
    beside: Mapping[str, Source] | None = None,  # noqa: ARG001 - the interface's
) -> dict[str, Any]:
    """Implements ``Engine.forecast``; all sizes in bytes."""
    if nodes > 1:
        raise UsageError("TensorRT-LLM serves on one Spark", hint="set --nodes to 1")
    config = configs.parse(model.config, model.name)
    length, batch = (
        context or number(playbook, "max-seq-len", config.context),
        number(playbook, "max-batch-size", BATCH),
    )
    if model.tensors is not None:
        share = fit_weights.of_tensors(model.tensors, config)
    elif model.size_bytes:
        share = fit_weights.of_size(model.size_bytes)
    else:
        share = fit_weights.of_config(config)
    token = _token_bytes(playbook, config)
    batched = number(playbook, "max-num-tokens", BATCHED_TOKENS)
    engine = EngineSettings(length, NEWEST, sequences=batch, batched_tokens=batched, profiles_graphs=False)
    step = runtime(config, engine) + batch * _state_bytes(config)
    pool = _pool(playbook, token, machine, share.rank_bytes, step, wanted=int((requests or 1) * length * token))
    taken = Taken(share.rank_bytes, share.counted, share.total_bytes, step, HOST_BYTES)
    problems, doubts, advice = [], [], []
    need = f"{length:,} tokens need {size(pool.wanted)} of KV cache"
    if pool.most < pool.wanted:
        problems.append(f"{need}, but at most {size(max(0, pool.most))} are available")
    elif pool.least < pool.wanted:
        doubts.append(
            f"{need}, but {size(max(0, pool.least))} to {size(pool.most)} are available, depending on the page cache"
        )
    if pool.least < pool.wanted and (possible := int(max(0, pool.least) / token) // 1024 * 1024):
        advice.append(f"set max-seq-len to {possible}")
    if length > config.context:
        problems.append(f"{length:,} tokens are more than the model's {config.context:,}")
    windows = any(isinstance(each, Attention) and each.window for each in config.caches)
    return answer(
        pool,
        taken,
        machine,
        context=length,
        requests=requests or 1,
        problems=problems,
        doubts=doubts,
        advice=advice,
        not_counted=["layers with a window are counted in full, as TensorRT-LLM stores them"] if windows else [],
        playbook=playbook.name,
        model=model.name,
        architecture=config.architecture,
        quantization=config.quantization.kind,
    )


def _pool(playbook: Playbook, token: float, machine: Machine, weights: int, step: int, *, wanted: int) -> Pool:
    """The KV cache, of ``token`` bytes per token, next to ``weights`` and activations (``step``)."""
    written = cache_options(playbook).get("free_gpu_memory_fraction", playbook.args.get("free-gpu-memory-fraction"))
    fraction = float(written) if isinstance(written, int | float) else FRACTION
    limit = cache_options(playbook).get("max_tokens")
    bound = int(limit * token) if isinstance(limit, int) else machine.visible_bytes
    free = machine.visible_bytes - weights - step - HOST_BYTES
    most = min(bound, int(fraction * (free - machine.system_bytes)))
    least = min(bound, int(fraction * (free - max(machine.system_bytes, int(CACHED * weights)))))
    set_by = "kv_cache_config.max_tokens" if isinstance(limit, int) else f"free_gpu_memory_fraction {fraction}"
    return Pool(set_by, max(0, most), wanted, least, most, token)


def _token_bytes(playbook: Playbook, config: ModelConfig) -> float:
    """KV cache of one token in all layers; layers with a window have no separate pool.

    Raises:
        UsageError: the model has unsupported layers.
    """
    kind = str(cache_options(playbook).get("dtype", playbook.args.get("kv-cache-dtype", "auto")))
    kind = (config.quantization.kv_dtype or config.dtype) if kind == "auto" else kind
    numbers = 0
    for cache in config.caches:
        if isinstance(cache, Attention | Latent):
            numbers += cache.numbers_per_token(1)
        elif not isinstance(cache, State):
            raise UsageError(f"the KV cache of {config.name} on TensorRT-LLM is unknown", hint="read its log")
    return float(numbers * _KV_BYTES.get(kind, 2))


def _state_bytes(config: ModelConfig) -> int:
    """State of a request in layers without attention: convolutions of two bytes, states of at most four bytes."""
    states = [cache for cache in config.caches if isinstance(cache, State)]
    return sum(2 * each.convolution_numbers(1, 0) + 4 * each.recurrent_numbers(1) for each in states)
