"""The memory of a GGUF: its file, the KV cache by its header, and activations (an estimate).

KV cache: ``llama_hparams`` and ``llama_kv_cache_iswa`` (src/llama-hparams.cpp, src/llama-kv-cache-iswa.cpp of
https://github.com/ggml-org/llama.cpp). It is allocated when the server starts, for ``ctx-size`` tokens, which
concurrent requests share. The default is the model's context, or less if memory is short (``--fit``). Keys of a
header: gguf-py/gguf/constants.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from sparkcluster.engines.answer import Pool, Taken, answer
from sparkcluster.engines.words import number
from sparkcluster.errors import UsageError
from sparkcluster.fit.source import GIB, Machine, Source
from sparkcluster.fit.verdict import DRIVER_BYTES
from sparkcluster.report import size
from sparkcluster.spec.playbook import Playbook

MIB = 1 << 20
SLOTS = 4
"""Default of --parallel; by default the slots share the context (``server.cpp``)."""
UBATCH = 512
CACHE_RAM_MIB = 8192
"""--cache-ram: cached prompts, in addition to the KV cache; on a Spark in the same memory."""
CHECKPOINTS, CHECKPOINT_STEP = 32, 8192
"""--ctx-checkpoints of each slot, and --checkpoint-min-step: copies of windows and states, in the same memory.

--cache-ram does not bound them: https://github.com/ggml-org/llama.cpp/issues/21690.
"""
MOST_LAYERS = 4096
"""Highest number of layers that is accepted in a header."""
HOST_BYTES = GIB
LEAST_SHARE = 0.5
"""Activations may be as low as this part of the estimate: they were not measured on a Spark."""
MASK_BYTES = 6
"""Attention mask, for each pair of a token in the batch and a token in the context: 32 and 16 bits."""
PAD = 256
# Bytes of a number in the KV cache: ggml's blocks of 32.
_TYPES = {
    "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}  # fmt: skip
# Default if the header does not list layers with a window: every n-th layer has none (src/models of each).
_WINDOWS = {"gpt-oss": 2, "gemma2": 2, "gemma3": 6, "cohere2": 4}


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """Memory of a playbook on its Spark, in bytes.

    Attributes:
        context: tokens of one request, prompt and answer together.
        tokens: size of the KV cache in tokens, which concurrent requests share.
        token_bytes: KV cache and attention mask of one token.
        checkpoint_bytes: copies of windows and states, to continue prompts with a common prefix.
        host_bytes: memory outside the GPU's buffers: the server, cached prompts, and checkpoints.
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
        """Total."""
        return self.weights_bytes + self.cache_bytes + self.step_bytes + self.host_bytes


def slot_tokens(args: Mapping[str, Any], tokens: int) -> int:
    """Tokens of one request, of ``tokens`` for all concurrent requests."""
    return tokens if is_unified(args) else tokens // number(args, "parallel", SLOTS)


def trained_tokens(model: Source) -> int:
    """The model's context, which limits a request; 0 if the header does not have it."""
    return _Header(model).trained


def is_unified(args: Mapping[str, Any]) -> bool:
    """Whether all requests share one cache: by the playbook; by default if it does not set their number."""
    return bool(args.get("kv-unified", not number(args, "parallel", 0)))


