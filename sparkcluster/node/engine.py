"""The inference engine on a node, without any particular one.

The ``node.py`` of an engine's directory is sent to the nodes instead of this module, and has the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NAME = ""
"""The engine's name; what an image holds is read again for another engine."""

LABEL = ""
"""Label of NVIDIA's images of this engine, whose value is the engine's version."""

INSPECTION = "ENGINE = {}"
"""Statements that set ENGINE to what the interpreter has of the engine: version, flags, tool_parsers, and the like.

They may use what ``interpreter`` imports and defines before them.
"""


def built(entrypoint: list[str]) -> bool:
    """Whether an image with this entrypoint was built by the engine's makers."""
    return False


def nvidias(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """Whether NVIDIA built an image, by the names of its labels and variables."""
    return False


def keep_variables(env: dict[str, Any], names: Iterable[str], private: str) -> str | None:
    """Have Ray's workers on this node keep the variables ``names`` as they are in ``env``.

    Args:
        env: of the engine; may be changed.
        names: variables that must not be carried over from the head.
        private: folder that only we may read.

    Returns what was done, in words; None where the engine has no means for it.
    """
    return None
