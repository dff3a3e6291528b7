"""The image, model and arguments that a playbook will run: from nodes, else from the playbook.

Unknown values are None; rules do not report them unless they say so.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sparkcluster.checks.check import Context, Seen, check
from sparkcluster.engines.vllm import family_flags, reported, versions
from sparkcluster.engines.vllm.arguments import REASONING, TOOLS, Arguments, trained_context
from sparkcluster.engines.vllm.family_flags import Model
from sparkcluster.engines.vllm.versions import Family
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import Image
from sparkcluster.facts.engine import engine_of, image_digest
from sparkcluster.facts.weights import Weights
from sparkcluster.findings import Severity
from sparkcluster.fit.defaults import Version
from sparkcluster.spec import KeyPath, Playbook
from sparkcluster.spec.powers import SECURITY

GB10 = "12.1"


class Served(Arguments):
    """The image, model and arguments that a playbook will run, from facts if available.

    Attributes:
        nodes: number of nodes of the largest group.
        image: the image's reference, or empty.
        tag: text after the colon of the reference.
        digest: the image as any node can pull it, ``name@sha256:…``; None unless a node has it from a registry.
        present: whether a node has the image.
        asked: whether there are facts of nodes.
        moves: whether the tag is reassigned to new builds; None if unknown.
        family: the image's publisher; None without an image.
        versions: the vLLM that it may contain.
        reported: whether a node reported its version of vLLM.
        drivers: NVIDIA driver by node.
        baked: variables that the image sets.
        config: the model's config.json; empty if no node has it.
        asked_family: whether a rule has read the model's family.
    """

    def __init__(self, context: Context) -> None:
        spec, playbook = context.spec, context.spec.playbook
        super().__init__(playbook)
        self._facts = list(context.facts.values())
        reference = playbook.image if spec.inventory.runtime.kind == "docker" else None
        image = versions.of_reference(reference) if reference else None
        images = [node.image for node in self._facts if isinstance(node.image, Image)]
        weights = [node.weights for node in self._facts if isinstance(node.weights, Weights)]
        self.nodes = max((len(group.nodes) for group in spec.inventory.groups), default=len(spec.inventory.nodes))
        self.image = reference or ""
        self.tag = image.tag if image else ""
        self.digest = image_digest(self._facts)
        self.present, self.asked = bool(images), bool(self._facts)
        self.moves = image.moves if image else None
        self.family: Family | None = reported.family(images[0]) if images else image.family if image else None
        self.versions = reported.of_engine(reference, self._facts)
        self.reported = reported.of_engine(None, self._facts).exact is not None
        self.drivers = {name: driver for name, node in context.facts.items() if (driver := read(node.driver))}
        self.baked = frozenset[str]().union(*(found.env_names for found in images))
        self.config: Mapping[str, Any] = next((found.config for found in weights if found.config), {})
        listed = self.config.get("architectures")
        named = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        architecture = playbook.model.architecture or next(iter(named), None)
        self._model = family_flags.family(playbook.model.label, architecture)
        self.asked_family = False

    @property
    def model(self) -> Model | None:
        """Family of the model; None if unknown."""
        self.asked_family = True
        return self._model

    @functools.cached_property
    def spark(self) -> bool:
        """Whether it runs on a GB10; assumed unless a node or the playbook says otherwise."""
        reported = (engine.version or "" for node in self._facts if (engine := engine_of(node)))
        if any("cpu" in name for name in (*reported, (self.playbook.image or "").rpartition("/")[2])):
            return False
        if any(name.startswith("VLLM_CPU_") for name in self.playbook.env):
            return False
        for node in self._facts:
            if not isinstance(node.gpus, Unread):
                return any(gpu.compute_capability in {GB10, None} for gpu in node.gpus)
        return True

    @functools.cached_property
    def kind(self) -> str | None:
        """How the weights are stored."""
        method, checkpoint = self._quantization.get("quant_method"), self.playbook.model.checkpoint
        if isinstance(method, str):
            return next((kind for kind, names in family_flags.NAMES.items() if method in names), method)
        for node in self._facts:
            if isinstance(node.weights, Weights) and node.weights.config:
                # Older checkpoints of ModelOpt have it in a separate file.
                modelopt = any(file.name.endswith("hf_quant_config.json") for file in node.weights.files)
                return "modelopt" if modelopt else checkpoint or "bf16"
        return checkpoint or family_flags.kind(self.playbook.model.id or "")

    @functools.cached_property
    def weights(self) -> str | None:
        """The number format of the weights: nvfp4, mxfp4, fp8 or bf16."""
        written = json.dumps(self._quantization, default=str).lower()
        unnamed = self.kind in {None, "modelopt", "compressed-tensors"}
        if self.kind == "mxfp4":
            return "mxfp4"
        if "nvfp4" in written or (unnamed and "nvfp4" in self._name):
            return "nvfp4"
        if self.kind == "fp8" or (unnamed and re.search(r"(^|-)fp8(-|$)", self._name)):
            return "fp8"
        return "bf16" if self.kind == "bf16" else None

    @functools.cached_property
    def mixed(self) -> bool:
        """Whether the checkpoint mixes FP8 and NVFP4, by its config.json."""
        return self._quantization.get("quant_algo") == "MIXED_PRECISION"

    @functools.cached_property
    def moe(self) -> bool | None:
        """Whether it is a mixture of experts."""
        if any(self._of_config(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
            return True
        if self.model is not None and self.model.moe is not None:
            return self.model.moe
        if re.search(r"-a\d+(\.\d+)?b(-|$)", self._name):
            return True
        return False if self.model is not None else None

    @functools.cached_property
    def context(self) -> int | None:
        """Tokens that the model was trained for."""
        tokens = self._of_config("max_position_embeddings")
        if type(tokens) is int and tokens > 0:
            return trained_context(tokens, self._of_config("rope_parameters") or self._of_config("rope_scaling"))
        return self.model.context if self.model else None

    @functools.cached_property
    def head_size(self) -> int | None:
        """Size of an attention head, by the model's config.json or its family."""
        size, hidden, heads = map(self._of_config, ("head_dim", "hidden_size", "num_attention_heads"))
        if type(size) is int and size > 0:
            return size
        if type(hidden) is int and type(heads) is int and heads > 0:
            return hidden // heads
        return 256 if self.named("Qwen3-Next", "Qwen3-Coder-Next", "Qwen3.5", "Qwen3.6") else None

    @property
    def _name(self) -> str:
        return self.playbook.model.label.rstrip("/").rsplit("/", 1)[-1].lower()

    @property
    def _quantization(self) -> Mapping[str, Any]:
        found = self._of_config("quantization_config")
        return found if isinstance(found, Mapping) else {}

    def _of_config(self, key: str) -> Any:
        """The value in the part of config.json that describes the language model, else in the file itself."""
        text = self.config.get("text_config")
        return (text.get(key) if isinstance(text, Mapping) else None) or self.config.get(key)

    def since(self, *version: int) -> bool | None:
        """Whether the image's vLLM is ``version`` or newer; None if unknown."""
        return self.versions.since(*version)

    def named(self, *names: str) -> bool:
        """Whether the model is of one of these families."""
        return self.model is not None and self.model.name in names

    @property
    def hybrid(self) -> bool:
        """Whether the model is known to mix attention with linear or Mamba layers."""
        return self.model is not None and self.model.hybrid

    @property
    def plain(self) -> bool:
        """Whether the model is known to have attention layers only."""
        return self.model is not None and not self.model.hybrid

    @property
    def mamba(self) -> bool:
        """Whether the model is known to have Mamba layers."""
        return self.model is not None and self.model.mamba

    @property
    def tensor_one(self) -> bool:
        """Whether it is known that the model cannot be split across ranks."""
        return self.model is not None and self.model.tensor_one

    @property
    def usual_tools(self) -> str:
        """The usual parser for the model's tool calls; … if unknown."""
        return self.model.tools[0] if self.model and self.model.tools else "…"

    @property
    def usual_reasoning(self) -> str:
        """The usual parser for the model's reasoning; … if unknown."""
        return self.model.thoughts[0] if self.model and self.model.thoughts else "…"

    @property
    def other_tools(self) -> bool:
        """Whether the tool parser is known not to fit the model."""
        known = self.model.tools if self.model else ()
        return bool(known and self.text(TOOLS)) and self.text(TOOLS) not in known

    @property
    def other_reasoning(self) -> bool:
        """Whether the reasoning parser is known not to fit the model."""
        known = self.model.thoughts if self.model else ()
        return bool(known and self.text(REASONING)) and self.text(REASONING) not in known

    @property
    def reasons(self) -> str | None:
        """Whether the model reasons: always, asked, never, or None if unknown."""
        return self.model.reasoning if self.model else None

    @property
    def fp4(self) -> bool:
        """Whether the weights are known to be in a four-bit block format."""
        return self.weights in {"nvfp4", "mxfp4"}

    @property
    def gemma_4(self) -> bool:
        """Whether the model is a Gemma 4."""
        return self.model is not None and self.model.name.startswith("Gemma 4")

    @property
    def fp8_cache(self) -> bool:
        """Whether the KV cache is set to FP8."""
        return (self.text("kv-cache-dtype") or "").startswith("fp8")

    @property
    def fp8(self) -> bool:
        """Whether weights or KV cache are FP8."""
        return self.weights == "fp8" or self.fp8_cache

    @property
    def dflash(self) -> bool:
        """Whether it drafts with DFlash."""
        return self._drafts_by("dflash")

    @property
    def dspark(self) -> bool:
        """Whether it drafts with DSpark."""
        return self._drafts_by("dspark")

    def _drafts_by(self, method: str) -> bool:
        """Whether it drafts by ``method``; without one the drafter's name counts, as in vllm/config/speculative.py."""
        return method in str(self.draft.get("method") or self.draft.get("model", "")).lower()

    @property
    def mtp(self) -> bool:
        """Whether the model's own layers draft: ``mtp``, or a family's older name such as ``nemotron_h_mtp``."""
        return str(self.draft.get("method", "")).endswith("mtp") and "model" not in self.draft

    @property
    def released(self) -> bool:
        """Whether the image is published by vLLM or NVIDIA."""
        return self.family in {"upstream", "ngc"}

    @property
    def version(self) -> str:
        """The image's vLLM as text; empty if not known exactly."""
        return versions.dotted(self.versions.exact) if self.versions.exact else ""

    @property
    def ranks(self) -> int:
        """Tensor parallel size."""
        size = self.playbook.tensor_parallel
        return self.nodes // self.playbook.pipeline_parallel if size == "auto" else size

    @property
    def drafts(self) -> bool:
        """Whether it decodes speculatively."""
        return bool(self.draft)

    @property
    def split(self) -> bool:
        """Whether the model is split across several GPUs."""
        return self.ranks * self.playbook.pipeline_parallel > 1

    @property
    def label(self) -> str:
        """The model as the playbook names it."""
        return self.playbook.model.label

    @property
    def runs(self) -> list[str]:
        """Shell lines of the setup, and words of the command."""
        return [*self.playbook.setup, *(self.playbook.command or ())]

    @property
    def mounts(self) -> list[str]:
        """Paths of mounts in the container."""
        return [mount.target for mount in self.playbook.mounts]

    def between(self, first: Version, end: Version) -> bool:
        """Whether the image's vLLM is known to be ``first`` or newer, and older than ``end``."""
        return bool(self.since(*first)) and self.since(*end) is False

    def path(self, flag: str) -> KeyPath:
        """Key path at which ``flag`` is, or would be, set."""
        return self.paths.get(flag, ("args",) if self.playbook.command is None else ("command",))

    def say(
        self,
        where: str | KeyPath | None,
        summary: str,
        *remedy: str,
        severity: Severity | None = None,
        node: str | None = None,
    ) -> Seen:
        """A finding of a rule, with the key's value, and the image and model.

        ``where`` is the name of an engine argument, or the path of another key; ``severity`` None means the rule's.
        """
        at = self.path(where) if isinstance(where, str) else where
        weights = f" ({self.kind})" if self.kind else ""
        about = f"{self.playbook.model.label}{weights} on {self.image or 'no image'} ({self.versions})"
        value = _written(self.playbook, at)
        return Seen(summary, f"{value}; {about}" if value else about, remedy, at, severity=severity, node=node)


_served = functools.lru_cache(maxsize=1)(Served)  # one for all rules of a run

Rule = Callable[[Served], Iterable[Seen]]

RULES: dict[str, Rule] = {}
"""Every rule that ``rule`` registered, by its code."""


def rule(code: str, title: str, *, severity: Severity = "warning", source: str) -> Callable[[Rule], Rule]:
    """Register a rule; its docstring is the reason, as for any check."""

    def register(body: Rule) -> Rule:
        @functools.wraps(body)
        def judge(context: Context) -> Iterable[Seen]:
            return body(_served(context))

        accept = "" if code in SECURITY else f", or accept it with allow: [{{code: {code}, reason: …}}]"
        remedy = f"change the key that the finding names{accept}"
        check(code, title, stage="written", severity=severity, source=source, remedy=remedy)(judge)
        RULES[code] = body
        return body

    return register


def percent(share: float) -> str:
    """``share`` without rounding: 0.825 is 82.5%."""
    return f"{share * 100:.3g}%"


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
