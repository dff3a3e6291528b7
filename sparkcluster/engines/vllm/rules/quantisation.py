"""Rules on weights: the quantisation that a flag names against the one that the checkpoint has, and how it is read."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm import families
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

# What --quantization does to plain weights while they are loaded.
ONLINE = frozenset({"fp8", "bitsandbytes", "torchao", "experts_int8", "fp8_per_tensor", "fp8_per_block", "int8"})


@rule("SM121-040", "mxfp4 is said of MXFP4 weights alone", severity="error", source=sources.TWO_SPARKS)
def mxfp4(served: Served) -> Iterator[Seen]:
    """The mxfp4 loader reads gpt-oss' own experts, three-dimensional bytes; on others it ends in an IndexError.

    Seen on NGC 26.04 in fused_moe/layer.py with BF16 checkpoints; there is no way from BF16 to mxfp4 while loading.
    """
    if served.text("quantization") not in {"mxfp4", "gpt_oss_mxfp4"} or served.kind in {None, "mxfp4"}:
        return
    newer = served.kind == "bf16" and served.since(0, 23) is not False
    remedy = "take quantization out" if served.kind != "bf16" else "write quantization: fp8, or take a quantised one"
    summary = f"quantization mxfp4 is said of {served.kind} weights"
    yield served.say("warning" if newer else "error", served.path("quantization"), summary, remedy)


@rule(
    "SM121-041",
    "The quantisation is the checkpoint's",
    severity="error",
    source=f"{sources.GUIDE}; {sources.VLLM_BLOG}",
)
def mismatch(served: Served) -> Iterator[Seen]:
    """A flag that names another quantisation than the checkpoint's makes weights load wrongly, or not at all.

    NVIDIA's NVFP4 repositories are ModelOpt's; those of RedHatAI, Unsloth and llm-compressor are compressed-tensors,
    which vLLM finds by itself. BF16 weights may be quantised while they are loaded, as by fp8.
    """
    said = served.text("quantization")
    if said is None or served.kind is None or said in {"mxfp4", "gpt_oss_mxfp4", "auto", "none"}:
        return
    fits = said in families.NAMES.get(served.kind, frozenset()) if served.kind != "bf16" else said in ONLINE
    if not fits and (served.kind == "bf16" or served.kind in families.NAMES):
        summary = f"quantization {said} is said of {served.kind} weights"
        yield served.say("error", served.path("quantization"), summary, "take quantization out: vLLM reads config.json")


@rule(
    "SM121-042",
    "ModelOpt is said where vLLM is old",
    severity="info",
    source=f"say it: {sources.GUIDE}; leave it unset: {sources.VLLM_BLOG}",
)
def unsaid(served: Served) -> Iterator[Seen]:
    """Older builds were told `--quantization modelopt` for NVIDIA's NVFP4 checkpoints.

    Sources disagree: a guide asks for it everywhere, vLLM's blog leaves it unset, since config.json has it. On an
    image up to 0.19 it does no harm.
    """
    if served.kind == "modelopt" and "quantization" not in served.flags and served.since(0, 20) is False:
        at = served.path("quantization")
        yield served.say("info", at, "quantization is left to vLLM", "write quantization: modelopt if loading fails")


@rule("SM121-043", "Weights are read by what the image has", severity="error", source=sources.TWO_SPARKS)
def fastsafetensors(served: Served) -> Iterator[Seen]:
    """`--load-format fastsafetensors` ends in an ImportError on NGC 26.03 and 26.04, which do not hold it."""
    if (
        served.text("load-format") == "fastsafetensors"
        and served.family == "ngc"
        and served.tag[:5]
        in {
            "26.03",
            "26.04",
        }
    ):
        summary = "this image has no fastsafetensors"
        yield served.say("error", served.path("load-format"), summary, "take load-format out")


@rule("SM121-044", "fastsafetensors finds room", source=sources.MEMORY_NOTES)
def fastsafetensors_room(served: Served) -> Iterator[Seen]:
    """It reads through buffers of its own; with more than 0.76 for the engine, a Spark froze briefly."""
    share = served.number("gpu-memory-utilization")
    greedy = share > 0.76 if share is not None else "gpu-memory-utilization" not in served.flags
    if served.spark and served.text("load-format") == "fastsafetensors" and greedy:
        summary = "fastsafetensors with this much memory for the engine has frozen a Spark"
        remedy = "write gpu-memory-utilization: 0.76 or less, or take load-format out"
        yield served.say("warning", served.path("load-format"), summary, remedy)


@rule("SM121-045", "The KV cache has a precision that the model stands", source=sources.GUIDE)
def fp8_cache(served: Served) -> Iterator[Seen]:
    """With an FP8 KV cache some models repeat themselves without end.

    Qwen3.5 is told without it. Qwen3.6's NVFP4 and Nemotron-3-Nano's recipes have it; vLLM's blog advises to check
    the answers, and that it costs speed on a Spark.
    """
    if served.named("Qwen3.5") and (served.text("kv-cache-dtype") or "").startswith("fp8"):
        summary = "an FP8 KV cache makes this model repeat itself"
        yield served.say("warning", served.path("kv-cache-dtype"), summary, "take kv-cache-dtype out")


@rule("SM121-046", "Checkpoints bring no FP8 KV cache of their own", source=sources.GUIDE)
def baked_cache(served: Served) -> Iterator[Seen]:
    """Checkpoints that ask for an FP8 KV cache answer with scrambled text on GPUs other than Hopper.

    Named are Laguna-XS.2's FP8 and INT4 ones.
    """
    label = served.playbook.model.label.lower()
    unset = served.text("kv-cache-dtype") in {None, "auto"}
    if served.spark and "laguna-xs.2-" in label and label.endswith(("fp8", "int4")) and unset:
        summary = "this checkpoint asks for an FP8 KV cache, which scrambles its answers"
        remedy = "write kv-cache-dtype: bfloat16, or take poolside/Laguna-XS.2"
        yield served.say("warning", ("model", "id"), summary, remedy)
