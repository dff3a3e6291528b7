"""The options of ``trtllm-serve``: the tables of ``arguments.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIONS = "extra-llm-api-options"
_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text(encoding="utf-8"))


def known_arguments() -> frozenset[str]:
    """Implements ``Engine.known_arguments``."""
    return frozenset({OPTIONS, *_TABLES["tuning"].split(), *_TABLES["others"].split()})


def tuning_arguments() -> Mapping[str, frozenset[str]]:
    """Implements ``Engine.tuning_arguments``."""
    return {**dict.fromkeys(_TABLES["tuning"].split(), frozenset[str]()), OPTIONS: frozenset(_TABLES["keys"].split())}


def tuning_variables() -> frozenset[str]:
    """Implements ``Engine.tuning_variables``."""
    return frozenset(_TABLES["variables"].split())
