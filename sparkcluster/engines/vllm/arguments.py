"""The engine arguments of a playbook, and the parameters of the engine's memory that follow from them."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.engines.vllm import flags
from sparkcluster.engines.vllm.reported import of_engine
from sparkcluster.errors import UsageError
from sparkcluster.facts.model import Facts
from sparkcluster.fit import defaults
from sparkcluster.fit.config import ModelConfig
from sparkcluster.fit.defaults import EngineSettings, Version
from sparkcluster.spec import KeyPath, Playbook
from sparkcluster.spec.playbook import REPOSITORY, REVISION

CONCURRENT = 4
"""Requests of full context that ``auto`` reserves memory for without --max-num-seqs: a Spark serves 1 to 4 well."""

AUTO = "auto"
LONG_MODELS = 'VLLM_ALLOW_LONG_MAX_MODEL_LEN: "1"'
UTILIZATION = "gpu-memory-utilization"
CACHE = "kv-cache-memory-bytes"
CHOICE, TOOLS, REASONING = "enable-auto-tool-choice", "tool-call-parser", "reasoning-parser"
_DRAFT_MODEL = ("speculative-config.model", "spec-model")  # in addition to "model" of the speculative config

_DRAFT_PARTS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Arguments:
    """The engine arguments of a playbook under vLLM's own names, from its ``args`` and its ``command``.

    Attributes:
        values: values as written; true for an argument without a value, false for a negated one.
        paths: key path of each argument.
    """

    def __init__(self, playbook: Playbook) -> None:
        self.playbook = playbook
        self.values: dict[str, Any] = {}
        self.paths: dict[str, KeyPath] = {}
        for name, value, path in (*of_command(playbook.command or ()), *_of_args(playbook)):
            self.values[name] = value
            self.paths[name] = path

    def number(self, name: str) -> float | None:
        """The argument's number; None if it is not set or not a number."""
        value = self.values.get(name)
        if isinstance(value, bool) or value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            return None

    def text(self, name: str) -> str | None:
        """The argument's value in lower case; None if it is not set."""
        value = self.values.get(name)
        return None if value is None or isinstance(value, bool) else str(value).lower()

    def on(self, name: str) -> bool | None:
        """Whether a switch is enabled; None if it is not set."""
        value = self.values.get(name)
        return value if isinstance(value, bool) else None

    def count(self, name: str, default: int) -> int:
        """The argument's number as vLLM reads it, such as 32k; ``default`` if it is not set or auto.

        Raises:
            UsageError: it is not a positive number.
        """
        value = self.values.get(name)
        if value is None or str(value) in {AUTO, "-1"}:
            return default
        text = str(value).strip()
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kmgKMG]?)", text)
        number = round(float(found[1]) * _UNITS.get(found[2], 1)) if found and not isinstance(value, bool) else 0
        if not 0 < number < 1 << 40:
            raise UsageError(f"{name} must be a positive number, is {text[:40]}", hint=f"fix args: {name}")
        return number

    @functools.cached_property
    def draft(self) -> Mapping[str, Any]:
        """The speculative config, merged if written in parts; empty if it is not set or not a mapping."""
        value = self.values.get("speculative-config")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return {}
        if not isinstance(value, Mapping):
            value = {}
        parts = {key: self.values[flag] for flag, key in _DRAFT_PARTS.items() if flag in self.values}
        for name, written in self.values.items():
            head, dot, part = name.partition(".")
            if dot and head == "speculative-config":
                parts[part.replace("-", "_")] = written
        return {**value, **{key: _number(written) for key, written in parts.items()}}


def _number(written: Any) -> Any:
    """``written`` as a number if it is a short one: Python refuses to convert thousands of digits."""
    text = str(written)
    return int(text) if text.isdecimal() and len(text) < 10 else written


# Kinds of RoPE scaling that max_position_embeddings already includes.
_SCALED_ALREADY = frozenset({"su", "longrope", "llama3"})


def extends_context(args: Arguments) -> bool:
    """Whether the playbook extends the model's context, for example by YaRN."""
    return any(name.partition(".")[0] in {"hf-overrides", "rope-scaling"} for name in args.values)


def trained_context(positions: int, rope: object) -> int:
    """The model's context according to vLLM, by its config.json (``_get_and_verify_max_len`` in vllm/config/model.py).

    ``positions`` are its max_position_embeddings; ``rope`` is its rope_parameters or rope_scaling, for models with
    several kinds of attention a mapping by kind.
    """
    if not isinstance(rope, Mapping):
        return positions
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    if isinstance(factor, int | float) and factor > 1 and kind not in _SCALED_ALREADY:
        original = rope.get("original_max_position_embeddings")
        base = original if kind == "yarn" and isinstance(original, int) else positions
        return max(positions, min(int(base * factor), 1 << 40))
    return max(positions, *(trained_context(positions, each) for each in rope.values() if isinstance(each, Mapping)), 0)


