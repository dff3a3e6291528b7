"""Reads commands that start ``trtllm-serve``, for ``sparkcluster import``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.engines.tensorrt_llm import ENGINE
from sparkcluster.engines.tensorrt_llm.flags import OPTIONS
from sparkcluster.engines.tensorrt_llm.memory import FRACTION
from sparkcluster.importer.commands import EngineCommand
from sparkcluster.importer.container import Container
from sparkcluster.importer.unknown import shown, unknown

_FLAGS = frozenset({"trust-remote-code", "enable-chunked-prefill", "fail-fast-on-attention-window-too-large"})
_DEFAULTS = {("host", "127.0.0.1"), ("host", "localhost"), ("port", "8000"), ("tp-size", "1"), ("pp-size", "1")}


class TrtLlmImporter:
    """An ``Importer``."""

    ENGINE = "tensorrt-llm"
    TITLE = "TensorRT-LLM"
    COMMAND = "trtllm-serve"
    IMAGE_PROBLEM = ""

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after ``trtllm-serve``, or ``trtllm-serve serve``."""
        if not words or words[0].rpartition("/")[2] != "trtllm-serve":
            return None
        return list(words[2:] if words[1:2] == ["serve"] else words[1:])

    def is_entrypoint(self, image: str) -> bool:  # noqa: ARG002 - the interface's
        """False: no image has it as its entrypoint."""
        return False

    def is_worker(self, words: Sequence[str]) -> bool:  # noqa: ARG002 - likewise
        """False: sparkcluster starts one rank."""
        return False

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:  # noqa: ARG002 - likewise
        """None: recipes do not start it through a script."""
        return None

    def read(self, words: list[str]) -> EngineCommand:
        """Reads the words: the model, and options, most with a value."""
        served, rest = EngineCommand(), list(words)
        while rest:
            word = rest.pop(0)
            written, equals, value = word.partition("=")
            name = written.lstrip("-").replace("_", "-")
            if not word.startswith("-"):
                served.model = word
            elif name in _FLAGS:
                served.args[name] = True
            else:
                _put(served, name, value if equals or not rest else rest.pop(0))
        return served


IMPORTER = TrtLlmImporter()


def _put(served: EngineCommand, name: str, value: str) -> None:
    full = ENGINE.short_arguments.get(name, name)
    owner = ENGINE.arguments.get(name) or (None if full in {name, *ENGINE.known_arguments()} else full)
    if lost := unknown(value):
        served.unset.append(value)
        served.notes.append(f"--{name}: skipped: {shown(', '.join(lost))} is not set")
    elif name in {OPTIONS, "config"}:
        why = f"without it the KV cache takes {FRACTION} of the free memory"
        served.notes.append(f"--{name} {shown(value)}: write its content as a mapping, {OPTIONS}, under args; {why}")
    elif name in {"served-model-name", "revision"}:
        served.keys[{"revision": "revision"}.get(name, "served_name")] = value
    elif owner is None:
        served.args[full] = _value(value)
    elif (name, value) not in _DEFAULTS:
        served.notes.append(f"--{name} {shown(value)}: write {owner}")


def _value(text: str) -> Any:
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d{0,9}\.\d{1,9}", text) else text
