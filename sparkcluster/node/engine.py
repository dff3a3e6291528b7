"""The part of an engine that runs on nodes: defaults.

The nodes get ``node.py`` of the engine's directory instead of this module; it defines the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NAME = ""
"""The engine's name. Facts of an image are cached per engine."""

LABEL = ""
"""Label of NVIDIA's images that contains the engine's version."""

INSPECTION = "ENGINE = {}"
"""Python statements that set ENGINE to the facts of the installed engine: version, flags, tool_parsers, and so on.

They run after the imports and definitions of ``interpreter``.
"""


def is_official(entrypoint: list[str]) -> bool:
    """Whether an image with this entrypoint is an official image of the engine."""
    return False


def is_nvidia_image(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """Whether NVIDIA built the image, by the names of its labels and variables."""
    return False


def keep_variables(env: dict[str, Any], names: Iterable[str], private: str) -> str | None:
    """Make Ray's workers on this node keep the variables ``names`` of ``env``.

    Args:
        env: environment of the engine; may be changed.
        names: variables that Ray must not copy from the head.
        private: folder that only the current user can read.

    Returns a description of the change; None if the engine does not support it.
    """
    return None


def command(words: list[str], env: dict[str, str], private: str) -> list[str]:
    """The command that runs in place of ``words``, those of ``Engine.serve``.

    Args:
        words: as the plan has them.
        env: of the engine; may be changed.
        private: folder that only we may read, for a file that the engine reads.
    """
    return words
