"""Signatures of vLLM's log, each with a public thread that has the line.

A launch searches for them when a rank has ended, ``checks.running`` when a cluster does not answer.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from sparkcluster.engines.base import Engine
from sparkcluster.engines.common_signatures import COMMON
from sparkcluster.engines.signature import Cause, Signature
from sparkcluster.engines.vllm import ENGINE, flags
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
        "kv-cache-none",
        r"No available memory for the cache blocks",
        "the model leaves no memory for the KV cache",
        "raise gpu-memory-utilization (up to 0.90 on a Spark), or spread the model over more nodes",
        "vllm-project/vllm#17431",
        code="RUN-014",
    ),
    Signature(
        "kv-cache-small",
        r"max seq len \((?P<length>\d+)\), \(?(?P<need>[\d.]+ GiB) KV cache is needed, which is larger than"
        r" the available KV cache memory \((?P<have>[\d.]+ GiB)\)"
        r"(?:.*estimated maximum model length is (?P<fits>\d+))?",
        "max-model-len {length} needs {need} of KV cache, but only {have} is available",
        "set max-model-len to {fits} or less in the playbook, or raise gpu-memory-utilization",
        "vllm-project/vllm#34076",
        code="RUN-014",
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
        "use a newer image in the playbook",
        "vllm-project/vllm#2248",
    ),
)

_LONGER = "raise ready_timeout_s in the playbook, which vLLM's own limits follow"

# What follows from the causes of any engine.
_LATER = (
    Signature(
        "engine-ready-timeout",
        r"Timed out waiting for engine(?:s to send initial message| core processes to start)"
        r"|did not become ready within \d{1,9}",
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


SIGNATURES = tuple(sorted((*_ROOTS, *map(_hinted, COMMON), *_LATER), key=lambda signature: signature.order))

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
