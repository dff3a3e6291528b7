"""Arguments of ``llama-server`` that only set how it computes (tools/server/README.md at b11549), and older names."""

from __future__ import annotations

from collections.abc import Mapping

_TUNING = """
    backend-sampling batch-size cache-idle-slots cache-prompt cache-ram cache-reuse cache-type-k cache-type-v
    chat-template-kwargs check-tensors checkpoint-min-step cont-batching context-shift cpu-mask cpu-moe cpu-range
    cpu-strict ctx-checkpoints ctx-size device embedding embeddings fit fit-ctx fit-target flash-attn gpu-layers
    image-max-tokens image-min-tokens jinja keep kv-offload kv-unified kv-unified-per-slot lazy-mode load-mode
    log-colors log-prefix log-timestamps log-verbosity main-gpu metrics min-p moe-cache-mib mlock mmap n-cpu-ffn
    n-cpu-moe n-gpu-layers n-predict no-host numa op-offload parallel perf poll poll-batch pooling
    prefill-assistant presence-penalty prio prio-batch reasoning reasoning-budget reasoning-effort reasoning-format
    reasoning-preserve repack repeat-last-n repeat-penalty rerank reranking rope-freq-base rope-freq-scale rope-scale
    rope-scaling samplers seed sleep-idle-seconds slot-prompt-similarity slots spec-default spec-draft-n-max
    spec-draft-n-min spec-draft-ngl spec-draft-p-min spec-draft-sampling spec-ngram-mod-n-match spec-ngram-mod-n-max
    spec-ngram-mod-n-min spec-type special split-mode sse-ping-interval swa-full temp tensor-split threads
    threads-batch threads-http timeout top-k top-p ubatch-size ui verbosity warmup webui yarn-attn-factor
    yarn-beta-fast yarn-beta-slow yarn-ext-factor yarn-orig-ctx
"""

GONE: Mapping[str, str] = {
    "mmap": "load-mode: none, or mmap",
    "mlock": "load-mode: mlock",
    "draft": "spec-draft-n-max",
    "draft-max": "spec-draft-n-max",
    "draft-min": "spec-draft-n-min",
    "webui": "ui",
}
"""What newer builds have in the place of an argument."""


def tuning_arguments() -> Mapping[str, frozenset[str]]:
    """As ``Engine.tuning_arguments`` says."""
    return {**dict.fromkeys(_TUNING.split(), frozenset[str]()), "chat-template-kwargs": _KWARGS}


_KWARGS = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
