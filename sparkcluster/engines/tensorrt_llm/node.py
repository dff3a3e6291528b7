"""TensorRT-LLM on a node: reads an image, writes its options file. Sent instead of ``sparkcluster.node.engine``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

NAME = "tensorrt-llm"
LABEL = ""

# The package is not imported, since that takes half a minute and needs a GPU.
INSPECTION = """
sources = glob.glob(os.path.join(folder("tensorrt_llm") or "/nowhere", "commands", "*.py"))
names = {name.replace("_", "-") for path in sources for name in re.findall(r'"--([a-z][a-z0-9_]+)"', text(path))}
ENGINE = {"version": installed("tensorrt_llm", "tensorrt-llm"), "flags": sorted(names)}
"""


def is_official(entrypoint: list[str]) -> bool:
    """False: all its images are NVIDIA's (``is_nvidia_image``)."""
    return False


def is_nvidia_image(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """Whether NVIDIA built an image: docker/Dockerfile.multi of TensorRT-LLM sets the variable."""
    return "TRT_LLM_VERSION" in variables


def keep_variables(env: dict[str, Any], names: Iterable[str], private: str) -> str | None:
    """None: TensorRT-LLM runs without Ray."""
    return None


def command(words: list[str], env: dict[str, str], private: str) -> list[str]:
    """Write the options file; returns ``words`` with the file's path instead of its content."""
    at = words.index("--extra_llm_api_options") + 1 if "--extra_llm_api_options" in words[:-1] else 0
    if not at or not words[at].startswith("{"):
        return words
    path = os.path.join(private, "options.yaml")
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(words[at] + "\n")
    return [*words[:at], path, *words[at + 1 :]]
