"""Signatures of vLLM's log, each with a public thread that has the line.

A launch searches for them when a rank has ended, ``checks.running`` when a cluster does not answer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from sparkcluster.engines.base import Engine
from sparkcluster.engines.common_signatures import COMMON
from sparkcluster.engines.signature import Cause, Signature
from sparkcluster.engines.vllm import ENGINE, flags
from sparkcluster.fit.source import GIB, spark
from sparkcluster.suggest import closest


def argument(found: re.Match[str], _lines: Sequence[str]) -> Cause:
    """The argument that vLLM rejected, and the closest one that it has."""
    words = found["what"].split()
    flag = next((word for word in words if word.startswith("-")), words[0]).split("=")[0]
    name = flag.lstrip("-").replace("_", "-")
    names = [each.name for each in flags.table().values() if each.last is None and each.name != name]
    close = closest(name, names, cutoff=0.75)
    advice = f"write {close}" if close else f"remove {name}"
    return Cause(
        f"this vLLM does not have the argument {flag}",
        f"{advice} under args in the playbook, or use an image whose vLLM has it",
    )


# Of a Spark, after its system's own use; a share of 0.90 after such a failure froze and rebooted one
# (eugr/spark-vllm-docker#388).
_FREE_BYTES = 10 * 10**9


def kv_cache(found: re.Match[str], lines: Sequence[str]) -> Cause:
    """How much memory the KV cache lacks, and a larger share only where the node keeps ``_FREE_BYTES`` beside it."""
    said = {name: value for name, value in found.groupdict().items() if value is not None}
    hint = (
        "lower max-num-seqs or max-num-batched-tokens, remove the drafter (speculative-config), or lower max-model-len"
    )
    if "need" in said:
        summary = f"max-model-len {said['length']} needs {said['need']} GiB of KV cache, but only {said['have']} GiB is"
        summary, missing = f"{summary} available", float(said["need"]) - float(said["have"])
        hint = hint.replace("lower max-model-len", f"set max-model-len to {said['fits']}") if "fits" in said else hint
    else:
        summary, missing = "the model leaves no memory for the KV cache", None
        left = _last(r"Available KV cache memory: (-?[\d.]+) GiB", lines)
        if left is not None and left < 0:
            summary, missing = f"{summary}: {-left} GiB are missing before any of it", -left
    share, machine = _last(r"gpu[-_]memory[-_]utilization['\"]?[=: ]+([\d.]+)", lines), spark()
    if missing is not None and share is not None:
        larger = math.ceil((share + missing * GIB / machine.visible_bytes) * 100 + 1) / 100
        free = machine.visible_bytes * (1 - larger) - machine.system_bytes
        if free >= _FREE_BYTES:
            return Cause(summary, f"{hint} in the playbook; or set gpu-memory-utilization to {larger:.2f}")
        hint += " in the playbook; a larger gpu-memory-utilization would leave less than 10 GB of the node"
        return Cause(summary, hint)
    return Cause(summary, f"{hint} in the playbook")


def _last(pattern: str, lines: Sequence[str]) -> float | None:
    """The number of the last of ``lines`` that ``pattern`` is found in."""
    found = (match for line in reversed(lines) if (match := re.search(pattern, line)))
    return next((float(match[1]) for match in found if re.fullmatch(r"-?\d+(?:\.\d+)?", match[1])), None)


_NEWER = "use an image with a newer vLLM in the playbook"

_ROOTS = (
    Signature(
        "serve-twice",
        r"unrecognized arguments: serve\b",
        "the command has `vllm serve` twice: the image's entrypoint contains it already",
        "remove `vllm serve` from command in the playbook, or use an image without that entrypoint",
        "vllm-project/vllm#37133",
    ),
    Signature("argument", r"unrecognized arguments: (?P<what>.+)", "", None, "vllm-project/vllm#42399", argument),
    Signature(
        "argument-value",
        r"error: argument (?P<flag>--[\w-]{1,60})[^:]{0,80}: (?P<why>.{1,160})",
        "vLLM rejects the value of {flag}: {why}",
        "fix it under args in the playbook",
        "vllm-project/vllm#25837",
    ),
    Signature(
        "harmony-vocabulary",
        r"error downloading or loading vocab file",
        "gpt-oss's parser found no vocabulary (o200k_base.tiktoken), and could not download it",
        "remove TIKTOKEN_ENCODINGS_BASE under env in the playbook, so that up brings the file",
        "vllm-project/vllm#22525",
    ),
    Signature(
        "gpu-busy",
        r"Free memory on device[^(]{0,40}\((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less than desired"
        r" GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        "only {free} of {all} GiB are free, and gpu-memory-utilization {share} requires {wanted} GiB",
        ENGINE.memory_hint,
        "vllm-project/vllm#20305",
        code="RUN-014",
    ),
    Signature(
        "kv-cache-small",
        r"max seq len \((?P<length>\d+)\), \(?(?P<need>\d+(?:\.\d+)?) GiB KV cache is needed, which is larger than"
        r" the available KV cache memory \((?P<have>\d+(?:\.\d+)?) GiB\)"
        r"(?:.*estimated maximum model length is (?P<fits>\d+))?",
        "",
        None,
        "vllm-project/vllm#34076",
        kv_cache,
        code="RUN-014",
    ),
    Signature(
        "kv-cache-none",
        r"No available memory for the cache blocks",
        "",
        None,
        "vllm-project/vllm#17431, eugr/spark-vllm-docker#388",
        kv_cache,
        code="RUN-014",
    ),
    Signature(
        "mamba-blocks",
        r"max_num_seqs \((?P<wanted>\d+)\) exceeds available Mamba cache blocks \((?P<have>\d+)\)",
        "max-num-seqs {wanted} needs as many Mamba cache blocks, and there are {have}",
        "set max-num-seqs to {have} or less under args in the playbook",
        "vllm-project/vllm#49064",
    ),
    Signature(
        "mamba-graphs",
        r"assert num_cache_lines >= batch",
        "the CUDA graphs of a Mamba model are larger than its cache has blocks",
        "lower max-cudagraph-capture-size (default 512) or max-num-seqs under args in the playbook",
        "vllm-project/vllm#34094; seed: Spark model guide, Qwen3.6",
    ),
    Signature(
        "fastsafetensors",
        r"ImportError.{0,200}fastsafetensors|install vllm\[fastsafetensors\]|No module named '?fastsafetensors"
        r"|FastSafetensors\w{0,40} .{0,200}(?:not installed|required)",
        "the image lacks fastsafetensors",
        "remove load-format: fastsafetensors under args in the playbook",
        "foundation-model-stack/fastsafetensors#12",
    ),
    Signature(
        "architecture",
        r"Model architectures? (?P<names>\[.{0,200}?\]|\S{1,80}) (?:are|is) not supported",
        "this vLLM does not support the model's architecture {names}",
        _NEWER,
        "vllm-project/vllm#2248",
    ),
    Signature(
        "model-type",
        r"model type `?(?P<name>[\w.-]{1,80})`? but Transformers does not recognize this architecture",
        "the image's Transformers does not know the model type {name}",
        _NEWER,
        "seed: Spark model guide, troubleshooting; transformers, configuration_auto.py",
    ),
    Signature(
        "heads",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size"
        r" \((?P<ranks>\d+)\)",
        "{heads} attention heads cannot be divided among {ranks} ranks",
        "set tensor_parallel in the playbook to a number that divides {heads}, or pipeline_parallel",
        "vllm-project/vllm, vllm/config/model.py",
    ),
    Signature(
        "context",
        r"max_model_len \((?P<length>\d+)\) is greater than the derived max_model_len"
        r" \([^)]{0,60}?=(?P<most>\d+)",
        "max-model-len {length} is more than the model's own context, {most}",
        "set max-model-len to {most} or less in the playbook; more only where the model's card says how"
        " (VLLM_ALLOW_LONG_MAX_MODEL_LEN)",
        "vllm-project/vllm#6253",
    ),
    Signature(
        "quantization",
        r"[Uu]nknown quantization(?: method)?:? '?(?P<what>[\w-]{1,60})",
        "this vLLM does not know the quantization {what}",
        "remove quantization under args in the playbook, so that vLLM reads it from the checkpoint; modelopt is for"
        " checkpoints of ModelOpt alone; or use a newer image",
        "seed: Spark model guide, troubleshooting; vllm/config/model.py",
    ),
    Signature(
        "quantization-differs",
        r"Quantization method specified in the model config \((?P<has>[\w-]{1,60})\) does not match the quantization"
        r" method specified in the `quantization` argument \((?P<said>[\w-]{1,60})\)",
        "the checkpoint's quantization is {has}, and the playbook says {said}",
        "remove quantization under args in the playbook",
        "vllm-project/vllm, vllm/config/model.py",
    ),
    Signature(
        "world-size",
        r"World size \((?P<ranks>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
        "{ranks} ranks need as many GPUs, and vLLM sees {gpus} on the node",
        "set executor: auto or native in the playbook, which spreads the ranks over the nodes; or a smaller"
        " tensor_parallel",
        "vllm-project/vllm, vllm/config/parallel.py",
    ),
    Signature(
        "nvfp4-experts",
        r"No NvFp4 MoE backend supports",
        "no kernel of this image computes NVFP4 experts on a GB10",
        "set moe-backend: marlin under args in the playbook, with an image whose vLLM has it (0.19 or newer)",
        "vllm-project/vllm#45661, vllm-project/vllm#35065",
    ),
    Signature(
        "fp4-gemm",
        r"\[FP4 gemm Runner\] Failed to run cutlass FP4 gemm|an illegal instruction was encountered",
        "a kernel of this image does not run on a GB10, most often that of CUTLASS for FP4",
        "set moe-backend: marlin under args in the playbook; or use an image for CUDA 13 with sm_121 (for Gemma 4:"
        " vllm/vllm-openai:gemma4-cu130)",
        "seed: Spark model guide, Gemma 4; vllm-project/vllm#39761, flashinfer-ai/flashinfer#2065",
    ),
    Signature(
        "attention-backend",
        r"No valid attention backend found for cuda with \w{1,60}\((?P<why>[^()]{0,160})",
        "no attention kernel of this image runs this model on a GB10 ({why})",
        "remove attention-backend and kv-cache-dtype under args in the playbook, or use an image made for this model",
        "vllm-project/vllm, vllm/platforms/cuda.py",
    ),
    Signature(
        "fp8-cudnn",
        r"Plan index \d{1,6} is invalid|\berr 715\b",
        "cuDNN chose an FP8 kernel that does not run on a GB10",
        "use an image with FlashInfer newer than July 2026, whose FP8 kernels leave cuDNN out on a GB10; or set"
        " linear-backend under args in the playbook to one without FlashInfer",
        "flashinfer-ai/flashinfer#3566, flashinfer-ai/flashinfer#4165",
    ),
    Signature(
        "layer-attributes",
        r"AmbiguousGlobalPerLayerAttributeError",
        "this vLLM does not read the model's config.json with the Transformers of its image",
        "use an image with vLLM 0.28 or newer, or pip install transformers==5.8.1 under setup in the playbook",
        "vllm-project/vllm#51744",
    ),
    Signature(
        "drafter-scales",
        r"has no parameter '(?P<what>w\d+_weight_scale_inv)'",
        "this vLLM does not read the quantised experts of the model's drafter ({what})",
        "remove speculative-config under args in the playbook; or use a vLLM with #55513, or a checkpoint whose drafter"
        " is BF16",
        "vllm-project/vllm#55513",
    ),
    Signature(
        "expert-scales",
        r"KeyError: .{0,200}down_proj\.(?:input|weight)_scale",
        "this vLLM's loader does not know the scales of the checkpoint's experts (down_proj.input_scale)",
        "mount the loader that came with the checkpoint (gemma4_patched.py), or use an image with a newer vLLM",
        "vllm-project/vllm#38912; seed: Spark model guide, Gemma 4",
    ),
    Signature(
        "mxfp4-checkpoint",
        r"IndexError: (?P<why>Dimension out of range|tuple index out of range|too many indices).{0,120}",
        "quantization mxfp4 loads checkpoints of gpt-oss alone, and this is none",
        "set quantization under args in the playbook to gptq_marlin for a GPTQ checkpoint, or fp8 for others",
        "vllm-project/vllm#35324; seed: SM121 guide, quantization",
        near=("fused_moe", "(?i)mxfp4"),
    ),
    # Not an error by itself, so after all that are.
    Signature(
        "gemma-drafter",
        r"SpeculativeConfig\(method='draft_model', model='(?P<model>[^']{0,200}assistant)",
        "this vLLM treats Gemma 4's drafter {model} as a draft model of its own: it has no MTP for Gemma 4",
        _NEWER,
        "seed: Spark model guide, 14.7",
    ),
)

_LONGER = "raise ready_timeout_s in the playbook, which vLLM's own limits follow"

# What follows from the causes of any engine.
_LATER = (
    Signature(
        "engine-ready-timeout",
        r"Timed out waiting for engine(?:s to send initial message| core processes to start)"
        r"|did not become ready within \d{1,9}|Did not receive response from front-end process within",
        "the engine was not ready within vLLM's own limit",
        _LONGER,
        "vllm-project/vllm#35616",
        by_peer=True,
    ),
    Signature(
        "step-timeout",
        r"TimeoutError: RPC call to (?P<what>\w+) timed out",
        "the ranks did not finish a step ({what}) within the engine's limit",
        f"if it compiled kernels: {_LONGER}; else see sparkcluster preflight INVENTORY --deep: MTU, GID and link of"
        " every rail",
        "eugr/spark-vllm-docker#321",
        code="RUN-003",
        by_peer=True,
    ),
    Signature(
        "graph-timeout",
        r"RayChannelTimeoutError",
        "the ranks did not finish a step within the limit of Ray's compiled graph",
        f"if it compiled kernels: {_LONGER}; else set executor: native in the playbook",
        "vllm-project/vllm#35403",
        code="RUN-003",
        by_peer=True,
    ),
    Signature(
        "worker-failed",
        r"Worker failed with error '(?P<why>.{1,200}?)', please check the stack trace",
        "{why}",
        None,
        "vllm-project/vllm-ascend#1767",
        consequence=True,
    ),
    Signature(
        "engine-dead",
        r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)|Engine core initialization failed"
        r"|EngineCore failed to start",
        "the engine died; its API may still answer /health",
        "the reason is further up in its log: sparkcluster logs INVENTORY",
        "vllm-project/vllm#53157",
        code="RUN-016",
        consequence=True,
    ),
)


def _hinted(signature: Signature) -> Signature:
    """A signature of any engine, with vLLM's hint where memory ran out."""
    of_memory = signature.hint == Engine.memory_hint
    return dataclasses.replace(signature, hint=ENGINE.memory_hint) if of_memory else signature


