"""Families of models, and how publishers store weights, as far as flags depend on them.

From public sources, not measured by sparkcluster. The config.json of a model on a node takes precedence.
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
"""Whether a model reasons before it answers: by default, on request, or not at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A family of models, as far as flags depend on it.

    Attributes:
        name: its usual name.
        ids: regular expression for the names of its repositories, in lower case.
        architectures: classes in config.json.
        moe: whether it is a mixture of experts; None if its members differ, and their names have the active share.
        hybrid: whether attention is mixed with linear or Mamba layers.
        mamba: whether some layers are Mamba layers.
        reasoning: None if its members differ, or unknown.
        tools: parsers for its tool calls, the usual one first; empty if unknown.
        thoughts: parsers for its reasoning, the usual one first; empty if unknown.
        context: tokens that it was trained for.
        longest: longer context that its maker documents, beyond config.json, or None.
        tensor_one: whether it cannot be split across ranks.
        needs: oldest vLLM that supports it, or None.
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
"""Quantisations of checkpoints by the names that --quantization takes."""


def family(name: str, architecture: str | None) -> Model | None:
    """The family of ``name``, a repository or a directory; else the family with ``architecture``.

    Models of one class have contexts of different lengths, so a family found by its class has no context.
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    named = (model for model in FAMILIES if re.search(model.ids, last))
    alike = (model for model in FAMILIES if architecture in model.architectures)
    return next(named, None) or next((dataclasses.replace(model, context=None, longest=None) for model in alike), None)


def kind(name: str) -> str | None:
    """How the weights of repository ``name`` are stored, by its publisher's naming scheme."""
    organisation, slash, repository = name.lower().partition("/")
    if not slash:
        return None
    for publisher, pattern, stored in _FILE["kinds"]:
        if re.fullmatch(publisher, organisation) and re.fullmatch(pattern, repository):
            return str(stored)
    return None
