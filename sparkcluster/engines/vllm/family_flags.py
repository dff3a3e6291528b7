"""Families of models, and how publishers store weights, as far as it decides about flags.

Nothing here was measured by sparkcluster; where a node has the model, its config.json counts and not this.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sparkcluster.engines.vllm.versions import numbers
from sparkcluster.fit.defaults import Version

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


def _model(row: Mapping[str, Any]) -> Model:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    values["needs"] = numbers(row.get("needs", ""))
    return Model(**values)


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FAMILIES = tuple(_model(row) for row in _FILE["families"])
NAMES: Mapping[str, Sequence[str]] = _FILE["names"]
"""Quantisations of checkpoints under the names that --quantization takes."""


def family(name: str, architecture: str | None) -> Model | None:
    """The family of ``name``, a repository or a directory; else the one that has ``architecture``.

    One class serves models that were trained for contexts of different lengths, so by class alone none is named.
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    named = (model for model in FAMILIES if re.search(model.ids, last))
    alike = (model for model in FAMILIES if architecture in model.architectures)
    return next(named, None) or next((dataclasses.replace(model, context=None, longest=None) for model in alike), None)


def kind(name: str) -> str | None:
    """How the weights of repository ``name`` are stored, as its publisher names them."""
    organisation, slash, repository = name.lower().partition("/")
    if not slash:
        return None
    for publisher, pattern, stored in _FILE["kinds"]:
        if re.fullmatch(publisher, organisation) and re.fullmatch(pattern, repository):
            return str(stored)
    return None
