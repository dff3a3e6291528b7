"""Rules on speculative decoding: DFlash, MTP, and the image, cache and kernels that they need."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.check import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.findings import Severity

CONFIG = "speculative-config"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
DFLASH_RECIPES = f"{sources.EUGR} and https://github.com/spark-arena/recipe-registry (recipes of Qwen3.6 with DFlash)"
# Builds that are made for DFlash on a GB10.
BUILDS = ("aeon-7/", "z-lab/")
# Parts of a model's name that differ between drafter and target.
_VARIANT = re.compile(r"-(nvfp4|fp8|bf16|it|instruct|dflash|b16|reasoning|heretic|speculator\.dflash)(?=-|$)")


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

    Sources disagree. A guide saw crashes on nightlies of mid-2026. On 0.26 a GPU assertion failed in flash_attn's
    `varlen_fwd` unless VLLM_USE_V2_MODEL_RUNNER=1 was set: there it is an error. AEON-7's image and recipes for two
    community builds run it with flash_attn, so it is not reported on images other than vLLM's and NVIDIA's. vLLM's
    recipe of Nemotron 3.5 Lightning sets the drafter's backend on a GB10.
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
    "SM121-104",
    "DFlash's drafter was trained on the target's weights",
    source=f"{sources.GUIDE}; FP8 targets on other builds: {DFLASH_RECIPES}; drafters for NVFP4: "
    "https://github.com/vllm-project/recipes/blob/main/models/nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16.yaml",
)
def dflash_weights(served: Served) -> Iterator[Seen]:
    """With quantized weights on stock vLLM only the first few of 15 tokens are accepted, and decoding gets slower.

    Images built for DFlash on a GB10 (aeon-7, z-lab) work well with their own quantized targets. BF16 targets work well
    everywhere, and so does a drafter with the target's format in its name. Recipes for community builds draft for FP8,
    so it is info there.
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


def _bare(name: str) -> str:
    """A model's name without organization and variant, to compare drafter and target."""
    return _VARIANT.sub("", name.rstrip("/").rsplit("/", 1)[-1].lower())
