"""SGLang on a node: reading an interpreter, and the file with its key. Sent instead of ``sparkcluster.node.engine``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

NAME = "sglang"
LABEL = ""
KEY = "SGLANG_API_KEY"

# Arguments are read from SGLang's source: the parser's calls, and from 0.5.10 on the fields annotated with A[…],
# which newer releases keep in separate files. Parsers are the keys of two dictionaries.
INSPECTION = """
def words(pattern, *paths):
    return sorted({word for path in paths for word in re.findall(pattern, text(path), re.M)})
def keys(path, name):
    table = re.search(name + r"[^\\n]*= {(.*?)}", text(top, path), re.S)
    return re.findall(r'"([^"\\s]+)":', table.group(1)) + ["auto"]
def asked(reader, *parts):
    try:
        return reader(*parts) or None
    except Exception:
        return None
top = folder("sglang") or ""
fields = [*glob.glob(os.path.join(top, "srt/arg_groups/fields/*.py")), os.path.join(top, "srt/server_args.py")]
flags = {*(asked(words, r'"--([a-z0-9-]+)"', *fields) or ()), *(
    word.replace("_", "-") for word in asked(words, r"^    ([a-z0-9_]+): A\\[", *fields) or ())}
ENGINE = {
    "version": installed("sglang"),
    "flags": sorted(flags) if {"host", "tp-size", "context-length"} <= flags else None,
    "tool_parsers": asked(keys, "srt/function_call/function_call_parser.py", "ToolCallParserEnum"),
    "reasoning_parsers": asked(keys, "srt/parser/reasoning_parser.py", "DetectorMap"),
}
"""


def is_official(entrypoint: list[str]) -> bool:
    """False: upstream's images keep the entrypoint of CUDA's image (docker/Dockerfile), which many images have."""
    return False


def is_nvidia_image(labels: Iterable[str], variables: Iterable[str]) -> bool:
    """Whether NVIDIA built an image: nvcr.io/nvidia/sglang sets its version, as its other images do."""
    return "NVIDIA_SGLANG_VERSION" in variables


def keep_variables(env: dict[str, Any], names: Iterable[str], private: str) -> str | None:
    """None: SGLang runs without Ray."""
    return None


def command(words: list[str], env: dict[str, str], private: str) -> list[str]:
    """Returns ``words`` with ``--config`` and a file that has the key; removes the key from the environment.

    Only the current user can read the file. Every release merges the file into the command line before it parses it
    (``ConfigArgumentMerger``), so a key with a leading dash would be parsed as an argument.
    """
    key = env.pop(KEY, None)
    if not key:
        return words
    if key.startswith("-"):
        raise ValueError("SGLang cannot take a key that begins with a dash: make another, and restart")
    path = os.path.join(private, "sglang.yaml")
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump({"api-key": key}, file)  # JSON is valid YAML
    return [*words, "--config", path]
