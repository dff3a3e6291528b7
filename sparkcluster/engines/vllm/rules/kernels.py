"""Rules on kernels: which of vLLM's backends compute correctly on a GB10, and which are missing there."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.registry import Seen
from sparkcluster.engines.vllm.environment import FLASHINFER_FP4
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.findings import Severity

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

# Variables that guides name and no envs.py of 0.15.1 to 0.32.0 has; older releases had some of them.
NEVER = {
    "VLLM_FP8_MOE_BACKEND": "moe-backend",
    "VLLM_MXFP4_BACKEND": "moe-backend",
}
OUTLIVED = {
    "VLLM_ATTENTION_BACKEND": "attention-backend",
    "VLLM_USE_V1": "nothing, V1 is the only engine",
}


@rule(
    "SM121-001",
    "CUDA graphs are enabled",
    source=f"26 instead of 59 tok/s: {sources.TWO_SPARKS}; 3 % slower and 13 GB less: {sources.MEMORY_NOTES}",
)
def eager(served: Served) -> Iterator[Seen]:
    """Without CUDA graphs the CPU launches every kernel of every token.

    Sources disagree about the cost. On two Sparks with vLLM 0.19 it was 55 % (59 against 26 tok/s). On one Spark with
    Nemotron-3-Nano, Marlin and vLLM 0.18 it was 3 %, and 13 GB of memory were saved. So it is a warning, and accepted
    if the playbook says `goal: memory`.
    """
    if served.spark and served.on("enforce-eager"):
        memory = served.playbook.goal == "memory"
        yield served.say(
            "enforce-eager",
            "CUDA graphs are disabled to save memory" if memory else "enforce-eager disables CUDA graphs",
            "remove enforce-eager, or write goal: memory in the playbook if that is the purpose",
            severity="info" if memory else None,
        )


@rule(
    "SM121-002",
    "Four-bit experts run on Marlin",
    severity="error",
    source=f"garbage: {sources.TWO_SPARKS}, {sources.GUIDE}; faster: there, of RedHatAI/Qwen3.5-122B-A10B-NVFP4; "
    f"CUTLASS for Nemotron 3: {sources.EUGR} (recipes), https://github.com/vllm-project/recipes/pull/632; "
    f"gpt-oss: https://github.com/vllm-project/vllm/issues/41477; {sources.VLLM_BLOG}",
)
def experts(served: Served) -> Iterator[Seen]:
    """A GB10 has no FP4 kernels for experts; CUTLASS kernels return plausible garbage.

    FlashInfer's TensorRT-LLM kernels need SM100. Sources disagree about CUTLASS: two guides saw NaN scales and `!!!!!`
    on vLLM 0.19; one author measured FlashInfer's CUTLASS faster than Marlin on a nightly, a community's builds run
    CUTLASS for Nemotron 3, and vLLM's recipe of Nemotron 3 Super for a GB10 takes it since July 2026. So it is an error
    on images of vLLM and NVIDIA up to 0.22, and info elsewhere: check the output. For gpt-oss Marlin is no remedy
    (SM121-132).
    """
    backend = served.text("moe-backend")
    if not (served.spark and served.fp4 and served.moe) or backend is None:
        return
    remedy = "remove moe-backend" if served.weights == "mxfp4" else "write moe-backend: marlin"
    if backend in {"flashinfer_trtllm", "deep_gemm"}:
        yield served.say("moe-backend", f"moe-backend {backend} does not support a GB10", remedy)
    elif backend in {"cutlass", "flashinfer_cutlass", "flashinfer_cutedsl"}:
        broken = served.released and served.since(0, 23) is False
        summary = f"moe-backend {backend} may return garbage on a GB10"
        hint = remedy if broken else f"{remedy}, and compare"
        yield served.say("moe-backend", summary, hint, severity=None if broken else "info")


@rule(
    "SM121-003",
    "moe-backend is set where the default is wrong",
    source=f"required: {sources.TWO_SPARKS}, {sources.GUIDE}; leave it on auto: {sources.VLLM_BLOG}; Marlin by "
    "default: https://github.com/vllm-project/vllm/pull/47577 (July 2026); without it on a GB10: "
    "https://github.com/vllm-project/recipes/blob/main/models/Google/gemma-4-26B-A4B-it.yaml",
)
def experts_default(served: Served) -> Iterator[Seen]:
    """By default vLLM takes a GB10 for a larger Blackwell and picks CUTLASS, which returns garbage.

    Sources disagree: two guides require `--moe-backend marlin`, with NGC 26.04, `gemma4-cu130` and the nightly; vLLM's
    blog leaves it on auto with a nightly of June 2026, NVIDIA's recipe for the Omni model with upstream's v0.20.0, and
    vLLM's recipe for Gemma 4 with a community's build of July 2026. So it is an error for Gemma 4 on images up to 0.19,
    where the output was garbage; a warning on NGC's from 26.03 to vLLM 0.22, on upstream's up to 0.23 and on its
    nightly, but for Nemotron on upstream's; and info elsewhere; the log has to say `MARLIN` for the experts. The older
    setting, VLLM_USE_FLASHINFER_MOE_FP4=0, counts if the image still reads it. Images of 2025 are not checked, nor is
    gpt-oss, for which vLLM takes Marlin itself (SM121-132).
    """
    nvfp4 = served.spark and served.weights == "nvfp4" and served.moe
    if not nvfp4 or served.text("moe-backend") not in {None, "auto"}:
        return
    before_023 = served.since(0, 23) is False
    if not served.since(0, 15, 2) or (before_023 and served.playbook.env.get(FLASHINFER_FP4) == "0"):
        return
    nightly = "nightly" in served.tag and not served.reported
    upstream = served.family == "upstream" and (nightly or served.since(0, 24) is False)
    if (served.family == "ngc" and before_023) or (upstream and not (served.model and served.model.mamba)):
        broken = served.gemma_4 and served.since(0, 20) is False
        severity: Severity | None = "error" if broken else None
        summary = "moe-backend is not set: vLLM may pick CUTLASS"
        yield served.say("moe-backend", summary, "write moe-backend: marlin", severity=severity)
    else:
        summary = "moe-backend is not set: the log should say MARLIN for the experts"
        yield served.say("moe-backend", summary, "write moe-backend: marlin if it does not", severity="info")


@rule(
    "SM121-004",
    "Variables in env are read by this vLLM",
    source=f"vllm/envs.py of 0.15.1 to 0.32.0; https://github.com/vllm-project/vllm/pull/43148; {sources.GUIDE}",
)
def replaced(served: Served) -> Iterator[Seen]:
    """A variable that vLLM no longer reads has no effect: it logs `Unknown vLLM environment variable detected`.

    The FlashInfer MoE variables were replaced by `--moe-backend`. They work on NGC 26.04 (0.19), were announced to go
    in 0.23, are still read with a deprecation warning by the release 0.23.0, and are gone from 0.24.
    """
    for name, flag in REPLACED.items():
        if name in served.playbook.env and served.since(0, 23):
            gone = "has no effect" if served.since(0, 24) else "is deprecated, and has no effect on some builds"
            yield served.say(("env", name), f"{name} {gone} on this vLLM", f"remove it, and set {flag} under args")


@rule("SM121-005", "Variables in env exist", source=f"vllm/envs.py of 0.15.1 to 0.32.0; {sources.GUIDE}")
def never(served: Served) -> Iterator[Seen]:
    """No recent vLLM reads them, though guides name them.

    `VLLM_MXFP4_BACKEND` belongs to a community fork, so other images may have it. `VLLM_ATTENTION_BACKEND` and
    `VLLM_USE_V1` were read by the vLLM of 2025, as in NGC 25.12, and are not reported there.
    """
    names = NEVER | (OUTLIVED if served.since(0, 15, 1) else {})
    for name, flag in names.items():
        if name in served.playbook.env and served.released:
            yield served.say(("env", name), f"vLLM has no variable {name}", f"remove it; use {flag}")


@rule(
    "SM121-006",
    "FlashInfer's FP4 experts are disabled where they return garbage",
    source=f"0 is required: {sources.TWO_SPARKS}; 1 is NVIDIA's recipe for 25.12.post1: {sources.GUIDE}",
    severity="error",
)
def flashinfer_experts(served: Served) -> Iterator[Seen]:
    """With VLLM_USE_FLASHINFER_MOE_FP4=1 experts use CUTLASS kernels that return garbage on a GB10.

    This applies to vLLM 0.16 to 0.22, as in NGC 26.03 and 26.04, where sparkcluster sets it to 0 on every rank; a
    playbook can only enable it. NVIDIA's own recipe for Nemotron-3-Nano sets it to 1 on the image 25.12.post1, where it
    is right; from 0.23 on it has no effect (SM121-004).
    """
    name = FLASHINFER_FP4
    enabled = served.playbook.env.get(name) == "1"
    if served.spark and enabled and served.between((0, 15, 2), (0, 23)):
        summary = "FlashInfer's FP4 experts return garbage on this vLLM"
        yield served.say(("env", name), summary, f"remove {name}, and write moe-backend: marlin")


@rule("SM121-007", "Marlin adds atomically", severity="error", source=sources.TWO_SPARKS)
def atomic(served: Served) -> Iterator[Seen]:
    """Without VLLM_MARLIN_USE_ATOMIC_ADD=1 Marlin's reduction races on SM121, and some results are wrong.

    sparkcluster sets it on every rank; a playbook can only unset it.
    """
    name = "VLLM_MARLIN_USE_ATOMIC_ADD"
    if served.spark and served.playbook.env.get(name, "1") != "1":
        yield served.say(("env", name), f"{name} is disabled", "remove it from env: sparkcluster sets it to 1")


@rule(
    "SM121-008",
    "A hybrid model selects its attention backend",
    source=f"crashes: {sources.GUIDE} (nightly, 0.23); runs: the card of nvidia/Qwen3.6-35B-A3B-NVFP4, "
    "https://github.com/vllm-project/recipes/blob/main/models/Qwen/Qwen3.6-35B-A3B.yaml (0.28), "
    f"{sources.EUGR} (recipes)",
)
def hybrid(served: Served) -> Iterator[Seen]:
    """A model that mixes attention with linear layers crashed at init_device on 0.23, if one backend was forced.

    Seen with Qwen3.6 and `flashinfer` on a nightly of mid-2026. NVIDIA's card of the same model lists it again, vLLM's
    recipe has it on 0.28, and the recipes of two projects force FlashInfer, Triton or FlashAttention on Qwen3.5,
    Qwen3.6 and Nemotron 3. So it is a warning on releases of 0.23 and on `cu130-nightly`, which the guide takes for it,
    and info on `nightly`; other images are not reported. Qwen3-Coder-Next with FlashInfer ran there too, as does Triton
    for DFlash's target.
    """
    backend = served.text("attention-backend")
    if not (served.spark and served.hybrid and served.family == "upstream") or backend in {None, "auto"}:
        return
    if (served.dflash and backend == "triton_attn") or (served.named("Qwen3-Coder-Next") and backend == "flashinfer"):
        return
    reported = served.between((0, 23), (0, 24)) or (served.tag == "cu130-nightly" and not served.reported)
    if reported or (served.tag == "nightly" and not served.reported):
        summary = f"attention-backend {backend} is forced on a hybrid model"
        remedy = "remove attention-backend if it crashes"
        yield served.say("attention-backend", summary, remedy, severity=None if reported else "info")


@rule(
    "SM121-009",
    "FlashInfer's attention is not used where it is inaccurate",
    source="https://github.com/vllm-project/vllm/issues/35138, https://github.com/vllm-project/vllm/issues/41651; "
    f"{sources.TWO_SPARKS}; it fits 170K tokens of Qwen3-Coder-Next-FP8 where FLASH_ATTN fits 60K: "
    f"{sources.GUIDE}",
)
def flashinfer_attention(served: Served) -> Iterator[Seen]:
    """FlashInfer's attention has lost accuracy on Blackwell with FP8 weights or an FP8 KV cache.

    Reported for vLLM 0.16 with FP8 weights and for 0.20 with an FP8 KV cache. Sources disagree: on newer builds a
    guide recommends it for Qwen3-Coder-Next-FP8, whose context it more than doubles. So there it is info.
    """
    if not served.spark or served.text("attention-backend") != "flashinfer":
        return
    if served.weights != "fp8" and not served.fp8_cache:
        return
    newer = served.since(0, 23)
    if newer is None and served.tag != "cu130-nightly":
        return
    yield served.say(
        "attention-backend",
        "FlashInfer's attention has been inaccurate with FP8 on Blackwell",
        "write attention-backend: TRITON_ATTN, or compare the output",
        severity=None if newer is False else "info",
    )


@rule(
    "SM121-132",
    "Marlin serves gpt-oss",
    source="https://github.com/vllm-project/vllm/issues/37030 (0.16), "
    "https://github.com/vllm-project/vllm/issues/41902, https://github.com/vllm-project/vllm/issues/41477 (0.20, "
    f"Marlin by default); it answered on NGC 26.04: {sources.TWO_SPARKS}",
)
def marlin_gpt_oss(served: Served) -> Iterator[Seen]:
    """On vLLM 0.16 to 0.20 Marlin gave gpt-oss a wrong first Harmony token on a GB10: content and reasoning are null.

    vLLM takes Marlin there by default, and no other backend started but `emulation`, at 5 tok/s. The reporter's tests
    pass on 0.23.1rc1. Sources disagree: two Sparks measured gpt-oss with Marlin on NGC 26.04, where it is info.
    """
    marlin = served.text("moe-backend") in {None, "auto", "marlin"}
    if served.spark and served.named("gpt-oss") and marlin and served.between((0, 16), (0, 21)):
        summary = "gpt-oss may answer nothing with Marlin on this vLLM"
        severity: Severity | None = "info" if served.family == "ngc" else None
        yield served.say("moe-backend", summary, "use an image with vLLM 0.23 or newer", severity=severity)


@rule(
    "SM121-134",
    "Marlin runs beside FlashInfer's attention",
    severity="info",
    source="https://github.com/vllm-project/vllm/issues/49926, https://github.com/vllm-project/vllm/issues/50934; "
    "cause: https://github.com/vllm-project/vllm/issues/52540; https://github.com/vllm-project/vllm/issues/55571",
)
def marlin_flashinfer(served: Served) -> Iterator[Seen]:
    """Engines of 0.25 to 0.27 with both died every few days of `misaligned address` or `illegal memory access`.

    A cause was found later in neither: FlashInfer moves the workspace of its cuDNN FP8 kernels after CUDA graphs have
    captured it. `VLLM_DISABLED_KERNELS=FlashInferFP8ScaledMMLinearKernel` was reported to end it.
    """
    both = served.text("moe-backend") == "marlin" and served.text("attention-backend") == "flashinfer"
    if served.spark and both and served.between((0, 25), (0, 28)):
        remedy = "if it dies so: write VLLM_DISABLED_KERNELS: FlashInferFP8ScaledMMLinearKernel under env"
        yield served.say("attention-backend", "engines with Marlin and FlashInfer died every few days", remedy)


@rule(
    "SM121-135",
    "FlashInfer's attention can read the KV cache",
    source="https://github.com/vllm-project/vllm/issues/50331 (open, one report); the same pair, on 0.28: "
    "https://github.com/vllm-project/recipes/blob/main/models/Qwen/Qwen3.6-35B-A3B.yaml",
)
def flashinfer_fp8_cache(served: Served) -> Iterator[Seen]:
    """On a GB10 vLLM 0.26 died at its first request, with an FP8 KV cache and heads of 256: `invalid resource handle`.

    vLLM selects FlashInfer for an FP8 cache if no backend is set. The engine starts, and then ends in
    `BatchPrefillWithPagedKVCache`. Seen with Qwen3.6-35B-A3B and two versions of FlashInfer; Qwen's hybrid models have
    heads of 256. On newer releases vLLM's recipe has the pair.
    """
    reported = served.between((0, 26), (0, 27))
    backend = served.text("attention-backend")
    heads = served.head_size or (256 if served.named("Qwen3-Next", "Qwen3-Coder-Next", "Qwen3.5", "Qwen3.6") else None)
    if served.spark and reported and served.fp8_cache and backend in {None, "auto", "flashinfer"} and heads == 256:
        summary = "an FP8 KV cache with heads of 256 ended this vLLM at its first request"
        yield served.say("kv-cache-dtype", summary, "remove kv-cache-dtype, or use an image with vLLM 0.28 or newer")


@rule("SM121-010", "Triton's attention is used on NGC 26.03 and 26.04", severity="info", source=sources.TWO_SPARKS)
def triton_attention(served: Served) -> Iterator[Seen]:
    """On these images vLLM defaults to FlashInfer, which is made for larger Blackwells; Triton's is the tested one.

    For models of plain attention only: a hybrid one crashes when any backend is forced.
    """
    plain = served.model is not None and not served.model.hybrid
    tested = served.family == "ngc" and served.between((0, 17, 1), (0, 20))
    if served.spark and plain and tested and served.text("attention-backend") in {None, "auto"}:
        yield served.say("attention-backend", "attention-backend is not set", "write attention-backend: TRITON_ATTN")


@rule("SM121-011", "Mamba models with experts do not use chunked prefill", source=f"{sources.GUIDE}, troubleshooting")
def chunked(served: Served) -> Iterator[Seen]:
    """`--enable-chunked-prefill` made a model of Mamba layers and experts about nine times slower.

    Qwen3.6, whose linear layers are not Mamba layers, has it in its recipe.
    """
    mamba = served.model is not None and served.model.mamba
    if served.spark and mamba and served.moe and served.on("enable-chunked-prefill"):
        remedy = "remove enable-chunked-prefill"
        yield served.say("enable-chunked-prefill", "chunked prefill slows this model down", remedy)
