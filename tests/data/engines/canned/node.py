"""Data about Canned for the programs on nodes."""

from collections.abc import Iterable
from typing import Any

NAME = "canned"
LABEL = "canned.version"
INSPECTION = 'ENGINE = {"version": "1.0"}\n'


def is_official(entrypoint: list[str]) -> bool:
    """No image is built for it."""
    return False


def is_nvidia_image(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """NVIDIA builds no image for it."""
    return False


def keep_variables(env: dict[str, Any], names: Iterable[str], private: str) -> str | None:
    """Nothing to do: it runs without Ray."""
    return None


def command(words: list[str], env: dict[str, str], private: str) -> list[str]:
    """Nothing to add: it reads no file."""
    return words
