"""Rules on speculative decoding: DFlash, MTP and what they want of image, cache and kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

CONFIG = "speculative-config"
# Builds that are made for DFlash on a GB10.
BUILDS = ("aeon-7/", "z-lab/")
# What a drafter's name leaves out of its target's.
_VARIANT = re.compile(r"-(nvfp4|fp8|bf16|it|instruct|dflash|b16|reasoning|heretic|speculator\.dflash)(?=-|$)")


@rule("SM121-100", "DFlash keeps its KV cache in BF16", severity="error", source=sources.GUIDE)
def dflash_cache(served: Served) -> Iterator[Seen]:
    """DFlash's drafter reads the target's KV cache as BF16; in FP8 nothing that it drafts is right."""
    if served.dflash and (served.text("kv-cache-dtype") or "").startswith("fp8"):
        at = served.path("kv-cache-dtype")
        yield served.say("error", at, "DFlash cannot draft from an FP8 KV cache", "take kv-cache-dtype out")


@rule("SM121-101", "The image's vLLM knows DFlash", severity="error", source=f"vLLM PR 41880; {sources.GUIDE}")
def dflash_version(served: Served) -> Iterator[Seen]:
    """DFlash came with vLLM 0.21; NGC 26.04 (0.19) does not know the method."""
    if served.dflash and served.since(0, 21) is False:
        remedy = "take vllm/vllm-openai:nightly or another image with vLLM 0.21 or newer"
        yield served.say("error", ("image",), "this image does not know DFlash", remedy)


@rule("SM121-102", "DFlash runs without DeepGEMM", source=sources.GUIDE)
def dflash_gemm(served: Served) -> Iterator[Seen]:
    """DeepGEMM does not fit DFlash's drafting and fails in silence: VLLM_USE_DEEP_GEMM=0 turns it off."""
    if served.dflash and served.spark and served.playbook.env.get("VLLM_USE_DEEP_GEMM") != "0":
        yield served.say("warning", ("env",), "DeepGEMM is left on beside DFlash", 'write VLLM_USE_DEEP_GEMM: "0"')


@rule(
    "SM121-103",
    "DFlash's target uses Triton's attention",
    severity="error",
    source=f"{sources.GUIDE}; flash_attn: https://github.com/AEON-7/vllm-dflash",
)
def dflash_attention(served: Served) -> Iterator[Seen]:
    """On a GB10 flash_attn and FlashInfer crash under DFlash; the drafter's own backend is best left alone.

    Sources disagree: AEON-7's own image runs it with flash_attn on a GB10 and names Triton for when that fails, so it
    is left alone.
    """
    if not (served.dflash and served.spark) or "aeon-7/" in served.image:
        return
    backend, at = served.text("attention-backend"), served.path("attention-backend")
    if backend is None or backend == "auto":
        yield served.say(
            "warning", at, "attention is left to vLLM under DFlash", "write attention-backend: triton_attn"
        )
    elif backend != "triton_attn":
        yield served.say(
            "error", at, f"{backend} crashes under DFlash on a GB10", "write attention-backend: triton_attn"
        )
    if "attention_backend" in served.draft:
        at = served.path(CONFIG)
        yield served.say("warning", at, "the drafter's attention is chosen by hand", "take attention_backend out of it")


@rule("SM121-104", "DFlash drafts for weights that it was trained on", source=sources.GUIDE)
def dflash_weights(served: Served) -> Iterator[Seen]:
    """With quantised weights under stock vLLM only the first few of 15 tokens are accepted, and it gets slower.

    Images built for DFlash on a GB10 (aeon-7, z-lab) do well with their own quantised targets; BF16 targets do
    everywhere.
    """
    quantised = served.kind not in {None, "bf16"} or served.fp4
    if served.dflash and served.spark and quantised and not any(one in served.image for one in BUILDS):
        summary = "DFlash's drafts are hardly accepted with quantised weights"
        remedy = "take the model in BF16, an image built for DFlash, or method: mtp"
        yield served.say("warning", served.path(CONFIG), summary, remedy)


@rule("SM121-105", "The drafter was trained for this model", source=sources.GUIDE)
def dflash_drafter(served: Served) -> Iterator[Seen]:
    """A drafter is trained for one target; for another, next to nothing is accepted."""
    drafter = served.draft.get("model")
    if not (served.dflash and isinstance(drafter, str) and "dflash" in drafter.lower()):
        return
    drafts, target = _bare(drafter), _bare(served.playbook.model.label)
    if drafts and drafts not in target and target not in drafts and served.playbook.model.id:
        summary = f"{drafter} was trained for another model"
        yield served.say("warning", served.path(CONFIG), summary, "take the drafter that names this model")


