"""Rules on kernels and weights: backends that are wrong on a GB10, and quantizations that do not match the weights."""

from __future__ import annotations

from collections.abc import Iterator

from sparkcluster.checks.check import Seen
from sparkcluster.engines.vllm import family_flags
from sparkcluster.engines.vllm.environment import FLASHINFER_FP4
from sparkcluster.engines.vllm.rules import sources
from sparkcluster.engines.vllm.rules.served import Served, rule
from sparkcluster.findings import Severity

# Variables of vLLM's envs.py that --moe-backend and --linear-backend replaced. Release 0.23.0 still reads them;
# nightlies of 0.23, and 0.24.0, do not.
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

# Variables in guides that envs.py of 0.15.1 to 0.32.0 does not have; older releases had some of them.
NEVER = {
    "VLLM_FP8_MOE_BACKEND": "moe-backend",
    "VLLM_MXFP4_BACKEND": "moe-backend",
}
OUTLIVED = {
    "VLLM_ATTENTION_BACKEND": "attention-backend",
    "VLLM_USE_V1": "nothing, V1 is the only engine",
}


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
    on vLLM 0.19; one author measured FlashInfer's CUTLASS faster than Marlin on a nightly, community builds run CUTLASS
    for Nemotron 3, and vLLM's recipe of Nemotron 3 Super for a GB10 uses it since July 2026. So it is an error on
    images of vLLM and NVIDIA up to 0.22, and info elsewhere: check the output. For gpt-oss Marlin does not help
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

    Sources disagree. Two guides require `--moe-backend marlin`, with NGC 26.04, `gemma4-cu130` and the nightly. vLLM's
    blog leaves it on auto with a nightly of June 2026, NVIDIA's recipe for the Omni model with upstream's v0.20.0, and
    vLLM's recipe for Gemma 4 with a community build of July 2026. So it is an error for Gemma 4 on images up to 0.19,
    where the output was garbage. It is a warning on NGC's images from 26.03 to vLLM 0.22, and on upstream's images up
    to 0.23 and its nightly except for Nemotron. Elsewhere it is info: check the log for `MARLIN` for the experts. The
    older setting, VLLM_USE_FLASHINFER_MOE_FP4=0, is accepted if the image still reads it. Images of 2025 are not
    checked, nor is gpt-oss, for which vLLM uses Marlin by default (SM121-132).
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

    The FlashInfer MoE variables were replaced by `--moe-backend`. They work on NGC 26.04 (0.19). Release 0.23.0 still
    reads them with a deprecation warning, 0.24 does not.
    """
    for name, flag in REPLACED.items():
        if name in served.playbook.env and served.since(0, 23):
            gone = "has no effect" if served.since(0, 24) else "is deprecated, and has no effect on some builds"
            yield served.say(("env", name), f"{name} {gone} on this vLLM", f"remove it, and set {flag} under args")


@rule("SM121-005", "Variables in env exist", source=f"vllm/envs.py of 0.15.1 to 0.32.0; {sources.GUIDE}")
def never(served: Served) -> Iterator[Seen]:
    """Recent vLLM does not read these variables, though guides name them.

    `VLLM_MXFP4_BACKEND` belongs to a community fork, so other images may have it. `VLLM_ATTENTION_BACKEND` and
    `VLLM_USE_V1` are not reported on vLLM of 2025, such as NGC 25.12, which reads them.
    """
    names = NEVER | (OUTLIVED if served.since(0, 15, 1) else {})
    for name, flag in names.items():
        if name in served.playbook.env and served.released:
            yield served.say(("env", name), f"vLLM has no variable {name}", f"remove it; use {flag}")


@rule(
    "SM121-008",
    "A hybrid model selects its attention backend",
    source=f"crashes: {sources.GUIDE} (nightly, 0.23); runs: the card of nvidia/Qwen3.6-35B-A3B-NVFP4, "
    "https://github.com/vllm-project/recipes/blob/main/models/Qwen/Qwen3.6-35B-A3B.yaml (0.28), "
    f"{sources.EUGR} (recipes)",
)
def hybrid(served: Served) -> Iterator[Seen]:
    """A model that mixes attention with linear layers crashed at init_device on 0.23 if a backend was forced.

    Seen with Qwen3.6 and `flashinfer` on a nightly of mid-2026. NVIDIA's card of the same model still lists it, vLLM's
    recipe has it on 0.28, and the recipes of two projects force FlashInfer, Triton or FlashAttention on Qwen3.5,
    Qwen3.6 and Nemotron 3. So it is a warning on releases of 0.23 and on `cu130-nightly`, which was 0.23 according to
    the guide, and info on `nightly`. Other images are not reported, nor are Qwen3-Coder-Next with FlashInfer and
    DFlash's target with Triton, which ran there.
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


# Values of --quantization that quantize plain weights while they are loaded.
ONLINE = frozenset({"fp8", "bitsandbytes", "torchao", "experts_int8", "fp8_per_tensor", "fp8_per_block", "int8"})


@rule(
    "SM121-041",
    "The quantization matches the checkpoint",
    severity="error",
    source=f"{sources.GUIDE}; {sources.VLLM_BLOG}; fp4: "
    "https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/nemotron/README.md, and "
    "override_quantization_method in vllm/model_executor/layers/quantization/modelopt.py",
)
def mismatch(served: Served) -> Iterator[Seen]:
    """If the quantization differs from the checkpoint's, weights load wrongly or not at all.

    NVIDIA's NVFP4 repositories are in ModelOpt's format; RedHatAI, Unsloth and llm-compressor use compressed-tensors,
    which vLLM detects. BF16 weights may be quantized while they are loaded, for example to fp8. For ModelOpt's
    checkpoints vLLM takes the value of config.json instead: NVIDIA's command for Nemotron 3 Super has `fp4`, which vLLM
    does not know. So it is info there.
    """
    written = served.text("quantization")
    if written is None or served.kind is None or written in {"mxfp4", "gpt_oss_mxfp4", "auto", "none"}:
        return
    allowed = ONLINE if served.kind == "bf16" else family_flags.NAMES.get(served.kind)
    if allowed is None or written in allowed:
        return
    if served.kind == "modelopt":
        summary = f"quantization {written} has no effect: vLLM reads it from config.json"
        yield served.say("quantization", summary, "remove quantization", severity="info")
    else:
        summary = f"quantization {written} is set for {served.kind} weights"
        yield served.say("quantization", summary, "remove quantization: vLLM reads config.json")
