"""The arguments of ``sglang.launch_server``: the tables of ``arguments.toml``, and repositories that some name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.spec.playbook import REPOSITORY, REVISION, Playbook

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8"))
OWNERS, VARIABLES, GONE, SHORT, COMMON = (_TABLES[name] for name in ("owners", "variables", "gone", "short", "common"))
NEGATED, _KNOWN, _OLDER = (frozenset(_TABLES[name].split()) for name in ("negated", "known", "older"))
_KWARGS = frozenset({"enable_thinking", "thinking", "reasoning_effort"})
_FORMATS = {"mistral": "mistral", "auto": None, "safetensors": None, "fastsafetensors": None, "layered": None}
# Arguments that name a repository, and the argument with its revision; empty if there is none.
_NAMES = {"speculative-draft-model-path": "speculative-draft-model-revision", "tokenizer-path": ""}


def arguments(playbook: Playbook) -> dict[str, Any]:
    """The playbook's arguments, with dashes as SGLang spells them."""
    return {name.replace("_", "-"): value for name, value in playbook.args.items()}


def known_arguments() -> frozenset[str]:
    """Implements ``Engine.known_arguments``; includes arguments of older releases."""
    return _KNOWN | _OLDER


def tuning_arguments() -> Mapping[str, frozenset[str]]:
    """Implements ``Engine.tuning_arguments``."""
    return {**dict.fromkeys(_TABLES["tuning"].split(), frozenset[str]()), "default-chat-template-kwargs": _KWARGS}


def tuning_variables() -> frozenset[str]:
    """Implements ``Engine.tuning_variables``."""
    return frozenset(_TABLES["tuning_variables"].split())


def repositories(playbook: Playbook) -> dict[str, str]:
    """Implements ``Engine.repositories``: draft model, tokenizer and adapters.

    Raises:
        UsageError: a revision is invalid.
    """
    args = arguments(playbook)
    named = [(args.get(name), args.get(revision)) for name, revision in _NAMES.items()]
    adapters = json.dumps(args.get("lora-paths"), default=str)
    named += [(each, None) for each in re.findall(rf'(?:["=])({REPOSITORY})(?=["\\])', adapters)]
    found = {str(name): str(revision or "main") for name, revision in named if re.fullmatch(REPOSITORY, str(name))}
    for name, revision in found.items():
        if ".." in revision or not re.fullmatch(REVISION, revision):
            raise UsageError(f"{name} has no revision {revision[:60]}", hint="write a branch, tag or commit under args")
    return found


def weights_format(playbook: Playbook) -> str | None:
    """Implements ``Engine.weights_format``, by ``load-format``."""
    return _FORMATS.get(str(arguments(playbook).get("load-format") or "auto").lower(), "any")