def longest_context(args: Arguments, native: int | None) -> int | None:
    """The highest --max-model-len with which vLLM starts; None without a known limit.

    ``native`` is the context of the model's training, the limit of ``_get_and_verify_max_len`` in
    ``vllm/config/model.py`` unless VLLM_ALLOW_LONG_MAX_MODEL_LEN is 1.
    """
    lifted = extends_context(args) or args.playbook.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    return None if lifted else native


def of_command(command: Sequence[str]) -> Iterator[tuple[str, Any, KeyPath]]:
    """Name, value and key path of each argument in a command, or in the shell line that it runs.

    Without ``serve`` in it, only arguments of vLLM are returned.
    """
    words = list(command)
    path: KeyPath = ("command",)
    for index, word in enumerate(command):
        line = _split(word)
        if "serve" in line:
            words, path = line, ("command", index)
    serves = "serve" in words
    for name, flag, values in flags.parse(words[words.index("serve") + 1 :] if serves else words):
        if flag is not None and name == f"no-{flag.name}":
            yield flag.name, False, path
        elif flag is not None or (serves and name):
            yield name if flag else flags.whole(name), values[-1] if values else True, path


def _of_args(playbook: Playbook) -> Iterator[tuple[str, Any, KeyPath]]:
    for written, value in playbook.args.items():
        name = written.replace("_", "-").lower()
        flag = flags.find(name)
        negated = isinstance(value, bool) and flag is not None and name == f"no-{flag.name}"
        yield name.removeprefix("no-") if negated else name, not value if negated else value, ("args", written)


def _split(word: str) -> list[str]:
    """The words of a shell line; empty if it is a single word or malformed."""
    try:
        return shlex.split(word) if " " in word else []
    except ValueError:
        return []


def drafting(args: Arguments) -> tuple[int, bool]:
    """Tokens per draft, 0 without drafts, and whether the model's own layers draft.

    Raises:
        UsageError: speculative-config is not a mapping, or its number of tokens is out of range.
    """
    if not args.draft:
        if args.values.get("speculative-config"):
            raise UsageError("speculative-config is not a mapping", hint="write it as a mapping in the playbook")
        return 0, False
    tokens = args.draft.get("num_speculative_tokens", 1)
    if type(tokens) is not int or not 0 <= tokens <= 4096:
        raise UsageError("num_speculative_tokens must be from 0 to 4096", hint="set it to 3")
    return tokens, "mtp" in str(args.draft.get("method", "")) and not args.draft.get("model")


def drafter(playbook: Playbook) -> str | None:
    """The separate draft model: a repository of the hub, or a directory in the container; None without one."""
    args = Arguments(playbook)
    named = (args.draft.get("model"), *(args.values.get(name) for name in _DRAFT_MODEL))
    return next((str(name) for name in named if name), None)


def adapters(playbook: Playbook) -> list[str]:
    """Repositories of the adapters that --lora-modules names: NAME=PATH, or a mapping with path, in JSON too."""
    modules = json.dumps(Arguments(playbook).values.get("lora-modules"), default=str)
    return re.findall(rf'(?:=|\bpath\W+)({REPOSITORY})(?=["\\])', modules)


def repositories(playbook: Playbook) -> dict[str, str]:
    """Companion repositories of the hub that the arguments name, with their revisions.

    Raises:
        UsageError: a revision is invalid.
    """
    args = Arguments(playbook)
    values, draft = args.values, args.draft
    named: list[tuple[Any, Any]] = [
        (draft.get("model"), draft.get("revision")),
        *((values.get(name), values.get("speculative-config.revision")) for name in _DRAFT_MODEL),
        (values.get("tokenizer"), values.get("tokenizer-revision")),
        (values.get("hf-config-path"), None),
        *((adapter, None) for adapter in adapters(playbook)),
    ]
    found = {name: str(revision or "main") for name, revision in named if re.fullmatch(REPOSITORY, str(name))}
    for name, revision in found.items():
        if ".." in revision or not re.fullmatch(REVISION, revision):
            raise UsageError(
                f"{revision[:60]} is not a revision of {name}", hint="write a branch, tag or commit under args"
            )
    return found


_SAFETENSORS = {AUTO, "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer", "bitsandbytes"}


def weights_format(playbook: Playbook) -> str | None:
    """Implements ``Engine.weights_format``, by --load-format.

    If a repository has both, newer releases prefer Mistral's consolidated files. These are not staged, so vLLM loads
    the other files, as older releases do.
    """
    args = Arguments(playbook)
    if "mistral" in {args.text("load-format"), args.text("config-format")}:
        return "mistral"
    return None if (args.text("load-format") or AUTO) in _SAFETENSORS else "any"


