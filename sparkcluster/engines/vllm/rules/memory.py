"""Rules on memory: how much of the shared memory the engine may take, for how many requests of which length."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.arguments import LONG_MODELS, extends_context, longest_context
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.findings import Severity
from sparkcluster.fit import defaults
from sparkcluster.fit.verdict import CEILING

SHARE = "gpu-memory-utilization"
# The most that was served with and measured (conselara.dev/notes/dgx-spark-benchmarks).
SAFE = 0.87
# Two Sparks had 101.3 to 102.2 of 121.69 GiB free for CUDA at every start, without a desktop or a page cache.
START = 0.83
# At this context over two Sparks 0.82 ran, and more failed under load (conselara.dev/tags/vllm).
LONG = 131072
LONG_CEILING = 0.82
# Above four streams the cost for each outweighs the gain of batching (sources.VLLM_BLOG); 1 to 4: sources.GUIDE.
STREAMS = 4


@rule(
    "SM121-060",
    "The engine leaves memory for the system",
    severity="error",
    source=f"{sources.TWO_SPARKS}; 0.92 in a community recipe: {sources.GUIDE}",
)
def ceiling(served: Served) -> Iterator[Seen]:
    """Above 0.90 a Spark fails with Xid 43 or freezes, since system and page cache share the memory.

    0.85 to 0.87 is the tested range. Sources disagree: a community recipe for a model of 8 GB takes 0.92, which a
    playbook may `allow`. If it is not set, vLLM takes 0.92 from 0.20 on.
    """
    share = served.number(SHARE)
    if not served.spark:
        return
    if share is None:
        default = served.versions.utilizations[0]
        if SHARE not in served.values and default > CEILING:
            summary = f"{SHARE} is not set: vLLM takes {percent(default)} of the memory"
            yield served.say(SHARE, summary, f"write {SHARE}: 0.82", severity="warning")
    elif CEILING < share <= 1:  # above 1: SPEC-005
        yield served.say(
            SHARE, f"{percent(share)} of the memory leaves too little for the system", f"write {SHARE}: 0.82"
        )
    elif share > SAFE:
        summary = f"{percent(share)} of the memory is above the tested range"
        yield served.say(SHARE, summary, f"write {SHARE}: 0.82 if it fails under load", severity="info")


@rule(
    "SM121-131",
    "The share of the memory is free at the start",
    severity="info",
    source=f"{sources.FREE_AT_START}, with drivers 580.173 and 610.43; other Sparks had 105 to 116 GiB",
)
def at_start(served: Served) -> Iterator[Seen]:
    """Some Sparks have 102 of 121.69 GiB free for CUDA with nothing running: above 0.83 the engine refuses to start.

    `Free memory on device (102/121.69 GiB) on startup is less than desired GPU memory utilization`. Others start with
    0.87, so this is information.
    """
    share = served.number(SHARE)
    if served.spark and share is not None and START < share <= SAFE:
        summary = f"some Sparks have less than {percent(share)} of the memory free at the start"
        yield served.say(SHARE, summary, f"write {SHARE}: {LONG_CEILING} if the engine refuses to start")


@rule(
    "SM121-061",
    "A long context on two Sparks leaves memory",
    source=f"{sources.TWO_SPARKS}; more, on newer builds: https://github.com/spark-arena/recipe-registry "
    "(official-recipes/minimax-m2.7), https://github.com/eugr/spark-vllm-docker/issues/396",
)
def long_context(served: Served) -> Iterator[Seen]:
    """At 131,072 tokens with tensor parallel 2 over two Sparks, more than 0.82 failed with Xid 43 under load.

    Seen on NGC 26.04 (vLLM 0.19), so it is a warning on NVIDIA's images up to there. Recipes for newer builds have 0.85
    on two Sparks at 196,608 tokens, where it is info. One Spark serves the same context at 0.85; more than two were not
    reported.
    """
    share, tokens = served.number(SHARE), served.number("max-model-len")
    if not served.spark or (served.nodes, served.ranks) != (2, 2) or tokens is None or tokens < LONG:
        return
    if share is not None and LONG_CEILING < share <= CEILING:
        summary = f"{percent(share)} of the memory at {int(tokens)} tokens has failed with Xid 43 on two Sparks"
        seen_there = served.family == "ngc" and served.since(0, 20) is False
        severity: Severity | None = None if seen_there else "info"
        yield served.say(SHARE, summary, f"write {SHARE}: {LONG_CEILING} if it fails under load", severity=severity)


@rule(
    "SM121-062",
    "Few requests run at once",
    severity="info",
    source=f"{sources.VLLM_BLOG}; 92 tok/s in total of 16 streams, 6 of one: {sources.GUIDE}",
)
def sequences(served: Served) -> Iterator[Seen]:
    """Above four streams each one gets slower, since they share the memory bandwidth.

    In total more streams give more tokens: a dense model of 31B had 6 tok/s alone and 92 in 16 streams, and NVIDIA's
    recipe of Nemotron-3-Nano has eight. So it is info.
    """
    count = served.number("max-num-seqs")
    if served.spark and count is not None and count > STREAMS:
        summary = f"{int(count)} concurrent requests share the memory bandwidth"
        yield served.say("max-num-seqs", summary, "write max-num-seqs: 4 for a single user")


@rule(
    "SM121-065",
    "Weights are not offloaded to the memory that they are in",
    source="https://docs.vllm.ai, Engine Arguments (cpu-offload-gb); 34 GB more on a GB10 with "
    "another engine: https://github.com/hao-ai-lab/FastVideo/pull/1710",
)
def offload(served: Served) -> Iterator[Seen]:
    """CPU and GPU of a GB10 share one memory: what is offloaded stays in it, and is copied for every pass.

    `--cpu-offload-gb` is for GPUs with memory of their own. It frees nothing here.
    """
    flag = "cpu-offload-gb"
    if served.spark and (served.number(flag) or 0) > 0:
        yield served.say(flag, "offloading frees no memory on a GB10", f"remove {flag}; lower {SHARE} or max-model-len")


@rule(
    "SM121-063",
    "The model was trained for the context",
    severity="error",
    source=f"{sources.GUIDE}; 1M of Nemotron 3: there, and https://github.com/vllm-project/recipes/blob/main/models/nvidia/"
    "NVIDIA-Nemotron-3-Super-120B-A12B-BF16.yaml (long_context)",
)
def context(served: Served) -> Iterator[Seen]:
    """Above the context of its training a model does not start, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set.

    Nemotron 3 Nano and Super have 1M by that variable alone: their config.json has 262,144, the default. For others
    YaRN, by `hf-overrides`, extends the context past the training. It costs quality of short prompts, and a prompt of a
    million tokens takes minutes on a GB10.
    """
    tokens, native = served.number("max-model-len"), served.context
    if tokens is None or native is None or tokens <= native:
        return
    if extends_context(served):
        summary = f"YaRN extends the context from {native} to {int(tokens)} tokens"
        yield served.say("max-model-len", summary, "remove both if prompts are short", severity="info")
    elif longest_context(served, native) is not None:
        longer = served.model is not None and tokens <= (served.model.longest or 0)
        yarn = f"or write {LONG_MODELS} under env{'' if longer else ', and YaRN under hf-overrides'}"
        summary = f"{int(tokens)} tokens are more than the model's {native}"
        yield served.say("max-model-len", summary, f"write max-model-len: {native}", yarn)


@rule(
    "SM121-064",
    "Prefixes are cached for coding agents",
    source=f"{sources.GUIDE}; on by default: vllm/engine/arg_utils.py of 0.28.0",
)
def prefix_cache(served: Served) -> Iterator[Seen]:
    """By default vLLM does not cache prefixes of Qwen3-Coder-Next: an agent's prompt is prefilled again each turn.

    From 0.28 on it does, for hybrid models too.
    """
    written = served.values.get("enable-prefix-caching")
    default = served.since(*defaults.SINCE["hybrid models cache prefixes"])
    if served.named("Qwen3-Coder-Next") and not (default if written is None else written):
        remedy = "write enable-prefix-caching: true"
        yield served.say("enable-prefix-caching", "prefix caching is off for this model", remedy)


def percent(share: float) -> str:
    """``share`` as it was written: 0.825 is 82.5 %."""
    return f"{share * 100:.3g}%"
