"""The memory that a GGUF needs: its file, the KV cache by its header, and what a batch needs (an estimate).

KV cache: ``llama_hparams`` and ``llama_kv_cache_iswa`` (src/llama-hparams.cpp, src/llama-kv-cache-iswa.cpp of
https://github.com/ggml-org/llama.cpp). It is allocated when the server starts, for ``ctx-size`` tokens, which all
requests at once share; where that is not set, for as many as the model was trained with, or fewer if memory is short
(``--fit``). Keys of a header: gguf-py/gguf/constants.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.fit.source import GIB, Machine, Source
from sparkcluster.fit.verdict import DRIVER_BYTES
from sparkcluster.report import size
from sparkcluster.spec.playbook import Playbook

MIB = 1 << 20
SLOTS = 4
"""--parallel where it is not set; these then share the context (``server.cpp``)."""
UBATCH = 512
CACHE_RAM_MIB = 8192
"""--cache-ram: prompts that are kept beside the KV cache; on a Spark it is the same memory."""
CHECKPOINTS, CHECKPOINT_STEP = 32, 8192
"""--ctx-checkpoints of each slot, and --checkpoint-min-step: copies of windows and states, in the same memory.

--cache-ram does not bound them: https://github.com/ggml-org/llama.cpp/issues/21690.
"""
MOST_LAYERS = 4096
"""Of a header that is believed."""
HOST_BYTES = GIB
LEAST_SHARE = 0.5
"""What a batch really needs may be this part of the estimate: nothing of it was measured on a Spark."""
MASK_BYTES = 6
"""Of each token of a batch and each of the context: which sees which, in 32 bits and in 16."""
PAD = 256
# Bytes of a number in the KV cache: ggml's blocks of 32.
_TYPES = {
    "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}  # fmt: skip
# Every n-th layer has no window, where the header does not say which: src/models of each.
_WINDOWS = {"gpt-oss": 2, "gemma2": 2, "gemma3": 6, "cohere2": 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a playbook needs on its Spark, in bytes.

    Attributes:
        context: tokens of one request, prompt and answer together.
        tokens: that all requests at once share, for which the KV cache is made.
        token_bytes: KV cache of one more of these, and its part of the mask.
        checkpoint_bytes: copies of windows and states, by which a prompt that begins like an earlier one is continued.
        host_bytes: beside the GPU's buffers: the server, prompts that it keeps, and checkpoints.
    """

    context: int
    tokens: int
    weights_bytes: int
    cache_bytes: int
    token_bytes: float
    step_bytes: int
    checkpoint_bytes: int
    host_bytes: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.cache_bytes + self.step_bytes + self.host_bytes