def engine(
    playbook: Playbook,
    config: ModelConfig,
    *,
    version: Version,
    ranks: int = 1,
    stages: int = 1,
    context: int | None = None,
) -> EngineSettings:
    """The engine that a playbook starts; ``context`` overrides --max-model-len.

    Raises:
        UsageError: an argument is invalid.
    """
    args = Arguments(playbook)
    drafted, mtp_drafts = drafting(args)
    length = context or args.count("max-model-len", 0)
    return EngineSettings(
        context=length if length > 0 else config.context,
        version=version,
        device="cpu" if on_cpu(playbook) else "gpu",
        ranks=ranks,
        stages=stages,
        sequences=args.count("max-num-seqs", defaults.SEQUENCES),
        batched_tokens=args.count("max-num-batched-tokens", defaults.BATCHED_TOKENS),
        block_size=args.count("block-size", 0) or None,
        kv_dtype=args.text("kv-cache-dtype") or AUTO,
        dtype=args.text("dtype") or AUTO,
        state_dtype=args.text("mamba-ssm-cache-dtype") or AUTO,
        convolution_dtype=args.text("mamba-cache-dtype") or AUTO,
        prefix_caching=args.on("enable-prefix-caching"),
        async_scheduling=args.on("async-scheduling") is not False,
        drafted=drafted,
        mtp_drafts=mtp_drafts,
        eager=args.on("enforce-eager") is True,
        falls_back=_falls_back(args, config, version),
        largest_graph=args.count("max-cudagraph-capture-size", 0) or None,
        profiles_graphs=playbook.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") != "0",
        loader=args.text("load-format") or AUTO,
    )


def _falls_back(args: Arguments, config: ModelConfig, version: Version) -> bool:
    """Whether four-bit experts try FlashInfer's kernels, which SM121 lacks; measured with vLLM 0.18."""
    if config.experts is None or config.quantization.kind != "modelopt-nvfp4":
        return False
    if defaults.has(version, "FP4 experts run on kernels that SM121 has"):
        return False
    env = args.playbook.env
    chosen = env.get("VLLM_NVFP4_GEMM_BACKEND") or args.text("moe-backend")
    return chosen != "marlin" and env.get("VLLM_USE_FLASHINFER_MOE_FP4") != "0"


def utilization(playbook: Playbook, version: Version) -> float:
    """--gpu-memory-utilization, or the default of ``version``.

    Raises:
        UsageError: it is not a fraction.
    """
    args = Arguments(playbook)
    value = args.values.get(UTILIZATION)
    if value is None or value == AUTO:
        return defaults.utilization(version)
    number = args.number(UTILIZATION)
    if number is None or not 0 < number <= 1:
        raise UsageError(f"{UTILIZATION} must be from 0 to 1, is {str(value)[:40]}", hint="set it to 0.82")
    return number


def claimed(playbook: Playbook, *facts: Facts) -> float:
    """The share of a node's memory that an engine will take: --gpu-memory-utilization, or its largest possible default.

    ``facts`` of its nodes may report the version of vLLM.
    """
    value = Arguments(playbook).values.get(UTILIZATION)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return of_engine(playbook.image, facts).utilizations[-1]


def takes_share(playbook: Playbook) -> bool:
    """Whether a rank takes the share of ``claimed``: not with --kv-cache-memory-bytes, nor with ``auto``."""
    return CACHE not in Arguments(playbook).values and not wants_auto(playbook)


def beside_others(playbook: Playbook, chosen: Collection[str] = ()) -> Playbook:
    """``playbook`` with ``auto`` for its utilization, which is meant for one model on a Spark: 0.8 or 0.9.

    A utilization that the inventory sets (``chosen``: its keys), or next to bytes of KV cache, is not changed.
    """
    chosen = {key.replace("_", "-") for key in chosen}
    both = {UTILIZATION, CACHE} <= Arguments(playbook).values.keys()
    if playbook.command is not None or on_cpu(playbook) or both or f"args.{UTILIZATION}" in chosen:
        return playbook
    others = {name: value for name, value in playbook.args.items() if name.replace("_", "-") != UTILIZATION}
    return playbook.model_copy(update={"args": {**others, UTILIZATION: AUTO}})


def wants_auto(playbook: Playbook) -> bool:
    """Whether ``fit`` computes --gpu-memory-utilization of the playbook."""
    return Arguments(playbook).values.get(UTILIZATION) == AUTO


def concurrent(playbook: Playbook) -> int:
    """Requests of full context to reserve memory for: --max-num-seqs, or ``CONCURRENT``; 1 if the cache's size is set.

    Raises:
        UsageError: it is not a number.
    """
    return 1 if pool_bytes(playbook) else Arguments(playbook).count("max-num-seqs", CONCURRENT)


def pool_bytes(playbook: Playbook) -> int | None:
    """Bytes of KV cache of a rank if the playbook sets its size; None if a utilization does.

    On a CPU by VLLM_CPU_KVCACHE_SPACE, in GiB; else by --kv-cache-memory-bytes.

    Raises:
        UsageError: it is not a size.
    """
    if on_cpu(playbook):
        text = playbook.env["VLLM_CPU_KVCACHE_SPACE"]
        if not text.isdecimal() or len(text) > 5:
            raise UsageError("VLLM_CPU_KVCACHE_SPACE must be whole GiB", hint='set VLLM_CPU_KVCACHE_SPACE: "4" in env')
        return int(text) << 30
    return Arguments(playbook).count(CACHE, 0) or None


def on_cpu(playbook: Playbook) -> bool:
    """Whether the playbook is for vLLM's CPU build."""
    return bool(playbook.env.get("VLLM_CPU_KVCACHE_SPACE"))
