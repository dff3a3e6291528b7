"""Rules on memory: how much of the one memory the engine may take, for how many requests of which length."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm import defaults
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

CEILING = 0.90
SAFE = 0.87
LONG = 131072
LONG_CEILING = 0.82


@rule(
    "SM121-060",
    "The engine leaves memory for the system",
    severity="error",
    source=f"{sources.TWO_SPARKS}; 0.92 in a community recipe: {sources.GUIDE}",
)
def ceiling(served: Served) -> Iterator[Seen]:
    """Above 0.90 a Spark ends in Xid 43 or freezes, since system and page cache live in the same memory.

    0.85 to 0.87 is the tested range. Sources disagree: a community recipe for a model of 8 GB takes 0.92, which a
    playbook may `allow`. Left out, vLLM takes 0.92 from 0.20 on.
    """
    share = served.number("gpu-memory-utilization")
    at = served.path("gpu-memory-utilization")
    if not served.spark:
        return
    if share is None:
        default = defaults.utilizations(served.versions)[0]
        if "gpu-memory-utilization" not in served.flags and default > CEILING:
            summary = f"vLLM takes {default:.0%} of the memory where gpu-memory-utilization is not set"
            yield served.say("warning", at, summary, "write gpu-memory-utilization: 0.85")
    elif share > CEILING:
        summary = f"{share:.0%} of the memory leaves too little for the system"
        yield served.say("error", at, summary, "write gpu-memory-utilization: 0.85")
    elif share > SAFE:
        summary = f"{share:.0%} of the memory is above the tested range"
        yield served.say("info", at, summary, "write gpu-memory-utilization: 0.85 if it ends under load")


@rule("SM121-061", "Long context over two Sparks leaves memory", source=sources.TWO_SPARKS)
def long_context(served: Served) -> Iterator[Seen]:
    """At 131,072 tokens over two Sparks, more than 0.82 ended in Xid 43 under load.

    On one Spark the same context is served at 0.85.
    """
    share, tokens = served.number("gpu-memory-utilization"), served.number("max-model-len")
    if not served.spark or served.nodes < 2 or tokens is None or tokens < LONG:
        return
    if share is not None and LONG_CEILING < share <= CEILING:
        summary = f"{share:.0%} of the memory at {int(tokens)} tokens has ended in Xid 43 on two Sparks"
        at = served.path("gpu-memory-utilization")
        yield served.say("warning", at, summary, f"write gpu-memory-utilization: {LONG_CEILING}")


@rule(
    "SM121-062",
    "Few requests run at once",
    severity="info",
    source=f"{sources.VLLM_BLOG}; 92 tok/s in sum of 16 streams where one has 6: {sources.GUIDE}",
)
def sequences(served: Served) -> Iterator[Seen]:
    """Above four streams each of them gets slower, since they share the memory's bandwidth.

    In sum more streams give more tokens: a dense model of 31B had 6 tok/s alone and 92 in 16 streams. So it is a hint,
    above 16.
    """
    count = served.number("max-num-seqs")
    if served.spark and count is not None and count > 16:
        summary = f"{int(count)} requests at once share one memory's bandwidth"
        yield served.say("info", served.path("max-num-seqs"), summary, "write max-num-seqs: 4 where one user waits")


@rule("SM121-063", "The context is one that the model was trained for", severity="error", source=sources.GUIDE)
def context(served: Served) -> Iterator[Seen]:
    """An engine refuses more tokens than the model was trained for, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set.

    YaRN, by `hf-overrides`, stretches a model past its training. It costs quality of short prompts, and a prompt of a
    million tokens takes minutes on a GB10.
    """
    tokens = served.number("max-model-len")
    native = served.context
    allowed = served.playbook.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if tokens is None or native is None or tokens <= native:
        return
    at = served.path("max-model-len")
    stretched = "hf-overrides" in served.flags or "rope-scaling" in served.flags
    if not allowed and not stretched:
        remedy = 'write VLLM_ALLOW_LONG_MAX_MODEL_LEN: "1" under env, and YaRN under hf-overrides'
        yield served.say("error", at, f"{int(tokens)} tokens are more than the model's {native}", remedy)
    elif stretched:
        summary = f"YaRN stretches the model from {native} to {int(tokens)} tokens"
        yield served.say("info", at, summary, "take both out where prompts are short")


@rule(
    "SM121-064",
    "Coding agents find their prompt again",
    source=f"{sources.GUIDE}; on by default: vllm/engine/arg_utils.py of 0.28.0",
)
def prefix_cache(served: Served) -> Iterator[Seen]:
    """Left alone, vLLM does not cache prefixes of Qwen3-Coder-Next: an agent's prompt is read anew each turn.

    From 0.28 on it does so by default, for hybrid models too.
    """
    written = served.flags.get("enable-prefix-caching")
    default = served.since(*defaults.SINCE["hybrid models cache prefixes"])
    if served.named("Qwen3-Coder-Next") and not (default if written is None else written):
        at = served.path("enable-prefix-caching")
        yield served.say("warning", at, "prefix caching is off for this model", "write enable-prefix-caching: true")
