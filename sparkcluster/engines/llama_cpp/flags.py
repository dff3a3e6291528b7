"""The arguments of ``llama-server``: the tables of ``arguments.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8"))
GONE: Mapping[str, str] = _TABLES["gone"]
SHORT: Mapping[str, str] = _TABLES["short"]
ON_OR_OFF, WITHOUT_NEGATION, _TUNING, _OTHERS = (
    frozenset(_TABLES[name].split()) for name in ("on_or_off", "without_negation", "tuning", "others")
)
_KWARGS = frozenset({"enable_thinking", "thinking", "reasoning_effort"})


def tuning_arguments() -> Mapping[str, frozenset[str]]:
    """Implements ``Engine.tuning_arguments``."""
    return {**dict.fromkeys(_TUNING, frozenset[str]()), "chat-template-kwargs": _KWARGS}


def known_arguments() -> frozenset[str]:
    """Implements ``Engine.known_arguments``."""
    return _TUNING | _OTHERS | GONE.keys()