def need(playbook: Playbook, model: Source, *, context: int | None = None, requests: int = 1) -> Need:
    """The memory of ``playbook``; with ``context``, for ``requests`` concurrent requests of that length.

    Raises:
        UsageError: the header of the file does not describe the model.
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
    """The layers of a model, from a GGUF's header."""

    def __init__(self, model: Source) -> None:
        config = model.config if isinstance(model.config, dict) else {}
        self.kind, self.config = config.get("general.architecture"), config
        if not isinstance(self.kind, str) or not 0 < self.number("block_count") <= MOST_LAYERS:
            hint = "pass the GGUF: sparkcluster fit PLAYBOOK --config FILE.gguf"
            raise UsageError(f"{model.name}: no GGUF header with the number of layers", hint=hint)
        self.layers, self.hidden = self.number("block_count"), self.number("embedding_length")
        self.trained, self.vocabulary = self.number("context_length"), self.whole("tokenizer.ggml.tokens")
        self.feed_forward = max(self.listed("feed_forward_length")) or self.number("expert_feed_forward_length")

    def whole(self, key: str) -> int:
        found = self.config.get(key)
        return found if type(found) is int and found > 0 else 0

    def number(self, key: str) -> int:
        return self.whole(f"{self.kind}.{key}")

    def listed(self, key: str, default: int = 0) -> list[int]:
        """A value for each layer; a single value counts for all layers."""
        found = self.config.get(f"{self.kind}.{key}")
        if isinstance(found, list) and len(found) >= self.layers and all(type(each) in {int, bool} for each in found):
            return [max(0, int(each)) for each in found[: self.layers]]
        return [self.number(key) or default] * self.layers

    def attention(self) -> list[int]:
        """KV heads of each layer; 0 for a layer without attention."""
        every = self.number("full_attention_interval")
        heads = self.listed("attention.head_count_kv", max(self.listed("attention.head_count")))
        return [count if not every or (at + 1) % every == 0 else 0 for at, count in enumerate(heads)]

    def windows(self) -> list[bool]:
        """Whether each layer has a sliding window; False if unknown, which is the upper bound."""
        key = f"{self.kind}.attention.sliding_window_pattern"
        if isinstance(self.config.get(key), list):
            return [bool(each) for each in self.listed("attention.sliding_window_pattern")]
        every = self.number("attention.sliding_window_pattern") or _WINDOWS.get(str(self.kind), 1)
        return [at % every < every - 1 for at in range(self.layers)]

    def layer_bytes(self, bytes_of: list[float]) -> tuple[float, float]:
        """KV cache of a token in all layers without a window, and in all layers with a window."""
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
        """State of a request in the layers without attention; 0 without such layers."""
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
    beside: Mapping[str, Source] | None = None,
) -> dict[str, Any]:
    """Implements ``Engine.forecast``; all sizes in bytes."""
    if nodes > 1:
        raise UsageError("llama.cpp serves on one Spark", hint="set --nodes to 1")
    projector = (beside or {}).get(str(playbook.args.get("mmproj")).rpartition("/")[2])
    if projector is not None:
        model = dataclasses.replace(model, size_bytes=model.weights_bytes + projector.weights_bytes)
    found, header = need(playbook, model, context=context, requests=requests or 1), _Header(model)
    left = machine.visible_bytes - found.bytes
    least = left + int(found.step_bytes * (1 - LEAST_SHARE))
    short = f"only {size(max(0, left))} would be left for the system, which needs {size(machine.system_bytes)}"
    problems = [short] if least < machine.system_bytes else []
    doubts = [short] if least >= machine.system_bytes > left else []
    if playbook.args.get("cache-ram") == -1:
        doubts.append("cache-ram -1 caches prompts in the same memory without a limit: set a number of MiB")
    if 0 < header.trained < found.context:
        problems.append(f"{found.context:,} tokens are more than the model's {header.trained:,}")
    if _without_flash(playbook.args) and _TYPES.get(str(playbook.args.get("cache-type-v", "f16")), 4) < _TYPES["f16"]:
        problems.append(f"cache-type-v {playbook.args['cache-type-v']} needs flash-attn: true")
    advice = _smaller(playbook, found, machine.system_bytes - left) if left < machine.system_bytes else []
    unknown = ["spec-draft-model"] if projector else ["mmproj", "spec-draft-model"]
    not_counted = [f"{name} {playbook.args[name]}" for name in unknown if name in playbook.args]
    cached = "ctx-size" if number(playbook.args, "ctx-size", 0) else "the model's context (ctx-size is not set)"
    cache = found.cache_bytes
    return answer(
        Pool(cached, cache, cache, cache, cache, cache / max(1, found.tokens)),
        Taken(found.weights_bytes, bool(found.weights_bytes), found.weights_bytes, found.step_bytes, found.host_bytes),
        machine,
        context=found.context,
        requests=requests or 1,
        problems=problems,
        doubts=doubts,
        advice=advice,
        not_counted=not_counted,
        playbook=playbook.name,
        model=model.name,
        architecture=str(header.kind),
        quantization="gguf",
    )


def _smaller(playbook: Playbook, found: Need, missing: int) -> list[str]:
    """What to change to make it fit, the least costly first."""
    advice = []
    if playbook.args.get("cache-ram", CACHE_RAM_MIB):
        advice.append("set cache-ram to 0: no prompts are cached outside the KV cache")
    if found.checkpoint_bytes:
        advice.append("set ctx-checkpoints to 0: common prefixes of prompts are computed again")
    possible = int((found.tokens - missing / found.token_bytes) // 1024 * 1024)
    if possible > 0:
        advice.append(f"set ctx-size to {possible}")
    if "cache-type-k" not in playbook.args:
        advice.append("set cache-type-k and cache-type-v to q8_0, if the model tolerates it")
    return [*advice, "serve a smaller file of the repository"]