SIGNATURES = tuple(sorted((*_ROOTS, *map(_hinted, COMMON), *_LATER), key=lambda each: (each.consequence, each.by_peer)))

# The engine serves on after what follows.

EAGER = Signature(
    "eager",
    r"Enforce eager set, |Cudagraph is disabled under eager mode",
    "the engine runs without CUDA graphs",
    "remove enforce-eager under args in the playbook",
    "vllm-project/vllm#34523",
    code="RUN-018",
)

SCALES = (
    Signature(
        "scales-nan",
        r"(?i:\bnan\b.{0,60}\bscales?\b|scales?\b.{0,60}\bnan\b)|scale' has zero or non-finite values",
        "scales of quantised weights are NaN or infinite",
        "use a checkpoint that was calibrated in full, or moe-backend: marlin under args in the playbook",
        "vllm-project/vllm#45320",
        code="RUN-012",
    ),
    Signature(
        "scales-unlike",
        r"w1_weight_scale_2 must match w3_weight_scale_2",
        "gate and up projections of the experts have separate scales, and the kernel uses one for both",
        "use a checkpoint whose gate and up projections share a scale",
        "vllm-project/vllm#54150",
        code="RUN-012",
    ),
)

EXPERTS = r"Using '?(?P<name>[A-Za-z0-9_ ]+?)'? (?P<kind>\w+) MoE backend"
"""The line in which vLLM names the kernel of the experts (vllm-project/vllm#31085)."""
