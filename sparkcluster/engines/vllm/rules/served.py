"""What a playbook will run: as nodes report it, as the playbook says, or unknown.

Unknown is None: no rule reports it unless the rule says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.engines.vllm import family_flags, versions
from sparkcluster.engines.vllm.family_flags import Model
from sparkcluster.engines.vllm.versions import Family, Versions
from sparkcluster.facts.engine import engine_of, image_digest
from sparkcluster.facts.model import Facts, Image, Unread, Weights, read
from sparkcluster.findings import Severity
from sparkcluster.spec import KeyPath, Playbook, Spec

GB10 = "12.1"


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """What a playbook will run.

    Attributes:
        playbook: as written.
        nodes: of the largest group.
        image: its reference, or empty.
        tag: behind the colon.
        digest: the image as any node can pull it, ``name@sha256:…``; None where no node has it from a registry.
        moves: whether the tag is given to new builds; None where that is not known.
        family: who built the image; None without one.
        versions: the vLLM that it may contain.
        asked: whether a node reported which vLLM it has.
        spark: whether it runs on a GB10; assumed unless a node or the playbook says otherwise.
        drivers: NVIDIA driver by node.
        baked: variables that the image sets.
        kind: how the weights are stored.
        weights: their numbers: nvfp4, mxfp4, fp8 or bf16.
        mixed: whether the checkpoint mixes FP8 and NVFP4, by its config.json.
        model: family of the model.
        moe: whether it is a mixture of experts.
        context: tokens that it was trained for.
        flags: engine arguments by vLLM's name, ``false`` for the negated.
        at: where each of them is written.
        draft: the speculative config.
    """

    playbook: Playbook
    nodes: int
    image: str
    tag: str
    digest: str | None
    moves: bool | None
    family: Family | None
    versions: Versions
    asked: bool
    spark: bool
    drivers: Mapping[str, str]
    baked: frozenset[str]
    kind: str | None
    weights: str | None
    mixed: bool | None
    model: Model | None
    moe: bool | None
    context: int | None
    flags: Mapping[str, Any]
    at: Mapping[str, KeyPath]
    draft: Mapping[str, Any]

    def since(self, *version: int) -> bool | None:
        """Whether the image's vLLM is ``version`` or newer; None where that is not known."""
        return self.versions.since(*version)

    def named(self, *names: str) -> bool:
        """Whether the model is of one of these families."""
        return self.model is not None and self.model.name in names

    @property
    def hybrid(self) -> bool:
        """Whether the model is known to mix attention with linear or Mamba layers."""
        return self.model is not None and self.model.hybrid

    @property
    def fp4(self) -> bool:
        """Whether the weights are known to have four bits in a block format."""
        return self.weights in {"nvfp4", "mxfp4"}

    @property
    def gemma_4(self) -> bool:
        """Whether the model is one of Gemma 4."""
        return self.model is not None and self.model.name.startswith("Gemma 4")

    @property
    def fp8_cache(self) -> bool:
        """Whether the KV cache is set to FP8."""
        return (self.text("kv-cache-dtype") or "").startswith("fp8")

    @property
    def dflash(self) -> bool:
        """Whether it drafts with DFlash."""
        return self.draft.get("method") == "dflash"

    def number(self, flag: str) -> float | None:
        """The flag's number; None if it is not set or not a number."""
        value = self.flags.get(flag)
        if isinstance(value, bool) or value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            return None

    def text(self, flag: str) -> str | None:
        """The flag's value in lower case; None if it is not set."""
        value = self.flags.get(flag)
        return None if value is None or isinstance(value, bool) else str(value).lower()

    def on(self, flag: str) -> bool:
        """Whether a flag without a value is set."""
        return self.flags.get(flag) is True

    def path(self, flag: str) -> KeyPath:
        """Where ``flag`` is written, or would be."""
        return self.at.get(flag, ("args",) if self.playbook.command is None else ("command",))

    def say(
        self,
        where: str | KeyPath | None,
        summary: str,
        *remedy: str,
        severity: Severity | None = None,
        node: str | None = None,
    ) -> Seen:
        """What a rule saw: the key's value, and what of image and model it is judged by.

        Args:
            where: an engine argument by its name, or the path of another key.
            summary: what is wrong.
            remedy: what to write instead.
            severity: None for that of the rule.
            node: that it is about.
        """
        at = self.path(where) if isinstance(where, str) else where
        weights = f" ({self.kind})" if self.kind else ""
        about = f"{self.playbook.model.label}{weights} on {self.image or 'no image'} ({self.versions})"
        value = _written(self.playbook, at)
        return Seen(node, summary, f"{value}; {about}" if value else about, remedy, at, severity=severity)