@rule("SM121-106", "Gemma 4 drafts with an image made for it", source=sources.GUIDE)
def dflash_gemma(served: Served) -> Iterator[Seen]:
    """Gemma 4's DFlash drafters run on Z Lab's build of vLLM alone."""
    gemma = served.model is not None and served.model.name.startswith("Gemma 4")
    if served.dflash and gemma and "gemma4-dflash" not in served.tag:
        remedy = "write image: ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130"
        yield served.say("warning", ("image",), "this image cannot draft for Gemma 4 by DFlash", remedy)


@rule("SM121-107", "Gemma's own draft reads an FP8 KV cache", severity="error", source=sources.GUIDE)
def gemma_draft(served: Served) -> Iterator[Seen]:
    """The MTP draft that comes with gemma-4-12B-coder breaks with an NVFP4 KV cache: `--kv-cache-dtype fp8`.

    The opposite of DFlash, which must not have it.
    """
    gemma = served.model is not None and served.model.name.startswith("Gemma 4")
    draft = str(served.draft.get("model", "")).rstrip("/")
    fp8 = (served.text("kv-cache-dtype") or "").startswith("fp8")
    if gemma and served.draft.get("method") == "mtp" and draft.endswith("assistant") and not fp8:
        at = served.path("kv-cache-dtype")
        yield served.say("error", at, "this draft needs an FP8 KV cache", "write kv-cache-dtype: fp8")


@rule("SM121-108", "MTP drafts few tokens", source=sources.GUIDE)
def mtp_tokens(served: Served) -> Iterator[Seen]:
    """Each token that MTP drafts costs a pass: one to three pay. DFlash checks a block at once: 7 to 15."""
    tokens = served.draft.get("num_speculative_tokens")
    if served.draft.get("method") == "mtp" and isinstance(tokens, int) and tokens > 3:
        summary = f"MTP drafts {tokens} tokens, of which most are in vain"
        yield served.say("warning", served.path(CONFIG), summary, "write num_speculative_tokens: 3 or fewer")


@rule("SM121-109", "The model has heads to draft with", source=sources.GUIDE)
def mtp_heads(served: Served) -> Iterator[Seen]:
    """Nemotron-3-Nano ships no speculator, and Gemma 4 26B-A4B and 31B none of their own; n-gram works for any."""
    without = served.named("Nemotron 3 Nano", "Nemotron 3 Nano Omni", "Gemma 4 26B-A4B", "Gemma 4")
    if without and served.draft.get("method") == "mtp" and "model" not in served.draft:
        summary = "this checkpoint has no MTP heads"
        yield served.say("warning", served.path(CONFIG), summary, "write method: ngram, or take the config out")


@rule("SM121-110", "Drafting is for few requests", severity="info", source=sources.GUIDE)
def load(served: Served) -> Iterator[Seen]:
    """Drafting costs throughput once many requests run: it is for one user, or a few."""
    count = served.number("max-num-seqs")
    if served.draft and count is not None and count >= 32:
        summary = f"drafting costs throughput with {int(count)} requests"
        yield served.say("info", served.path(CONFIG), summary, "take speculative-config out, or write max-num-seqs: 4")


@rule(
    "SM121-111",
    "Scheduling goes with the drafting",
    severity="error",
    source="vllm/config/vllm.py of 0.32.0; https://github.com/vllm-project/vllm/pull/31998",
)
def scheduling(served: Served) -> Iterator[Seen]:
    """Asked for by `--async-scheduling`, it ends an engine that drafts by n-gram or suffix as that starts.

    `Currently, async scheduling is only supported with EAGLE/MTP/...`. Left out, vLLM does without it by itself.
    """
    method = served.draft.get("method")
    if method in {"ngram", "suffix"} and served.on("async-scheduling"):
        at = served.path("async-scheduling")
        yield served.say("error", at, f"async-scheduling does not go with {method}", "take async-scheduling out")


@rule(
    "SM121-112",
    "Suffix drafting has its package",
    source="vllm/config/speculative.py of 0.32.0; https://github.com/vllm-project/vllm/pull/25784",
)
def suffix(served: Served) -> Iterator[Seen]:
    """Suffix decoding is Arctic Inference's; without it the engine ends as it starts.

    `Arctic Inference is required for suffix decoding`. vLLM does not depend on it, so an image has it only where its
    builder put it in.
    """
    brought = any("arctic-inference" in line for line in [*served.playbook.setup, *(served.playbook.command or ())])
    if served.draft.get("method") == "suffix" and not brought:
        remedy = "write pip install arctic-inference==0.1.1 under setup, unless the image has it; or method: ngram"
        yield served.say("warning", served.path(CONFIG), "suffix drafting needs a package of its own", remedy)


def _bare(name: str) -> str:
    """A model's name without organisation and variant, to compare drafter and target by."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    return _VARIANT.sub("", last)
