"""Rules on weights: the quantization that a flag names against the checkpoint's, and how weights are read."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm import family_flags
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.findings import Severity

# What --quantization does to plain weights while they are loaded.
ONLINE = frozenset({"fp8", "bitsandbytes", "torchao", "experts_int8", "fp8_per_tensor", "fp8_per_block", "int8"})


@rule("SM121-040", "mxfp4 is set for MXFP4 weights only", severity="error", source=sources.TWO_SPARKS)
def mxfp4(served: Served) -> Iterator[Seen]:
    """The mxfp4 loader reads the experts of gpt-oss, three-dimensional bytes; others end in an IndexError.

    Seen on NGC 26.04 in fused_moe/layer.py with BF16 checkpoints; BF16 cannot be converted to mxfp4 while loading.
    """
    if served.text("quantization") not in {"mxfp4", "gpt_oss_mxfp4"} or served.kind in {None, "mxfp4"}:
        return
    plain = served.kind == "bf16"
    remedy = "write quantization: fp8, or use a quantized checkpoint" if plain else "remove quantization"
    newer = plain and served.since(0, 23) is not False
    summary = f"quantization mxfp4 is set for {served.kind} weights"
    yield served.say("quantization", summary, remedy, severity="warning" if newer else None)


@rule(
    "SM121-041",
    "The quantization matches the checkpoint",
    severity="error",
    source=f"{sources.GUIDE}; {sources.VLLM_BLOG}; fp4: "
    "https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/nemotron/README.md, and "
    "override_quantization_method in vllm/model_executor/layers/quantization/modelopt.py",
)
def mismatch(served: Served) -> Iterator[Seen]:
    """With another quantization than the checkpoint's, weights load wrongly or not at all.

    NVIDIA's NVFP4 repositories are ModelOpt's; those of RedHatAI, Unsloth and llm-compressor are compressed-tensors,
    which vLLM detects. BF16 weights may be quantized while they are loaded, as by fp8. For ModelOpt's checkpoints vLLM
    replaces whatever is written by what config.json says: NVIDIA's command for Nemotron 3 Super has `fp4`, which is no
    method of vLLM's. So another name is info there.
    """
    written = served.text("quantization")
    if written is None or served.kind is None or written in {"mxfp4", "gpt_oss_mxfp4", "auto", "none"}:
        return
    allowed = ONLINE if served.kind == "bf16" else family_flags.NAMES.get(served.kind)
    if allowed is None or written in allowed:
        return
    if served.kind == "modelopt":
        summary = f"quantization {written} has no effect: config.json says what the weights are"
        yield served.say("quantization", summary, "remove quantization", severity="info")
    else:
        summary = f"quantization {written} is set for {served.kind} weights"
        yield served.say("quantization", summary, "remove quantization: vLLM reads config.json")


@rule(
    "SM121-042",
    "ModelOpt is set on old vLLM",
    severity="info",
    source=f"set it: {sources.GUIDE}; leave it unset: {sources.VLLM_BLOG}",
)
def unset(served: Served) -> Iterator[Seen]:
    """Older builds need `--quantization modelopt` for NVIDIA's NVFP4 checkpoints.

    Sources disagree: a guide requires it everywhere, vLLM's blog leaves it unset, since config.json has it. On an
    image up to 0.19 it does no harm.
    """
    if served.kind == "modelopt" and "quantization" not in served.values and served.since(0, 20) is False:
        yield served.say("quantization", "quantization is not set", "write quantization: modelopt if loading fails")


@rule("SM121-043", "The image supports load-format", severity="error", source=sources.TWO_SPARKS)
def fastsafetensors(served: Served) -> Iterator[Seen]:
    """`--load-format fastsafetensors` ends in an ImportError on NGC 26.03 and 26.04, which do not include it."""
    without = served.family == "ngc" and served.tag[:5] in {"26.03", "26.04"}
    if without and served.text("load-format") == "fastsafetensors":
        yield served.say("load-format", "this image has no fastsafetensors", "remove load-format")


@rule(
    "SM121-044",
    "fastsafetensors has enough memory for its buffers",
    severity="info",
    source=f"{sources.MEMORY_NOTES}; with 0.8 and more: {sources.EUGR} (recipes)",
)
def fastsafetensors_memory(served: Served) -> Iterator[Seen]:
    """It reads through buffers of its own; with more than 0.76 for the engine, a Spark froze briefly, once.

    Recipes that are in use have it with 0.8 and 0.85, so it is info. With Gemma 4 it is worse (SM121-047).
    """
    share = served.number("gpu-memory-utilization")
    much = share > 0.76 if share is not None else "gpu-memory-utilization" not in served.values
    if served.spark and served.text("load-format") == "fastsafetensors" and much:
        summary = "fastsafetensors with this much memory for the engine has frozen a Spark for a moment"
        yield served.say("load-format", summary, "write gpu-memory-utilization: 0.76 or less, or remove load-format")


@rule(
    "SM121-047",
    "Gemma 4 is not loaded by fastsafetensors",
    severity="error",
    source="https://github.com/eugr/spark-vllm-docker/issues/205 (two models of Spark, and its maintainer's)",
)
def fastsafetensors_gemma(served: Served) -> Iterator[Seen]:
    """With Gemma 4 its memory grows until the node freezes or reboots, at 0 % of the weights.

    Reported in April 2026 for Gemma 4 26B-A4B on builds of 0.19 and 0.20, where other models loaded; their recipe has
    `instanttensor` since. An error on these versions, a warning where the version is unknown, and not reported on newer
    ones.
    """
    newer = served.since(0, 21)
    if served.spark and served.gemma_4 and served.text("load-format") == "fastsafetensors" and not newer:
        summary = "fastsafetensors has frozen Sparks that loaded Gemma 4"
        severity: Severity | None = None if newer is False else "warning"
        yield served.say("load-format", summary, "write load-format: safetensors, or instanttensor", severity=severity)


@rule(
    "SM121-048",
    "InstantTensor can load a drafter",
    source="https://github.com/eugr/spark-vllm-docker/issues/211, https://github.com/scitix/InstantTensor/issues/12",
)
def instanttensor(served: Served) -> Iterator[Seen]:
    """InstantTensor before 0.1.9, of June 2026, crashes when it loads the weights of a DFlash drafter.

    Seen with Qwen3.5-122B and Qwen3.6-27B on builds of 0.19 to 0.20. A warning on vLLM up to 0.22, info where the
    version is unknown.
    """
    newer = served.since(0, 23)
    if served.dflash and served.text("load-format") == "instanttensor" and not newer:
        summary = "InstantTensor before 0.1.9 crashes on DFlash drafters"
        severity: Severity | None = None if newer is False else "info"
        remedy = "write load-format: fastsafetensors or safetensors, or use an image with InstantTensor 0.1.9"
        yield served.say("load-format", summary, remedy, severity=severity)


@rule(
    "SM121-045",
    "The KV cache has a precision that the model tolerates",
    source=f"{sources.GUIDE}; with FP8: {sources.EUGR} (recipes of Qwen3.5-35B-A3B and 397B-A17B)",
)
def fp8_cache(served: Served) -> Iterator[Seen]:
    """With an FP8 KV cache some models repeat themselves without end.

    Reported for Qwen3.5, by a guide that serves the 122B. A community's recipes have it for Qwen3.5's 35B and 397B and
    leave it out for the 122B, so it is a warning for that and info for the others. Recipes of Qwen3.6's NVFP4 and of
    Nemotron-3-Nano have it; vLLM's blog advises to check the output, and says that it costs speed on a Spark.
    """
    if served.named("Qwen3.5") and served.fp8_cache:
        summary = "an FP8 KV cache can make this model repeat itself"
        severity: Severity | None = None if "122b" in served.playbook.model.label.lower() else "info"
        yield served.say("kv-cache-dtype", summary, "remove kv-cache-dtype", severity=severity)


@rule("SM121-046", "The checkpoint does not enable an FP8 KV cache", source=sources.GUIDE)
def checkpoint_cache(served: Served) -> Iterator[Seen]:
    """Checkpoints that request an FP8 KV cache return scrambled text on GPUs other than Hopper.

    Reported for the FP8 and INT4 checkpoints of Laguna-XS.2.
    """
    label = served.playbook.model.label.lower()
    default = served.text("kv-cache-dtype") in {None, "auto"}
    if served.spark and "laguna-xs.2-" in label and label.endswith(("fp8", "int4")) and default:
        summary = "this checkpoint requests an FP8 KV cache, which scrambles its output"
        yield served.say(("model", "id"), summary, "write kv-cache-dtype: bfloat16, or use poolside/Laguna-XS.2")
