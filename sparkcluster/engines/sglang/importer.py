"""Reads commands that start SGLang, for ``sparkcluster import``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sparkcluster.engines.sglang import flags
from sparkcluster.errors import UsageError
from sparkcluster.importer.commands import EngineCommand
from sparkcluster.importer.container import Container
from sparkcluster.importer.unknown import shown, unknown

_KEYS = frozenset({"served_name", "model.revision", "tensor_parallel", "pipeline_parallel"})
# Arguments that are dropped: sparkcluster sets them, or the value is already the default.
_DROPPED = {"nnodes", "node-rank", "dist-init-addr", "enable-metrics", "host=127.0.0.1", "host=localhost"}


class SglangImporter:
    """An ``Importer``."""

    ENGINE = "sglang"
    TITLE = "SGLang"
    COMMAND = "sglang.launch_server"
    IMAGE_PROBLEM = ""

    def after_command(self, words: Sequence[str]) -> list[str] | None:
        """The words after ``python3 -m sglang.launch_server`` or ``sglang serve``."""
        rest = [word for at, word in enumerate(words) if at > 0 or word not in {"exec", "nohup"}]
        if len(rest) > 1 and rest[0].rpartition("/")[2] == "sglang" and rest[1] == "serve":
            return ["--model-path", *rest[2:]] if rest[2:3] and not rest[2].startswith("-") else rest[2:]
        found = re.match(r"(?:\S*/)?python[0-9.]*(?: -[A-Zu]+)* -m sglang\.launch_server(?: |$)", " ".join(rest))
        return rest[len(found[0].split()) :] if found else None

    def is_entrypoint(self, image: str) -> bool:  # noqa: ARG002 - the interface's
        """False: no image has SGLang as its entrypoint; guides write the command."""
        return False

    def is_worker(self, words: Sequence[str]) -> bool:
        """Whether the words after the command start a rank other than the first."""
        split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
        return [value for name, value in pairwise(split) if name == "--node-rank"][-1:] not in ([], ["0"])

    def launched(self, words: list[str], env: Mapping[str, str | None]) -> Container | None:  # noqa: ARG002 - likewise
        """None: recipes do not start it through a script."""
        return None

    def read(self, words: list[str]) -> EngineCommand:
        """Reads the words after the command; the value of a flag is all words up to the next flag.

        Raises:
            UsageError: the command names no model.
        """
        served = EngineCommand()
        for name, values in _flags(words):
            _put(served, name, values)
        if served.model is None:
            raise UsageError("the command names no model", hint="add --model-path OWNER/NAME")
        return served


IMPORTER = SglangImporter()


def _flags(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    at = 0
    while at < len(words):
        written, equals, value = words[at].partition("=")
        values, at = [value] if equals else [], at + 1
        while at < len(words) and not re.match(r"--?[A-Za-z]", words[at]):
            values, at = [*values, words[at]], at + 1
        yield written.lstrip("-").replace("_", "-"), values


def _put(served: EngineCommand, name: str, values: list[str]) -> None:
    text, bare = " ".join(values), name.removeprefix("no-")
    owner = flags.OWNERS.get(name) or flags.SHORT.get(name, name)
    if owner == flags.OWNERS["model-path"]:
        served.model = text
    elif lost := unknown(text):
        served.unset += [] if name in flags.OWNERS else values
        served.notes.append(f"--{name}: skipped: {shown(', '.join(lost))} is not set")
    elif owner in _KEYS:
        served.keys[owner.removeprefix("model.")] = int(text) if re.fullmatch(r"\d{1,5}", text) else text
    elif name in flags.OWNERS and not _DROPPED & {name, f"{name}={text}"}:
        written = f"--{name} {shown(text)}" if name in {"host", "port"} else f"--{name}"
        served.notes.append(f"{written}: write {owner}")
    elif bare in flags.NEGATED and not values:
        served.args[bare] = name == bare
    elif name not in _DROPPED and name not in flags.OWNERS:
        served.args[owner] = _value(values)
        if gone := flags.GONE.get(name):
            served.notes.append(f"--{name}: SGLang has no such argument; {gone}")


def _value(values: list[str]) -> Any:
    if len(values) != 1:
        return [_value([each]) for each in values] or True
    text = f"0{values[0]}" if values[0].startswith(".") else values[0]
    try:
        return json.loads(text) if text[:1] in "{-0123456789" else text
    except (ValueError, RecursionError):
        return values[0]
