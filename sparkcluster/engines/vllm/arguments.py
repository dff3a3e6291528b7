"""The engine that a playbook's arguments start, as far as its memory is concerned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.engines.vllm import defaults
from sparkcluster.engines.vllm.kv import Engine
from sparkcluster.engines.vllm.versions import Version, of_engine
from sparkcluster.errors import UsageError
from sparkcluster.facts.model import Facts
from sparkcluster.models.config import ModelConfig
from sparkcluster.spec.playbook import ArgumentValue, Playbook

CONCURRENT = 4
"""Requests of full context that ``auto`` makes room for if --max-num-seqs is not set: a Spark serves 1 to 4 well."""

AUTO = "auto"
UTILIZATION = "gpu-memory-utilization"

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def engine(
    playbook: Playbook,
    config: ModelConfig,
    *,
    version: Version,
    ranks: int = 1,
    stages: int = 1,
    context: int | None = None,
) -> Engine:
    """The engine that a playbook starts.

    Args:
        playbook: its args are read under vLLM's own names.
        config: the model's, for defaults.
        version: of vLLM.
        ranks: tensor parallel size.
        stages: pipeline parallel size.
        context: in place of --max-model-len.

    Raises:
        UsageError: an argument makes no sense.
    """
    args = _args(playbook)
    drafted, model_drafts = _speculation(args.get("speculative-config"))
    length = context or _count(args, "max-model-len", 0)
    return Engine(
        context=length if length > 0 else config.context,
        version=version,
        device="cpu" if on_cpu(playbook) else "gpu",
        ranks=ranks,
        stages=stages,
        sequences=_count(args, "max-num-seqs", defaults.SEQUENCES),
        batched_tokens=_count(args, "max-num-batched-tokens", defaults.BATCHED_TOKENS),
        block_size=_count(args, "block-size", 0) or None,
        kv_dtype=_text(args, "kv-cache-dtype"),
        dtype=_text(args, "dtype"),
        state_dtype=_text(args, "mamba-ssm-cache-dtype"),
        convolution_dtype=_text(args, "mamba-cache-dtype"),
        prefix_caching=_flag(args, "enable-prefix-caching"),
        async_scheduling=_flag(args, "async-scheduling") is not False,
        drafted=drafted,
        own_drafts=model_drafts,
        eager=_flag(args, "enforce-eager") is True,
        falls_back=_falls_back(playbook, config, version),
    )


def _falls_back(playbook: Playbook, config: ModelConfig, version: Version) -> bool:
    """Whether experts of four bits try FlashInfer's kernels, which SM121 has not; measured with vLLM 0.18."""
    if config.experts is None or config.quantization.kind != "modelopt-nvfp4":
        return False
    if defaults.has(version, "FP4 experts run on kernels that SM121 has"):
        return False
    chosen = playbook.env.get("VLLM_NVFP4_GEMM_BACKEND") or playbook.args.get("moe-backend")
    return chosen != "marlin" and playbook.env.get("VLLM_USE_FLASHINFER_MOE_FP4") != "0"


def utilization(playbook: Playbook, version: Version) -> float:
    """--gpu-memory-utilization, or the default of ``version``.

    Raises:
        UsageError: it is no fraction.
    """
    value = _args(playbook).get(UTILIZATION)
    if value is None or value == AUTO:
        return defaults.utilization(version)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= 1:
        raise UsageError(f"{UTILIZATION} must be from 0 to 1, is {str(value)[:40]}", hint="set it to 0.85")
    return number


def claimed(playbook: Playbook, facts: Iterable[Facts] = ()) -> float:
    """The part of a node's memory that an engine will take: --gpu-memory-utilization, or its largest possible default.

    Args:
        playbook: its args.
        facts: of the nodes that run it, for the version of vLLM.
    """
    written = _args(playbook).get(UTILIZATION)
    if isinstance(written, int | float) and not isinstance(written, bool):
        return written
    return defaults.utilizations(of_engine(playbook.image, facts))[-1]


