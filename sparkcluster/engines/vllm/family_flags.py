"""Families of models, and how publishers store weights, as far as it decides about flags.

Nothing here was measured by sparkcluster; where a node has the model, its config.json counts and not this.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Literal, cast

from sparkcluster.engines.vllm.versions import numbers
from sparkcluster.fit.defaults import Version

TABLE = Path(__file__).with_name("family_flags.tsv")

Reasoning = Literal["always", "asked", "never"]
"""Whether a model thinks before it answers: unless told not to, only when told to, or not at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A family of models, as far as it decides about flags.

    Attributes:
        name: as people call it.
        ids: regular expression for the end of its repositories, in lower case.
        architectures: classes that config.json names.
        moe: whether it is a mixture of experts; None where its members differ, and the name has the active share.
        hybrid: whether attention is mixed with linear or Mamba layers.
        mamba: whether some are Mamba layers.
        reasoning: None where its members differ or it is not known.
        tools: parsers for its tool calls, the usual one first; empty where it is not known.
        thoughts: parsers for its reasoning, likewise.
        context: tokens that it was trained for.
        longest: tokens that its maker names beyond those of config.json, or None.
        tensor_one: whether it cannot be divided among ranks.
        needs: vLLM that knows it, or None.
    """

    name: str
    ids: str
    architectures: tuple[str, ...] = ()
    moe: bool | None = None
    hybrid: bool = False
    mamba: bool = False
    reasoning: Reasoning | None = None
    tools: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    context: int | None = None
    longest: int | None = None
    tensor_one: bool = False
    needs: Version | None = None


@functools.cache
def table() -> tuple[Model, ...]:
    """Every family, special ones before general ones."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(_model(*line.split("\t")) for line in lines if not line.startswith("#"))


Kind = Literal["modelopt", "compressed-tensors", "mxfp4", "fp8", "gptq", "awq", "bf16"]

# What publishers call their repositories, where config.json was not read: organisation, rest, kind.
KINDS: tuple[tuple[str, str, Kind], ...] = (
    (r"openai", r"gpt-oss-\d+b", "mxfp4"),
    (r"nvidia", r".*(nvfp4|fp8|fp4).*", "modelopt"),
    (r"bg-digitalservices", r"gemma-4-26b-a4b-it-nvfp4", "modelopt"),
    (r"(redhatai|neuralmagic)", r".*(nvfp4|fp8|w4a16|w8a8).*", "compressed-tensors"),
    (r"(unsloth|sakamakismile|llm-compressor)", r".*nvfp4.*", "compressed-tensors"),
    (r"(qwen|deepseek-ai|minimaxai|zai-org)", r".*-fp8(-dynamic)?", "fp8"),
    (r".*", r".*gptq.*", "gptq"),
    (r".*", r".*awq.*", "awq"),
    (r".*", r".*-bf16", "bf16"),
    (
        r"(qwen|google|meta-llama|mistralai|poolside)",
        r"(?!.*(nvfp4|fp8|fp4|int4|int8|gptq|awq|gguf|mxfp4|bnb|nf4|quant|w4a|w8a)).*",
        "bf16",
    ),
)

# The same quantisation under the names that --quantization takes.
NAMES: dict[str, frozenset[str]] = {
    "modelopt": frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"}),
    "compressed-tensors": frozenset({"compressed-tensors"}),
    "mxfp4": frozenset({"mxfp4", "gpt_oss_mxfp4"}),
    "fp8": frozenset({"fp8"}),
    "gptq": frozenset({"gptq", "gptq_marlin"}),
    "awq": frozenset({"awq", "awq_marlin"}),
}


def family(name: str, architecture: str | None) -> Model | None:
    """The family of ``name``, a repository or a directory; else the one that has ``architecture``.

    One class serves models that were trained for contexts of different lengths, so by class alone none is named.
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    named = (model for model in table() if re.search(model.ids, last))
    alike = (model for model in table() if architecture in model.architectures)
    return next(named, None) or next((dataclasses.replace(model, context=None, longest=None) for model in alike), None)


def kind(name: str) -> Kind | None:
    """How the weights of repository ``name`` are stored, as its publisher names them."""
    organisation, slash, repository = name.lower().partition("/")
    if not slash:
        return None
    for publisher, pattern, stored in KINDS:
        if re.fullmatch(publisher, organisation) and re.fullmatch(pattern, repository):
            return stored
    return None


_TRUTH = {"yes": True, "no": False}


def _model(name: str, ids: str, *columns: str) -> Model:
    architectures, moe, hybrid, mamba, reasoning, tools, thoughts, context, longest, tensor_one, needs = columns
    return Model(
        name,
        ids,
        _list(architectures),
        _TRUTH.get(moe),
        _TRUTH[hybrid],
        _TRUTH[mamba],
        cast("Reasoning | None", None if reasoning == "-" else reasoning),
        _list(tools),
        _list(thoughts),
        None if context == "-" else int(context),
        None if longest == "-" else int(longest),
        _TRUTH[tensor_one],
        numbers(needs),
    )


def _list(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))
