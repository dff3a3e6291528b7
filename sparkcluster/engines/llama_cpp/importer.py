"""Reads commands that start ``llama-server``, for ``sparkcluster import``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.engines.llama_cpp import ENGINE
from sparkcluster.engines.llama_cpp.command_line import MODEL
from sparkcluster.errors import UsageError
from sparkcluster.importer.commands import EngineCommand
from sparkcluster.importer.container import Container
from sparkcluster.importer.unknown import shown, unknown

# Older names, and short forms of options that are not arguments of a playbook.
_LONG = {
    "hf": "hf-repo", "hfr": "hf-repo", "hff": "hf-file", "m": "model", "a": "alias", "gpu-layers": "n-gpu-layers",
    "no-mmap": "load-mode: none", "mmap": "load-mode: mmap", "mlock": "load-mode: mlock",
}  # fmt: skip
# 9931 is the port of future releases: https://github.com/ggml-org/llama.cpp/pull/26508.
_DEFAULTS = {("host", "127.0.0.1"), ("host", "localhost"), ("port", "8080"), ("port", "9931")}


class LlamaImporter:
    """An ``Importer``."""

    ENGINE = "llama.cpp"
    TITLE = "llama.cpp"
    COMMAND = "llama-server"
    IMAGE_PROBLEM = "has no python3, which the launcher needs: build an image with playbooks/llama.cpp/Dockerfile"

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after ``llama-server``."""
        rest = [word for at, word in enumerate(words) if at > 0 or word not in {"exec", "nohup"}]
        return rest[1:] if rest and rest[0].rpartition("/")[2] == "llama-server" else None

    def is_entrypoint(self, image: str) -> bool:
        """Whether ``llama-server`` is the entrypoint of ``image``."""
        return re.match(r"ghcr\.io/gg(ml-org|erganov)/llama\.cpp:server", image) is not None

    def is_worker(self, words: Sequence[str]) -> bool:  # noqa: ARG002 - the interface's
        """False: llama.cpp has one rank."""
        return False

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:  # noqa: ARG002 - likewise
        """None: recipes do not start it through a script."""
        return None

    def read(self, words: list[str]) -> EngineCommand:
        """Reads the words; a flag is followed by its value, or by another flag.

        Raises:
            UsageError: they do not name the file.
        """
        served = EngineCommand()
        for name, value in _flags(words):
            _put(served, name, value)
        if "file" not in served.keys:
            hint = "add --hf-file NAME.gguf: the page of the repository lists its files"
            raise UsageError("the command does not say which GGUF of the repository to serve", hint=hint)
        return served


IMPORTER = LlamaImporter()


def _flags(words: list[str]) -> Iterator[tuple[str, str | bool]]:
    at = 0
    while at < len(words):
        written, equals, value = words[at].lstrip("-").partition("=")
        name, _, fixed = _LONG.get(written, ENGINE.short_arguments.get(written, written)).partition(": ")
        at += 1
        if fixed:
            yield name, fixed
            continue
        if not equals and at < len(words) and re.match(r"-\D", words[at]) is None:
            value, equals, at = words[at], "=", at + 1
        yield name, value if equals else True


def _put(served: EngineCommand, name: str, value: str | bool) -> None:
    text = "" if value is True else str(value)
    if lost := unknown(text):
        served.unset.append(text)
        served.notes.append(f"--{name}: skipped: {shown(', '.join(lost))} is not set")
    elif name == "model":
        served.model, _, served.keys["file"] = text.rpartition("/")
    elif name == "hf-repo":
        served.model = text.partition(":")[0]
    elif name == "hf-file":
        served.keys["file"] = text
    elif name == "alias":
        served.keys["served_name"], *served.keys["aliases"] = text.split(",")
    elif name == "mmproj":
        served.keys["files"] = [text.rpartition("/")[2]]
        served.args[name] = f"{MODEL}/{served.keys['files'][0]}"
    elif name in ENGINE.arguments:
        if (name, text) not in _DEFAULTS:
            written = f"--{name} {shown(text)}" if name in {"host", "port"} else f"--{name}"
            served.notes.append(f"{written}: write {ENGINE.arguments[name]}")
    elif name.startswith("no-") and value is True and name != "no-host":
        served.args[name.removeprefix("no-")] = False
    else:
        served.args[name] = _value(value)


def _value(value: str | bool) -> Any:
    if value in {"on", "off", "false"}:
        return value == "on"
    if isinstance(value, str) and re.fullmatch(r"-?(0|[1-9]\d{0,17})", value):
        return int(value)
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d{0,9}\.\d{1,9}", value) else value