def wants_auto(playbook: Playbook) -> bool:
    """Whether the playbook leaves --gpu-memory-utilization to ``fit``."""
    return _args(playbook).get(UTILIZATION) == AUTO


def concurrent(playbook: Playbook) -> int:
    """Requests of full context that ``auto`` makes room for: --max-num-seqs, or ``CONCURRENT``.

    Raises:
        UsageError: it is no number.
    """
    return _count(_args(playbook), "max-num-seqs", CONCURRENT)


def pool_bytes(playbook: Playbook) -> int | None:
    """The KV cache of a rank where it is asked for by its size; None where a utilization sets it.

    On a CPU by VLLM_CPU_KVCACHE_SPACE, in GiB; else by --kv-cache-memory-bytes.

    Raises:
        UsageError: it is no size.
    """
    if on_cpu(playbook):
        text = playbook.env["VLLM_CPU_KVCACHE_SPACE"]
        if not text.isdecimal() or len(text) > 5:
            raise UsageError("VLLM_CPU_KVCACHE_SPACE must be whole GiB", hint='set VLLM_CPU_KVCACHE_SPACE: "4" in env')
        return int(text) << 30
    return _count(_args(playbook), "kv-cache-memory-bytes", 0) or None


def on_cpu(playbook: Playbook) -> bool:
    """Whether it is for vLLM's CPU build."""
    return bool(playbook.env.get("VLLM_CPU_KVCACHE_SPACE"))


def own_drafts(playbook: Playbook) -> bool:
    """Whether the model's own multi-token-prediction layers draft.

    Raises:
        UsageError: speculative-config makes no sense.
    """
    return _speculation(_args(playbook).get("speculative-config"))[1]


def draft_model(playbook: Playbook) -> str:
    """The model of its own that drafts; empty where none does.

    Raises:
        UsageError: speculative-config is no JSON.
    """
    return str(_document(_args(playbook).get("speculative-config")).get("model") or "")


def _args(playbook: Playbook) -> dict[str, ArgumentValue]:
    """Engine arguments with dashes, as vLLM writes them."""
    return {name.replace("_", "-"): value for name, value in playbook.args.items()}


def _document(value: ArgumentValue) -> Mapping[str, Any]:
    document: Any = value
    if isinstance(value, str):
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            raise UsageError("speculative-config is not JSON", hint="write it as a mapping in the playbook") from None
    return document if isinstance(document, Mapping) else {}


def _speculation(value: ArgumentValue) -> tuple[int, bool]:
    """Tokens drafted at once, and whether by the model's own layers."""
    document = _document(value)
    if not document:
        return 0, False
    tokens = document.get("num_speculative_tokens", 1)
    if type(tokens) is not int or not 0 <= tokens <= 4096:
        raise UsageError("num_speculative_tokens must be from 0 to 4096", hint="set it to 3")
    method = str(document.get("method", ""))
    return tokens, "mtp" in method and not document.get("model")


def _count(args: Mapping[str, ArgumentValue], name: str, default: int) -> int:
    value = args.get(name)
    if value is None or value in {AUTO, -1, "-1"}:
        return default
    text = str(value).strip()
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kmgKMG]?)", text)
    number = round(float(found[1]) * _UNITS.get(found[2], 1)) if found and not isinstance(value, bool) else 0
    if not 0 < number < 1 << 40:
        raise UsageError(f"{name} must be a positive number, is {text[:40]}", hint=f"fix args: {name}")
    return number


def _text(args: Mapping[str, ArgumentValue], name: str) -> str:
    value = args.get(name)
    return AUTO if value is None else str(value)


def _flag(args: Mapping[str, ArgumentValue], name: str) -> bool | None:
    value = args.get(name)
    if isinstance(value, bool):
        return value
    return False if args.get(f"no-{name}") is True else None
