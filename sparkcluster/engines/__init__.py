"""Inference engines: one directory each, with everything that is specific to the engine."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.engines.base import Engine

DEFAULT = "vllm"


def names() -> list[str]:
    """Names of all engines: those of the directories here."""
    return sorted(file.parent.name for place in __path__ for file in Path(place).glob("*/__init__.py"))


@functools.cache
def engine(name: str) -> Engine:
    """The engine of that name; its directory is imported by the first call.

    Raises:
        KeyError: no directory has that name.
    """
    if name not in names():
        raise KeyError(name)
    found: Engine = importlib.import_module(f"{__name__}.{name}").ENGINE
    return found