Rule = Callable[[Served], Iterable[Seen]]


def rule(code: str, title: str, *, severity: Severity = "warning", source: str) -> Callable[[Rule], Rule]:
    """Register a rule over what a playbook will run; its docstring is the reason, as for any check."""

    def register(body: Rule) -> Rule:
        @functools.wraps(body)
        def judge(context: Context) -> Iterable[Seen]:
            return body(served(context))

        remedy = f"change the key that the finding names, or accept it by allow: [{{code: {code}, reason: …}}]"
        check(code, title, stage="written", severity=severity, source=source, remedy=remedy)(judge)
        return body

    return register


def served(context: Context) -> Served:
    """What the playbook of ``context`` will run, by facts if there are any."""
    spec, playbook = context.spec, context.spec.playbook
    docker = spec.inventory.runtime.kind == "docker"
    facts = list(context.facts.values())
    image = versions.of_reference(playbook.image) if playbook.image and docker else None
    engines = [engine.version for node in facts if (engine := engine_of(node)) and engine.version]
    config = next(
        (node.weights.config for node in facts if isinstance(node.weights, Weights) and node.weights.config), {}
    )
    architecture = playbook.model.architecture or next(iter(_strings(config.get("architectures"))), None)
    family_of = family_flags.family(playbook.model.label, architecture)
    flags, at = _flags(playbook)
    draft = _mapping(flags.get("speculative-config"))
    name = playbook.model.label.rstrip("/").rsplit("/", 1)[-1].lower()
    kind = _kind(playbook, facts, config)
    return Served(
        playbook=playbook,
        nodes=_nodes(spec),
        image=playbook.image or "" if docker else "",
        tag=image.tag if image else "",
        digest=image_digest(facts),
        moves=image.moves if image else None,
        family=_family(facts) or (image.family if image else None),
        versions=versions.of_engine(playbook.image if docker else None, facts),
        asked=versions.of_engine(None, facts).exact is not None,
        spark=_spark(playbook, facts, engines),
        drivers={name: driver for name, node in context.facts.items() if (driver := read(node.driver))},
        baked=frozenset().union(*(node.image.env_names for node in facts if isinstance(node.image, Image))),
        kind=kind,
        weights=_weights(kind, config, name),
        mixed=_mixed(config),
        model=family_of,
        moe=_moe(family_of, config, name),
        context=_context(config) or (family_of.context if family_of else None),
        flags=flags,
        at=at,
        draft=draft,
    )


def arguments(words: Iterable[str]) -> dict[str, Any]:
    """Flags of a command line: their values as text, a bare flag true, a negated one false."""
    out: dict[str, Any] = {}
    name: str | None = None
    for word in words:
        if re.fullmatch(r"--[a-zA-Z].*", word, re.DOTALL):
            head, equals, value = word[2:].partition("=")
            name = head.replace("_", "-").lower()
            negated = name.startswith("no-") and not equals
            if negated:
                name = name.removeprefix("no-")
            out[name] = value if equals else not negated
            if equals:
                name = None
        elif word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            name = None
        elif name is not None and out.get(name) is True:
            out[name] = word
    return out


