"""Rules on speculative decoding: DFlash, MTP and what they need of image, cache and kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.findings import Severity

CONFIG = "speculative-config"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
DFLASH_RECIPES = f"{sources.EUGR} and https://github.com/spark-arena/recipe-registry (recipes of Qwen3.6 with DFlash)"
# Builds that are made for DFlash on a GB10.
BUILDS = ("aeon-7/", "z-lab/")
# What the name of a drafter leaves out of its target's.
_VARIANT = re.compile(r"-(nvfp4|fp8|bf16|it|instruct|dflash|b16|reasoning|heretic|speculator\.dflash)(?=-|$)")


@rule(
    "SM121-100",
    "DFlash has a BF16 KV cache",
    severity="error",
    source=f"{sources.GUIDE}; the two together: "
    "https://github.com/vllm-project/recipes/blob/main/models/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16.yaml",
)
def dflash_cache(served: Served) -> Iterator[Seen]:
    """DFlash's drafter reads the target's KV cache as BF16; with FP8 all its drafts are wrong.

    vLLM's recipe of Nemotron 3.5 Lightning has both, with FlashInfer's attention for its drafter: a warning there.
    """
    if served.dflash and served.fp8_cache:
        flashinfer = str(served.draft.get("attention_backend")).lower() == "flashinfer"
        severity: Severity | None = "warning" if flashinfer else None
        summary = "DFlash cannot draft from an FP8 KV cache"
        yield served.say("kv-cache-dtype", summary, "remove kv-cache-dtype", severity=severity)


@rule("SM121-101", "The image supports DFlash", severity="error", source=f"vLLM PR 41880; {sources.GUIDE}")
def dflash_version(served: Served) -> Iterator[Seen]:
    """DFlash was added in vLLM 0.21; NGC 26.04 (0.19) does not have the method."""
    if served.dflash and served.since(0, 21) is False:
        remedy = "use vllm/vllm-openai:nightly or another image with vLLM 0.21 or newer"
        yield served.say(("image",), "this image does not support DFlash", remedy)


@rule(
    "SM121-102",
    "DFlash runs without DeepGEMM",
    source=f"{sources.GUIDE}; without it: {DFLASH_RECIPES}",
)
def dflash_gemm(served: Served) -> Iterator[Seen]:
    """DeepGEMM does not work with DFlash's drafts and fails silently: VLLM_USE_DEEP_GEMM=0 disables it.

    Recipes for a community's builds do without it, so it is info there.
    """
    if served.dflash and served.spark and served.playbook.env.get("VLLM_USE_DEEP_GEMM") != "0":
        severity: Severity | None = None if served.released else "info"
        remedy = 'write VLLM_USE_DEEP_GEMM: "0"'
        yield served.say(("env",), "DeepGEMM is enabled with DFlash", remedy, severity=severity)


@rule(
    "SM121-103",
    "DFlash's target uses Triton's attention",
    severity="error",
    source=f"{sources.GUIDE}; flash_attn on 0.26: https://github.com/vllm-project/vllm/issues/50707; flash_attn runs: "
    f"{DFLASH_RECIPES}, https://github.com/AEON-7/vllm-dflash; the drafter's: "
    "https://github.com/vllm-project/recipes/blob/main/models/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16.yaml",
)
def dflash_attention(served: Served) -> Iterator[Seen]:
    """On a GB10 flash_attn and FlashInfer have crashed with DFlash; the drafter's own backend is best not set.

    Sources disagree. A guide saw crashes on nightlies of mid-2026, and 0.26 ended with an assertion of the GPU in
    flash_attn's `varlen_fwd` unless VLLM_USE_V2_MODEL_RUNNER=1 was set: there it is an error. AEON-7's image and
    recipes for two communities' builds run it with flash_attn, so outside vLLM's and NVIDIA's images it is not
    reported. vLLM's recipe of Nemotron 3.5 Lightning sets the drafter's backend on a GB10.
    """
    if not (served.dflash and served.spark and served.released):
        return
    flag, remedy = "attention-backend", "write attention-backend: triton_attn"
    backend = served.text(flag)
    if backend is None or backend == "auto":
        yield served.say(flag, "attention-backend is not set with DFlash", remedy, severity="warning")
    elif backend != "triton_attn":
        asserted = served.between((0, 26), (0, 27)) and served.playbook.env.get(RUNNER) != "1"
        severity: Severity | None = None if asserted else "warning"
        yield served.say(flag, f"{backend} has crashed with DFlash on a GB10", remedy, severity=severity)
    if "attention_backend" in served.draft:
        summary = "the drafter's attention backend is set"
        remedy = "remove attention_backend from speculative-config, if it crashes"
        yield served.say(CONFIG, summary, remedy, severity="info")


@rule(
    "SM121-133",
    "A drafter of mixed attention runs on the V2 model runner",
    source="https://github.com/vllm-project/vllm/issues/50707 (corrected there), "
    "https://github.com/vllm-project/vllm/pull/47914, https://github.com/vllm-project/vllm-ascend/issues/15650",
)
def dflash_runner(served: Served) -> Iterator[Seen]:
    """DFlash drafters whose layers mix sliding and full attention fail on the default runner of vLLM 0.26 and 0.27.

    At the start, or at the first request by an assertion of the GPU in `varlen_fwd`; drafters for Qwen3.5, Qwen3.6
    and Gemma 4 are such. `VLLM_USE_V2_MODEL_RUNNER=1` supports them.
    """
    reported = served.between((0, 26), (0, 28))
    if served.dflash and reported and served.playbook.env.get(RUNNER) != "1":
        summary = "a DFlash drafter that mixes sliding and full attention fails on this vLLM"
        yield served.say(CONFIG, summary, f'write {RUNNER}: "1" under env')


@rule(
    "SM121-104",
    "DFlash drafts for weights that it was trained on",
    source=f"{sources.GUIDE}; FP8 targets on other builds: {DFLASH_RECIPES}; drafters for NVFP4: "
    "https://github.com/vllm-project/recipes/blob/main/models/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16.yaml",
)
def dflash_weights(served: Served) -> Iterator[Seen]:
    """With quantized weights on stock vLLM only the first few of 15 tokens are accepted, and it gets slower.

    Images built for DFlash on a GB10 (aeon-7, z-lab) do well with their own quantized targets; BF16 targets do
    everywhere, and a drafter whose name has the target's format was trained for it. Recipes for a community's builds
    draft for FP8, so it is info there.
    """
    quantized = served.kind not in {None, "bf16"} or served.fp4
    drafter = str(served.draft.get("model", "")).lower()
    trained = served.weights is not None and served.weights in drafter
    if (
        served.dflash
        and served.spark
        and quantized
        and not trained
        and not any(each in served.image for each in BUILDS)
    ):
        summary = "few of DFlash's drafts are accepted with quantized weights"
        severity: Severity | None = None if served.released else "info"
        remedy = "use the model in BF16, an image built for DFlash, or method: mtp"
        yield served.say(CONFIG, summary, remedy, severity=severity)


@rule("SM121-105", "The drafter was trained for this model", source=sources.GUIDE)
def dflash_drafter(served: Served) -> Iterator[Seen]:
    """A drafter is trained for one target; with another, almost nothing is accepted."""
    drafter = served.draft.get("model")
    if not (served.dflash and isinstance(drafter, str) and "dflash" in drafter.lower()):
        return
    drafts, target = _bare(drafter), _bare(served.playbook.model.label)
    if drafts and drafts not in target and target not in drafts and served.playbook.model.id:
        yield served.say(
            CONFIG, f"{drafter} was trained for another model", "use the drafter that was trained for this model"
        )


@rule("SM121-106", "Gemma 4 drafts with an image made for it", source=sources.GUIDE)
def dflash_gemma(served: Served) -> Iterator[Seen]:
    """Gemma 4's DFlash drafters run only on Z Lab's build of vLLM."""
    if served.dflash and served.gemma_4 and "gemma4-dflash" not in served.tag:
        remedy = "write image: ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130"
        yield served.say(("image",), "this image cannot draft for Gemma 4 by DFlash", remedy)


@rule("SM121-107", "Gemma's own drafter reads an FP8 KV cache", severity="error", source=sources.GUIDE)
def gemma_draft(served: Served) -> Iterator[Seen]:
    """The MTP drafter of gemma-4-12B-coder breaks with an NVFP4 KV cache: it needs `--kv-cache-dtype fp8`.

    The opposite of DFlash, which must not have it.
    """
    bundled = served.draft.get("method") == "mtp" and str(served.draft.get("model", "")).rstrip("/").endswith(
        "assistant"
    )
    if served.gemma_4 and bundled and not served.fp8_cache:
        yield served.say("kv-cache-dtype", "this drafter needs an FP8 KV cache", "write kv-cache-dtype: fp8")


@rule("SM121-108", "MTP drafts few tokens", source=sources.GUIDE)
def mtp_tokens(served: Served) -> Iterator[Seen]:
    """Each token that MTP drafts costs a pass: one to three pay off. DFlash checks a block at once: 7 to 15."""
    tokens = served.draft.get("num_speculative_tokens")
    if served.draft.get("method") == "mtp" and isinstance(tokens, int) and tokens > 3:
        summary = f"MTP drafts {tokens} tokens, of which most are rejected"
        yield served.say(CONFIG, summary, "write num_speculative_tokens: 3 or fewer")


@rule("SM121-109", "The model has layers to draft with", source=sources.GUIDE)
def mtp_layers(served: Served) -> Iterator[Seen]:
    """Nemotron-3-Nano has no MTP layers, nor have Gemma 4 26B-A4B and 31B; n-gram works for any model."""
    without = served.named("Nemotron 3 Nano", "Nemotron 3 Nano Omni", "Gemma 4 26B-A4B", "Gemma 4")
    if without and served.draft.get("method") == "mtp" and "model" not in served.draft:
        yield served.say(CONFIG, "this checkpoint has no MTP layers", f"write method: ngram, or remove {CONFIG}")


@rule("SM121-110", "Speculative decoding serves few requests", severity="info", source=sources.GUIDE)
def load(served: Served) -> Iterator[Seen]:
    """It costs throughput once many requests run: it is for one user, or a few."""
    count = served.number("max-num-seqs")
    if served.draft and count is not None and count >= 32:
        summary = f"speculative decoding costs throughput with {int(count)} requests"
        yield served.say(CONFIG, summary, f"remove {CONFIG}, or write max-num-seqs: 4")


@rule(
    "SM121-111",
    "async-scheduling supports the drafting method",
    severity="error",
    source="vllm/config/vllm.py of 0.32.0; https://github.com/vllm-project/vllm/pull/31998",
)
def scheduling(served: Served) -> Iterator[Seen]:
    """With `--async-scheduling` an engine that drafts by n-gram or suffix fails at startup.

    `Currently, async scheduling is only supported with EAGLE/MTP/...`. If it is not set, vLLM disables it.
    """
    method = served.draft.get("method")
    if method in {"ngram", "suffix"} and served.on("async-scheduling"):
        summary = f"async-scheduling does not support {method}"
        yield served.say("async-scheduling", summary, "remove async-scheduling")


@rule(
    "SM121-112",
    "The package for suffix decoding is installed",
    source="vllm/config/speculative.py of 0.32.0; https://github.com/vllm-project/vllm/pull/25784",
)
def suffix(served: Served) -> Iterator[Seen]:
    """Suffix decoding is Arctic Inference's; without it the engine fails at startup.

    `Arctic Inference is required for suffix decoding`. vLLM does not depend on it, so an image has it only if its
    builder installed it.
    """
    installed = any("arctic-inference" in line for line in [*served.playbook.setup, *(served.playbook.command or ())])
    if served.draft.get("method") == "suffix" and not installed:
        remedy = "write pip install arctic-inference==0.1.1 under setup, unless the image has it; or method: ngram"
        yield served.say(CONFIG, "suffix decoding needs the package arctic-inference", remedy)


def _bare(name: str) -> str:
    """A model's name without organization and variant, to compare drafter and target by."""
    return _VARIANT.sub("", name.rstrip("/").rsplit("/", 1)[-1].lower())