def number(args: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number among arguments; ``default`` where it is not set, or none."""
    found = args.get(name)
    return found if type(found) is int and found > 0 else default


def slot_tokens(args: Mapping[str, Any], tokens: int) -> int:
    """Tokens that one request may have of those that all share."""
    return tokens if is_unified(args) else tokens // number(args, "parallel", SLOTS)


def is_unified(args: Mapping[str, Any]) -> bool:
    """Whether all requests share one cache: as the playbook says, else where it leaves their number to the server."""
    return bool(args.get("kv-unified", not number(args, "parallel", 0)))


def need(playbook: Playbook, model: Source, *, context: int | None = None, requests: int = 1) -> Need:
    """What ``playbook`` needs; with ``context`` as if it served ``requests`` of so many tokens at once.

    Raises:
        UsageError: the header of the file does not say what the model is.
    """
    args, config = playbook.args, _Header(model)
    tokens = number(args, "ctx-size", config.trained)
    if context is not None:
        tokens = context * requests
    tokens = -(-tokens // PAD) * PAD
    slots, batch = number(args, "parallel", SLOTS), number(args, "ubatch-size", UBATCH)
    bytes_of = [_TYPES.get(str(args.get(name, "f16")), 4) for name in ("cache-type-k", "cache-type-v")]
    window = config.number("attention.sliding_window")
    windowed = tokens
    if window and args.get("swa-full") is not True:
        caches = 1 if is_unified(args) else slots
        windowed = min(tokens, -(-(window * slots // caches + batch) // PAD) * PAD * caches)
    full, short = config.layer_bytes(bytes_of)
    states = config.state_bytes() * slots
    mask = MASK_BYTES * batch
    step = batch * (4 * config.vocabulary + 16 * config.hidden + 8 * config.feed_forward) + mask * tokens
    if _without_flash(args):  # all scores of a batch, in 32 bits
        step += 4 * batch * tokens * max(config.listed("attention.head_count"))
    cached = args.get("cache-ram", CACHE_RAM_MIB)
    count = 0 if args.get("ctx-checkpoints") == 0 else number(args, "ctx-checkpoints", CHECKPOINTS) * slots
    count = min(count, tokens // number(args, "checkpoint-min-step", CHECKPOINT_STEP) + slots)
    copied = short * min(window + batch, tokens) if windowed < tokens else 0
    checkpoints = count * math.ceil(copied + config.state_bytes())
    return Need(
        context=context or min(slot_tokens(args, tokens), config.trained or tokens),
        tokens=tokens,
        weights_bytes=model.weights_bytes,
        cache_bytes=math.ceil(full * tokens + short * windowed) + states,
        token_bytes=mask + full + (0 if windowed < tokens else short),
        step_bytes=DRIVER_BYTES + step,
        checkpoint_bytes=checkpoints,
        host_bytes=HOST_BYTES + checkpoints + (cached if type(cached) is int and cached >= 0 else CACHE_RAM_MIB) * MIB,
    )


def _without_flash(args: Mapping[str, Any]) -> bool:
    return args.get("flash-attn") in (False, "off")


class _Header:
    """What a GGUF's header says of the layers."""

    def __init__(self, model: Source) -> None:
        config = model.config if isinstance(model.config, dict) else {}
        self.kind, self.config = config.get("general.architecture"), config
        if not isinstance(self.kind, str) or not 0 < self.number("block_count") <= MOST_LAYERS:
            hint = "give the GGUF itself: sparkcluster fit PLAYBOOK --config FILE.gguf"
            raise UsageError(f"{model.name}: the header of no GGUF says how many layers it has", hint=hint)
        self.layers, self.hidden = self.number("block_count"), self.number("embedding_length")
        self.trained, self.vocabulary = self.number("context_length"), self.whole("tokenizer.ggml.tokens")
        self.feed_forward = max(self.listed("feed_forward_length")) or self.number("expert_feed_forward_length")

    def whole(self, key: str) -> int:
        found = self.config.get(key)
        return found if type(found) is int and found > 0 else 0

    def number(self, key: str) -> int:
        return self.whole(f"{self.kind}.{key}")

    def listed(self, key: str, default: int = 0) -> list[int]:
        """By layer, where it is said of each; else the same of all."""
        found = self.config.get(f"{self.kind}.{key}")
        if isinstance(found, list) and len(found) >= self.layers and all(type(each) in {int, bool} for each in found):
            return [max(0, int(each)) for each in found[: self.layers]]
        return [self.number(key) or default] * self.layers

    def attention(self) -> list[int]:
        """Heads of keys and values of each layer; 0 of one without attention."""
        every = self.number("full_attention_interval")
        heads = self.listed("attention.head_count_kv", max(self.listed("attention.head_count")))
        return [count if not every or (at + 1) % every == 0 else 0 for at, count in enumerate(heads)]

    def windows(self) -> list[bool]:
        """Whether each layer remembers a window only; where that is not known, none does, which is the most."""
        key = f"{self.kind}.attention.sliding_window_pattern"
        if isinstance(self.config.get(key), list):
            return [bool(each) for each in self.listed("attention.sliding_window_pattern")]
        every = self.number("attention.sliding_window_pattern") or _WINDOWS.get(str(self.kind), 1)
        return [at % every < every - 1 for at in range(self.layers)]

    def layer_bytes(self, bytes_of: list[float]) -> tuple[float, float]:
        """KV cache of a token in all layers that remember everything, and in those with a window."""
        head = self.hidden // max(1, *self.listed("attention.head_count"))
        names = ("attention.key_length", "attention.value_length")
        width = [self.number(name) or head for name in names]
        short = [self.number(f"{name}_swa") or each for name, each in zip(names, width, strict=True)]
        if self.number("attention.key_length_mla"):  # keys and values are one, compressed
            width[1] = 0
        found = [0.0, 0.0]
        for count, windowed in zip(self.attention(), self.windows(), strict=True):
            sizes = short if windowed else width
            found[windowed] += count * sum(each * taken for each, taken in zip(sizes, bytes_of, strict=True))
        return found[0], found[1]

    def state_bytes(self) -> int:
        """What the layers without attention remember of a request; 0 of models without such."""
        state, inner = self.number("ssm.state_size"), self.number("ssm.inner_size")
        rolled = max(0, self.number("ssm.conv_kernel") - 1) * (inner + 2 * self.number("ssm.group_count") * state)
        return 4 * (state * inner + rolled) * self.attention().count(0) if state else 0


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
    """As ``Engine.forecast`` says; all sizes in bytes."""
    if nodes > 1:
        raise UsageError("llama.cpp serves on one Spark", hint="set --nodes to 1")
    found, header = need(playbook, model, context=context, requests=requests or 1), _Header(model)
    left = machine.visible_bytes - found.bytes
    least = left + int(found.step_bytes * (1 - LEAST_SHARE))
    short = f"{size(max(0, left))} would be left for the system, which takes {size(machine.system_bytes)}"
    problems = [short] if least < machine.system_bytes else []
    doubts = [short] if least >= machine.system_bytes > left else []
    if playbook.args.get("cache-ram") == -1:
        doubts.append("cache-ram -1 keeps prompts without a limit, in the same memory: set a number of MiB")
    if 0 < header.trained < found.context:
        problems.append(f"{found.context:,} tokens are more than the model's {header.trained:,}")
    if _without_flash(playbook.args) and _TYPES.get(str(playbook.args.get("cache-type-v", "f16")), 4) < _TYPES["f16"]:
        problems.append(f"cache-type-v {playbook.args['cache-type-v']} needs flash-attn: true")
    wanted = found.cache_bytes
    advice = _smaller(playbook, found, machine.system_bytes - left) if left < machine.system_bytes else []
    not_counted = [f"{name} {playbook.args[name]}" for name in ("mmproj", "spec-draft-model") if name in playbook.args]
    cached = "ctx-size" if number(playbook.args, "ctx-size", 0) else "the model's context (ctx-size is not set)"
    return {
        "playbook": playbook.name,
        "model": model.name,
        "architecture": header.kind,
        "quantization": "gguf",
        "fits": None if doubts and not problems else not problems,
        "verdict": "does not fit" if problems else "too close to say" if doubts else "fits",
        "problems": problems,
        "doubts": doubts,
        "advice": advice,
        "not_counted": not_counted,
        "nodes": 1,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "context": found.context,
        "concurrency_wanted": requests or 1,
        "gpu_memory_utilization": None,
        "gpu_memory_utilization_is_auto": False,
        "smallest_gpu_memory_utilization": None,
        "safe_gpu_memory_utilization": None,
        "kv_cache": {
            "set_by": cached,
            "bytes_wanted": wanted,
            "tokens": found.tokens,
            "tokens_most": found.tokens,
            "concurrency": round(found.tokens / max(1, found.context), 2),
            "bytes": found.cache_bytes,
            "bytes_least": found.cache_bytes,
            "bytes_most": found.cache_bytes,
            "tokens_least": found.tokens,
            "bytes_per_request": found.cache_bytes * found.context // max(1, found.tokens),
            "bytes_per_token": round(found.cache_bytes / max(1, found.tokens), 1),
            "block_bytes": 0,
            "groups": [],
        },
        "memory": {
            "installed_bytes": machine.installed_bytes,
            "visible_bytes": machine.visible_bytes,
            "budget_bytes": found.bytes - found.host_bytes,
            "weights_bytes": found.weights_bytes,
            "weights_counted": bool(found.weights_bytes),
            "checkpoint_bytes": found.weights_bytes,
            "runtime_bytes": found.step_bytes,
            "engine_host_bytes": found.host_bytes,
            "left_for_system_bytes": left,
            "system_needs_bytes": machine.system_bytes,
        },
    }


def _smaller(playbook: Playbook, found: Need, missing: int) -> list[str]:
    """What to change so that it fits, the least painful first."""
    advice = []
    if playbook.args.get("cache-ram", CACHE_RAM_MIB):
        advice.append("set cache-ram to 0: it keeps no prompts beside the KV cache")
    if found.checkpoint_bytes:
        advice.append("set ctx-checkpoints to 0: prompts that begin like earlier ones are computed anew")
    possible = int((found.tokens - missing / found.token_bytes) // 1024 * 1024)
    if possible > 0:
        advice.append(f"set ctx-size to {possible}")
    if "cache-type-k" not in playbook.args:
        advice.append("set cache-type-k and cache-type-v to q8_0, if the model tolerates it")
    return [*advice, "serve a smaller file of the repository"]
