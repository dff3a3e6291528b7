"""What is known of the arguments of ``llama-server``: the tables of ``arguments.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8"))
GONE: Mapping[str, str] = _TABLES["gone"]
SHORT: Mapping[str, str] = _TABLES["short"]
ON_OR_OFF, WITHOUT_NEGATION, _KNOWN = (
    frozenset(_TABLES[name].split()) for name in ("on_or_off", "without_negation", "known")
)
_KWARGS = frozenset({"enable_thinking", "thinking", "reasoning_effort"})


def tuning_arguments() -> Mapping[str, frozenset[str]]:
    """As ``Engine.tuning_arguments`` says."""
    return {**dict.fromkeys(_TABLES["tuning"].split(), frozenset[str]()), "chat-template-kwargs": _KWARGS}


def known_arguments() -> frozenset[str]:
    """Those that look like another that sparkcluster sets; llama.cpp has no abbreviations."""
    return _KNOWN