def _flags(playbook: Playbook) -> tuple[dict[str, Any], dict[str, KeyPath]]:
    flags: dict[str, Any] = {}
    at: dict[str, KeyPath] = {}
    for written, value in playbook.args.items():
        name = written.replace("_", "-").lower()
        negated = name.startswith("no-") and value in {True, False} and isinstance(value, bool)
        name = name.removeprefix("no-") if negated else name
        flags[name] = not value if negated else value
        at[name] = ("args", written)
    for index, word in enumerate(playbook.command or ()):
        try:
            words = shlex.split(word) if " " in word and word.lstrip()[:1] not in "{[" else [word]
        except ValueError:
            words = [word]
        if len(words) > 1:
            flags |= arguments(words)
            at |= dict.fromkeys(arguments(words), ("command", index))
    flags = arguments(playbook.command or ()) | flags
    at = {name: at.get(name, ("command",)) for name in flags}
    return flags, at


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _nodes(spec: Spec) -> int:
    return max((len(group.nodes) for group in spec.inventory.groups), default=len(spec.inventory.nodes))


def _family(facts: Iterable[Facts]) -> Family | None:
    return next((versions.family(node.image) for node in facts if isinstance(node.image, Image)), None)


def _spark(playbook: Playbook, facts: Iterable[Facts], engines: Iterable[str]) -> bool:
    if any("cpu" in version for version in engines) or "cpu" in (playbook.image or "").rpartition("/")[2]:
        return False
    if any(name.startswith("VLLM_CPU_") for name in playbook.env):
        return False
    for node in facts:
        if not isinstance(node.gpus, Unread):
            return any(gpu.compute_capability in {GB10, None} for gpu in node.gpus)
    return True


def _kind(playbook: Playbook, facts: Iterable[Facts], config: Mapping[str, Any]) -> str | None:
    method = _quantization(config).get("quant_method")
    if isinstance(method, str):
        return next((kind for kind, names in family_flags.NAMES.items() if method in names), method)
    for node in facts:
        if isinstance(node.weights, Weights) and node.weights.config:
            # Older checkpoints of ModelOpt keep it in a file of its own.
            modelopt = any(file.name.endswith("hf_quant_config.json") for file in node.weights.files)
            return "modelopt" if modelopt else playbook.model.checkpoint or "bf16"
    return playbook.model.checkpoint or family_flags.kind(playbook.model.id or "")


def _quantization(config: Mapping[str, Any]) -> dict[str, Any]:
    inner = _mapping(config.get("text_config"))
    return _mapping(config.get("quantization_config")) or _mapping(inner.get("quantization_config"))


def _weights(kind: str | None, config: Mapping[str, Any], name: str) -> str | None:
    written = json.dumps(_quantization(config), default=str).lower()
    if kind == "mxfp4":
        return "mxfp4"
    if "nvfp4" in written or ("nvfp4" in name and kind in {None, "modelopt", "compressed-tensors"}):
        return "nvfp4"
    if kind == "fp8" or (kind in {None, "modelopt", "compressed-tensors"} and re.search(r"(^|-)fp8(-|$)", name)):
        return "fp8"
    return "bf16" if kind == "bf16" else None


def _mixed(config: Mapping[str, Any]) -> bool | None:
    algorithm = _quantization(config).get("quant_algo")
    return algorithm == "MIXED_PRECISION" if isinstance(algorithm, str) else None


def _moe(family_of: Model | None, config: Mapping[str, Any], name: str) -> bool | None:
    for section in (config, _mapping(config.get("text_config"))):
        if any(section.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
            return True
    if family_of is not None and family_of.moe is not None:
        return family_of.moe
    if re.search(r"-a\d+(\.\d+)?b(-|$)", name):
        return True
    return False if family_of is not None else None


def _context(config: Mapping[str, Any]) -> int | None:
    for section in (_mapping(config.get("text_config")), config):
        tokens = section.get("max_position_embeddings")
        if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0:
            return tokens
    return None


def _written(playbook: Playbook, at: KeyPath | None) -> str:
    """The value at a path of the playbook, abridged; empty if the path names no single value."""
    if not at or at in {("args",), ("command",)}:
        return ""
    value: Any = playbook.model_dump()
    try:
        for part in at:
            value = value[part]
    except (KeyError, IndexError, TypeError):
        return ""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{at[-1] if isinstance(at[-1], str) else at[0]}: {text[:80]}"
