"""The memory of a model on SGLang: weights, states, the KV cache, and activations.

- SGLang measures free memory after its ranks have connected; the rank with the least free memory decides. Free memory
  is MemAvailable from 0.5.9 on, and MemFree in 0.5.5 (``get_available_gpu_memory`` in utils/common.py).
- ``mem-fraction-static`` is the share of free memory that SGLang allocates for weights, states and KV cache
  (``_profile_available_bytes`` and ``_handle_max_mamba_cache`` in mem_cache/kv_cache_configurator.py).
- ``max-total-tokens`` limits the KV cache. Bytes of a token: model_executor/pool_configurator.py.
- A state is what a layer without attention (Mamba) keeps for a request.

Compared with three starts of one model on a Spark, in tests/unit/engines/test_sglang.py (numbers.md of
https://github.com/anubhavgupta/Qwen3.6-35b-SGLang-DGX-Spark).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from sparkcluster.engines.answer import Pool, Taken, answer
from sparkcluster.engines.sglang.flags import arguments
from sparkcluster.engines.words import number
from sparkcluster.errors import UsageError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.fit import weights
from sparkcluster.fit.config import ModelConfig, parse
from sparkcluster.fit.defaults import NEWEST, EngineSettings
from sparkcluster.fit.kv import KV_BYTES
from sparkcluster.fit.layers import Attention, Compressed, State
from sparkcluster.fit.source import Machine, Source
from sparkcluster.fit.verdict import DRIVER_BYTES, HOST_BYTES, runtime
from sparkcluster.report import count, size
from sparkcluster.spec.playbook import Playbook

FRACTION, TOKENS, STATES = "mem-fraction-static", "max-total-tokens", "max-mamba-cache-size"
CONTEXT, REQUESTS, DRAFT = "context-length", "max-running-requests", "speculative-draft-model-path"
AUTO = "auto"
CONCURRENT = 4
"""Requests of full context that ``auto`` counts if max-running-requests is not set; the same for vLLM."""
MOST = 0.80
"""Highest recommended fraction. Sparks froze above it (numbers.md; sgl-project/sglang#35860, with tuned kernels)."""
OWN = 0.88
"""SGLang's default on a Spark, for models without images (``handle_gpu_memory_settings`` in memory_hook.py)."""
CHUNK, GRAPHS, WINDOWS = 8192, 256, 0.8
"""SGLang's defaults on a Spark.

- ``CHUNK``: chunked-prefill-size, in tokens (memory_hook.py).
- ``GRAPHS``: the largest batch of CUDA graphs, in requests (memory_hook.py).
- ``WINDOWS``: swa-full-tokens-ratio, the tokens of layers with a sliding window for each token of the other layers.
"""
STATE_SHARE, SLOTS = 0.9 / 1.9, 5
"""Memory of states.

- ``STATE_SHARE``: the states' share of states and KV cache if ``max-mamba-cache-size`` is not set: the default of
  ``mamba-full-memory-ratio`` is 0.9 bytes of states for each byte of KV cache.
- ``SLOTS``: the most states that one request takes (``_calculate_mamba_ratio``).
"""
MORE_WEIGHTS = 0.12
"""Memory that loading may take in addition, as a share of the weights: 24.5 to 27.4 GB for one model (numbers.md)."""
_KV = {**KV_BYTES, "bf16": 2, "fp4_e2m1": 9 / 16}


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """Memory of a playbook on one rank.

    Attributes:
        context: tokens of one request, prompt and answer together.
        token_bytes: KV cache of one token.
        state_bytes: one state, in all layers; 0 if the model has no such layers.
    """

    config: ModelConfig
    context: int
    token_bytes: float
    state_bytes: int


def memory_share(playbook: Playbook, *facts: Facts) -> float:
    """Implements ``Engine.memory_share``: the fraction, times the free share of the node's memory if known.

    0 if the playbook limits the tokens of the KV cache: the allocated memory then does not depend on the fraction.
    """
    if not takes_share(playbook):
        return 0.0
    found = [memory for each in facts if (memory := read(each.memory)) is not None]
    return fraction(playbook) * min((each.available_bytes / each.total_bytes for each in found), default=1.0)


def takes_share(playbook: Playbook) -> bool:
    """Implements ``Engine.takes_share``: False if the playbook limits the tokens of the KV cache."""
    return arguments(playbook).get(TOKENS) is None and playbook.command is None


def fraction(playbook: Playbook) -> float:
    """``mem-fraction-static``, as a number or as text; SGLang's default if it is not a share."""
    written = str(arguments(playbook).get(FRACTION))
    return float(written) if re.fullmatch(r"0?\.\d{1,9}|1", written) and float(written) else OWN


def need(playbook: Playbook, model: Source, *, ranks: int = 1, context: int | None = None) -> Need:
    """Memory of a token and of a state of ``playbook``, on one of ``ranks``.

    Raises:
        UsageError: the model is unknown, or its layers are not computed for SGLang.
    """
    args, config = arguments(playbook), parse(model.config, model.name)
    kind = str(args.get("kv-cache-dtype", AUTO))
    kind = config.quantization.kv_dtype or config.dtype if kind == AUTO else kind
    if kind not in _KV or any(isinstance(cache, Compressed) for cache in config.caches):
        what = f"kv-cache-dtype {kind[:40]}" if kind not in _KV else "its layers, which keep compressed tokens"
        hint = "read max_total_num_tokens in the log: sparkcluster logs INVENTORY --grep max_total_num_tokens"
        raise UsageError(f"the memory of {model.name} is not computed for SGLang with {what}", hint=hint)
    if config.shape.heads % ranks:
        hint = "set tensor_parallel in the playbook to a divisor"
        raise UsageError(f"{config.shape.heads} attention heads of {model.name} are not for {ranks} ranks", hint=hint)
    token, state = 0.0, 0
    state_number = 2 if args.get("mamba-ssm-dtype", config.state_dtype) == "bfloat16" else 4
    for cache in (*config.caches, *(config.drafts if _drafts(args) else ())):
        if isinstance(cache, State):
            state += 2 * cache.convolution_numbers(ranks, 0) + state_number * cache.recurrent_numbers(ranks)
        elif not isinstance(cache, Compressed):
            short = isinstance(cache, Attention) and cache.window and not args.get("disable-hybrid-swa-memory")
            ratio = args.get("swa-full-tokens-ratio", WINDOWS) if short else 1
            token += cache.numbers_per_token(ranks) * ratio * _KV[kind] + cache.index_dim * (1 + 4 / 128)
    return Need(config, context or number(args, CONTEXT, config.context), token, state)


def _drafts(args: Mapping[str, Any]) -> bool:
    return bool(args.get("speculative-algorithm")) and DRAFT not in args


def forecast(
    playbook: Playbook,
    model: Source,
    machine: Machine,
    *,
    nodes: int = 1,
    context: int | None = None,
    requests: int | None = 1,
    beside: Mapping[str, Source] | None = None,
) -> dict[str, Any]:
    """Implements ``Engine.forecast``; all sizes in bytes. Pipeline stages are counted as ranks.

    1. ``loaded``: weights of one rank, and of the draft model.
    2. ``left``: the fraction of free memory, without the weights. It has the states, then the KV cache (``pool``),
       which ``max-total-tokens`` may limit (``limited``).
    3. ``asked``: KV cache of the wanted requests of full context. A problem if ``pool`` is smaller; a doubt if it is
       smaller only after ``less``, the memory that loading may take in addition. The advice then is a fraction up to
       ``MOST``, a shorter context, or more Sparks.
    4. ``room``: memory left for the system.
    """
    args, taken = arguments(playbook), fraction(playbook)
    found = need(playbook, model, ranks=nodes, context=context)
    wanted = requests or number(args, REQUESTS, 1)
    share = weights.of_size(model.size_bytes, ranks=nodes) if model.size_bytes else weights.of_config(
        found.config, ranks=nodes, drafts=_drafts(args)
    )  # fmt: skip
    if model.tensors is not None:
        share = weights.of_tensors(model.tensors, found.config, ranks=nodes, drafts=_drafts(args))
    draft = (beside or {}).get(str(args.get(DRAFT)))
    loaded = share.rank_bytes + (draft.weights_bytes // nodes if draft else 0)
    engine = EngineSettings(
        found.context, NEWEST, ranks=nodes, sequences=min(GRAPHS, number(args, REQUESTS, GRAPHS)) // 2,
        batched_tokens=number(args, "chunked-prefill-size", CHUNK), eager=args.get("disable-cuda-graph") is True,
    )  # fmt: skip
    free = machine.visible_bytes - machine.system_bytes - HOST_BYTES - DRIVER_BYTES
    left = int(taken * free) - loaded
    slots = number(args, STATES, SLOTS * wanted if args.get(TOKENS) == AUTO else 0)
    states = found.state_bytes * (slots + 1) if slots or not found.state_bytes else int(max(0, left) * STATE_SHARE)
    limit = number(args, TOKENS, wanted * found.context if args.get(TOKENS) == AUTO else 0)
    limited = 0 < limit * found.token_bytes < left - states
    pool = max(0, int(limit * found.token_bytes) if limited else left - states)
    asked, less = int(wanted * found.context * found.token_bytes), 0 if limited else int(MORE_WEIGHTS * loaded)
    step = runtime(found.config, engine) + states
    room = machine.visible_bytes - loaded - step - HOST_BYTES - pool
    problems, doubts, advice = list[str](), list[str](), list[str]()
    if pool - less < asked:
        text = f"{count(wanted, 'request')} of {found.context:,} tokens would take {size(asked)} of KV cache"
        (problems if pool < asked else doubts).append(f"{text}, and {size(max(0, pool - less))} is left")
        cache = states + asked if slots else asked / (1 - STATE_SHARE * bool(found.state_bytes))
        smallest = math.ceil((loaded + less + cache) / free * 100) / 100
        fewer = int((MOST * free - loaded - less) / cache * found.context) // 1024 * 1024
        first = f"set {TOKENS} to {wanted * found.context}" if limited else f"set {FRACTION} to {smallest:.2f}"
        advice += [first] * (limited or smallest <= MOST)
        advice += [f"set {CONTEXT} to {fewer}, with {FRACTION} {MOST:.2f}"] * (smallest > MOST and fewer > 0)
        advice += [f"serve it on {2 * nodes} Sparks, with tensor_parallel {2 * nodes} or auto"] * (smallest > MOST)
    if room < machine.system_bytes:
        problems.append(
            f"only {size(max(0, room))} would be left for the system, which needs {size(machine.system_bytes)}"
        )
    if not limited and taken > MOST:
        advice.append(f"set {FRACTION} to {MOST:.2f} or less: Sparks have frozen above it, and it is {taken:.2f}")
    if found.context > found.config.context and "json-model-override-args" not in args:
        doubts.append(f"{found.context:,} tokens are more than the model's {found.config.context:,}")
    not_counted = ["weights are estimated: --config with a directory counts the tensors"] * (not share.counted)
    not_counted += [f"{'the cache' if draft else 'weights and cache'} of the draft model"] * (DRAFT in args)
    return answer(
        Pool(TOKENS if limited else FRACTION, pool, asked, max(0, pool - less), pool, found.token_bytes),
        Taken(loaded, share.counted, share.total_bytes, step, HOST_BYTES),
        machine,
        context=found.context, requests=wanted, problems=problems, doubts=doubts, advice=advice,
        not_counted=not_counted, nodes=nodes, playbook=playbook.name, model=model.name,
        architecture=found.config.architecture, quantization=found.config.quantization.kind,
    )  # fmt: skip
