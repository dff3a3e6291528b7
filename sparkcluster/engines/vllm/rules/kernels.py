"""Rules on kernels: which of vLLM's backends answer rightly on a GB10, and which of them are not there."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule

# Variables of vLLM's envs.py that --moe-backend and --linear-backend replaced: announced to go in 0.23, still read
# by the release 0.23.0 and gone from 0.24.0; nightlies that called themselves 0.23 had dropped them already.
REPLACED = {
    "VLLM_USE_FLASHINFER_MOE_FP16": "moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": "moe-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "moe-backend",
    "VLLM_MXFP4_USE_MARLIN": "moe-backend",
    "VLLM_NVFP4_GEMM_BACKEND": "linear-backend",
}

# Variables that guides name and vLLM's envs.py has not, in none of 0.15.1 to 0.32.0; older ones had some of them.
NEVER = {
    "VLLM_FP8_MOE_BACKEND": "moe-backend",
    "VLLM_MXFP4_BACKEND": "moe-backend",
}
OUTLIVED = {
    "VLLM_ATTENTION_BACKEND": "attention-backend",
    "VLLM_USE_V1": "nothing, V1 is all there is",
}


@rule(
    "SM121-001",
    "CUDA graphs are on",
    source=f"26 in place of 59 tok/s: {sources.TWO_SPARKS}; 3 % slower and 13 GB less: {sources.MEMORY_NOTES}",
)
def eager(served: Served) -> Iterator[Seen]:
    """Without CUDA graphs each token pays the CPU's launch of every kernel.

    Sources disagree about the price. On two Sparks with vLLM 0.19 it was 55 % (59 against 26 tok/s). On one Spark with
    Nemotron-3-Nano, Marlin and vLLM 0.18 it was 3 %, and 13 GB of memory were saved. So it is a warning, and accepted
    where the playbook says `goal: memory`.
    """
    if served.spark and served.on("enforce-eager"):
        memory = served.playbook.goal == "memory"
        yield served.say(
            "info" if memory else "warning",
            served.path("enforce-eager"),
            "CUDA graphs are off for the memory they take" if memory else "enforce-eager turns CUDA graphs off",
            "take enforce-eager out; or write goal: memory in the playbook, if that is what it is for",
        )


@rule(
    "SM121-002",
    "Experts of four bits run on Marlin",
    source=f"garbage: {sources.TWO_SPARKS}, {sources.GUIDE}; faster: there, of RedHatAI/Qwen3.5-122B-A10B-NVFP4; "
    "CUTLASS for Nemotron 3 Super and Ultra: https://github.com/eugr/spark-vllm-docker (recipes); "
    f"{sources.VLLM_BLOG}",
)
def experts(served: Served) -> Iterator[Seen]:
    """A GB10 has no FP4 kernels for experts of its own: CUTLASS' answer with garbage that looks plausible.

    FlashInfer's TensorRT-LLM kernels want SM100. Of CUTLASS sources disagree: two guides saw NaN scales and `!!!!!` on
    vLLM 0.19; one author measured FlashInfer's CUTLASS faster than Marlin on a nightly, a community's own build runs
    CUTLASS for two models, and vLLM's blog calls recent ones much stronger. So it is an error on images of vLLM and
    NVIDIA up to 0.22, and elsewhere a warning: look at the answers.
    """
    backend = served.text("moe-backend")
    if not (served.spark and served.fp4 and served.moe) or backend is None:
        return
    at, remedy = served.path("moe-backend"), "write moe-backend: marlin"
    if backend in {"flashinfer_trtllm", "deep_gemm"}:
        yield served.say("error", at, f"moe-backend {backend} is not built for a GB10", remedy)
    elif backend in {"cutlass", "flashinfer_cutlass", "flashinfer_cutedsl"}:
        broken = served.family in {"ngc", "upstream"} and served.since(0, 23) is False
        summary = f"moe-backend {backend} may answer with garbage on a GB10"
        yield served.say("error" if broken else "warning", at, summary, remedy if broken else f"{remedy}, and compare")


@rule(
    "SM121-003",
    "Experts of four bits are not left to vLLM's choice where that is wrong",
    source=f"required: {sources.TWO_SPARKS}, {sources.GUIDE}; leave it on auto: {sources.VLLM_BLOG}",
)
def experts_chosen(served: Served) -> Iterator[Seen]:
    """Left alone, vLLM takes a GB10 for a larger Blackwell and picks CUTLASS, which answers with garbage.

    Sources disagree: two guides require `--moe-backend marlin`, with NGC 26.04; vLLM's blog leaves it on auto with a
    nightly of June 2026, and NVIDIA's recipe for the Omni model with upstream's v0.20.0. So it is a warning on NGC's
    images from 26.03 to vLLM 0.22 and a hint elsewhere; the log has to say `MARLIN` for the experts. The older way,
    VLLM_USE_FLASHINFER_MOE_FP4=0, counts where the image still reads it. Images of 2025 are left alone.
    """
    if not (served.spark and served.fp4 and served.moe) or served.text("moe-backend") not in {None, "auto"}:
        return
    old = served.playbook.env
    steered = old.get("VLLM_USE_FLASHINFER_MOE_FP4") == "0" or old.get("VLLM_MXFP4_USE_MARLIN") == "1"
    if steered and served.since(0, 23) is False:
        return
    if served.family == "ngc" and served.since(0, 15, 2) and served.since(0, 23) is False:
        summary = "moe-backend is left to vLLM, which may choose CUTLASS"
        yield served.say("warning", served.path("moe-backend"), summary, "write moe-backend: marlin")
    elif served.since(0, 15, 2):
        summary = "moe-backend is left to vLLM: its log should say MARLIN for the experts"
        yield served.say("info", served.path("moe-backend"), summary, "write moe-backend: marlin if it does not")


@rule(
    "SM121-004",
    "Variables are set that this vLLM reads",
    source=f"vllm/envs.py of 0.15.1 to 0.32.0; https://github.com/vllm-project/vllm/pull/43148; {sources.GUIDE}",
)
def replaced(served: Served) -> Iterator[Seen]:
    """A variable that vLLM no longer reads does nothing: it logs `Unknown vLLM environment variable detected`.

    The FlashInfer MoE variables were replaced by `--moe-backend`. They work on NGC 26.04 (0.19), are announced to go
    in 0.23, are still read with a deprecation warning by the release 0.23.0, and are gone from 0.24.
    """
    for name, flag in REPLACED.items():
        if name in served.playbook.env and served.since(0, 23):
            gone = "does nothing" if served.since(0, 24) else "is deprecated, and does nothing on some builds"
            remedy = f"take it out, and choose by {flag} under args"
            yield served.say("warning", ("env", name), f"{name} {gone} on this vLLM", remedy)


@rule("SM121-005", "Variables are set that exist", source=f"vllm/envs.py of 0.15.1 to 0.32.0; {sources.GUIDE}")
def never(served: Served) -> Iterator[Seen]:
    """No vLLM of the last releases reads them, though guides name them.

    `VLLM_MXFP4_BACKEND` belongs to a community fork, so images of other families may have it. `VLLM_ATTENTION_BACKEND`
    and `VLLM_USE_V1` were read by the vLLM of 2025, as in NGC 25.12, and are left alone there.
    """
    names = NEVER | (OUTLIVED if served.since(0, 15, 1) else {})
    for name, flag in names.items():
        if name in served.playbook.env and served.family in {"upstream", "ngc"}:
            yield served.say("warning", ("env", name), f"vLLM has no variable {name}", f"take it out; use {flag}")


@rule(
    "SM121-006",
    "FlashInfer's FP4 experts are not asked for where they are wrong",
    source=f"0 is required: {sources.TWO_SPARKS}; 1 is NVIDIA's recipe for 25.12.post1: {sources.GUIDE}",
)
def flashinfer_experts(served: Served) -> Iterator[Seen]:
    """With VLLM_USE_FLASHINFER_MOE_FP4=1 experts go through CUTLASS kernels that answer with garbage on a GB10.

    That holds for vLLM 0.16 to 0.22, as in NGC 26.03 and 26.04. NVIDIA's own recipe for Nemotron-3-Nano sets it to 1
    on the image 25.12.post1, where it is right; from 0.23 on it is dead (SM121-004).
    """
    asked = served.playbook.env.get("VLLM_USE_FLASHINFER_MOE_FP4") == "1"
    if served.spark and asked and served.since(0, 15, 2) and served.since(0, 23) is False:
        at = ("env", "VLLM_USE_FLASHINFER_MOE_FP4")
        summary = "FlashInfer's FP4 experts answer with garbage on this vLLM"
        yield served.say("error", at, summary, 'write VLLM_USE_FLASHINFER_MOE_FP4: "0", and moe-backend: marlin')


@rule("SM121-007", "Marlin adds atomically", severity="error", source=sources.TWO_SPARKS)
def atomic(served: Served) -> Iterator[Seen]:
    """Without VLLM_MARLIN_USE_ATOMIC_ADD=1 Marlin's reduction races on SM121, and some answers are wrong.

    sparkcluster sets it on every rank; a playbook can only take it away.
    """
    name = "VLLM_MARLIN_USE_ATOMIC_ADD"
    if served.spark and served.playbook.env.get(name, "1") != "1":
        yield served.say("error", ("env", name), f"{name} is turned off", "take it out of env, it is set to 1")


@rule(
    "SM121-008",
    "A hybrid model chooses its attention itself",
    source=f"crashes: {sources.GUIDE}; set: the card of nvidia/Qwen3.6-35B-A3B-NVFP4, and for Nemotron "
    "https://github.com/eugr/spark-vllm-docker (recipes)",
)
def hybrid(served: Served) -> Iterator[Seen]:
    """A model that mixes attention with linear or Mamba layers has no one backend; forcing one crashes in init_device.

    Sources disagree: NVIDIA's card of Qwen3.6-35B-A3B now lists `flashinfer`, which crashed on nightlies of 0.23, and a
    community's recipes set Triton or FlashInfer for Nemotron 3, where it is a hint. Qwen3-Coder-Next is known to run
    with FlashInfer, DFlash wants Triton for its target, and AEON-7's image for DFlash was made with another; none of
    them is reported.
    """
    backend = served.text("attention-backend")
    if not (served.spark and served.hybrid) or backend in {None, "auto"}:
        return
    drafted = served.dflash and (backend == "triton_attn" or "aeon-7/" in served.image)
    if drafted or (served.named("Qwen3-Coder-Next") and backend == "flashinfer"):
        return
    mamba = served.model is not None and served.model.mamba
    summary = f"attention-backend {backend} is forced on a hybrid model"
    at = served.path("attention-backend")
    yield served.say("info" if mamba else "warning", at, summary, "take attention-backend out if it crashes")


@rule(
    "SM121-009",
    "FlashInfer's attention is not used where it computes wrongly",
    source="https://github.com/vllm-project/vllm/issues/35138, https://github.com/vllm-project/vllm/issues/41651; "
    f"{sources.TWO_SPARKS}; it fits 170K tokens of Qwen3-Coder-Next-FP8 where FLASH_ATTN fits 60K: "
    f"{sources.GUIDE}",
)
def flashinfer_attention(served: Served) -> Iterator[Seen]:
    """FlashInfer's attention has lost accuracy on Blackwell with FP8 weights or an FP8 KV cache.

    Reported for vLLM 0.16 with FP8 weights and for 0.20 with an FP8 KV cache. Sources disagree: on newer builds a
    guide recommends it for Qwen3-Coder-Next-FP8, whose context it more than doubles. So there it is a hint.
    """
    if not served.spark or served.text("attention-backend") != "flashinfer":
        return
    fp8_cache = (served.text("kv-cache-dtype") or "").startswith("fp8")
    if not (served.weights == "fp8" or fp8_cache):
        return
    old = served.since(0, 23) is False
    if not old and served.since(0, 23) is None and served.tag != "cu130-nightly":
        return
    yield served.say(
        "warning" if old else "info",
        served.path("attention-backend"),
        "FlashInfer's attention has computed wrongly with FP8 on Blackwell",
        "write attention-backend: TRITON_ATTN, or compare its answers",
    )


@rule("SM121-010", "Triton's attention is chosen on NGC 26.03 and 26.04", severity="info", source=sources.TWO_SPARKS)
def triton_attention(served: Served) -> Iterator[Seen]:
    """On these images vLLM's own choice is FlashInfer, which is made for larger Blackwells; Triton's is the tested one.

    Advice for models of plain attention with these images alone: a hybrid one crashes when any backend is forced.
    """
    plain = served.model is not None and not served.model.hybrid
    tested = served.family == "ngc" and served.since(0, 17, 1) and served.since(0, 20) is False
    if served.spark and plain and tested and served.text("attention-backend") in {None, "auto"}:
        at = served.path("attention-backend")
        yield served.say("info", at, "attention-backend is left to vLLM", "write attention-backend: TRITON_ATTN")


@rule("SM121-011", "Mamba models with experts are prefilled whole", source=f"{sources.GUIDE}, troubleshooting")
def chunked(served: Served) -> Iterator[Seen]:
    """`--enable-chunked-prefill` made a model of Mamba layers and experts about nine times slower.

    Qwen3.6, whose linear layers are no Mamba ones, has it in its recipe.
    """
    mamba = served.model is not None and served.model.mamba
    if served.spark and mamba and served.moe and served.on("enable-chunked-prefill"):
        at = served.path("enable-chunked-prefill")
        yield served.say("warning", at, "chunked prefill slows this model down", "take enable-chunked-prefill out")
