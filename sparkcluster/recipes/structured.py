"""Recipes in YAML or JSON: what one format is, and its keys with the type that they must have."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.serve import Command, Importer, playbook
from sparkcluster.recipes.shell import Script, shown
from sparkcluster.spec.document import Document, KeyPath, parse

Read = tuple[dict[str, Any], list[str]]
"""A playbook as data, and notes on what could not be carried over."""

_DATA, _TEXT = frozenset({".yaml", ".yml", ".json"}), frozenset({".md", ".markdown", ".service"})
_KEY = re.compile(r"[\"']?[A-Za-z_][\w.-]*[\"']?:(\s|$)")
_LONGEST = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A format of recipes.

    Attributes:
        title: as the list of supported formats has it.
        fits: whether a document is of this format, by keys that no other format has.
        read: the playbook of a document, with the values that the user chose by name (``--define NAME=VALUE``).
        informational: keys at the top that start nothing; ambiguous values in them do not matter.
    """

    title: str
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Fields, Mapping[str, str]], Read]
    informational: frozenset[str] = frozenset()


def is_structured(text: str, source: str) -> bool:
    """Whether ``text`` is YAML or JSON rather than shell text: by the name of its file, else by its first lines."""
    suffix = PurePath(source).suffix.lower()
    if suffix in _DATA | _TEXT or text.startswith("#!"):
        return suffix in _DATA
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if any(line.startswith("```") for line in lines):
        return False  # a page with blocks of code
    if lines and lines[0].rstrip() == "---":
        lines = lines[1:]
        if any(line.rstrip() == "---" for line in lines):
            return False  # the front matter of a page
    if not lines:
        return False
    if lines[0].startswith("{"):
        return bool(re.match(r"\{\s*(\"|\}|$)", "\n".join(lines)))
    keys = [line for line in lines if _KEY.match(line)]
    below = len(lines) > 1 and lines[0].rstrip().endswith(":") and lines[1].startswith((" ", "-"))
    return bool(keys) and lines[0] is keys[0] and (len(keys) > 1 or below)


def load(text: str, source: str) -> Fields:
    """The top of a document in YAML or JSON.

    Raises:
        SpecError: it is neither, or no mapping.
    """
    if text.lstrip().startswith("{"):
        # JSON may be indented by tabs, which YAML may not; no text of JSON goes over a line.
        text = re.sub(r"^[ \t]+", lambda found: found[0].replace("\t", " "), text, flags=re.MULTILINE)
    document = parse(text, source)
    lines = text.splitlines()
    document.problems = [problem for problem in document.problems if not _repeated(problem, lines)]
    return Fields(document, document.data, ())


def _repeated(problem: Problem, lines: Sequence[str]) -> bool:
    """Whether a key is there twice with the same value on the same line, which changes nothing."""
    first = re.match(r"duplicate key, first in line (\d+)", problem.message)
    if not first or int(first[1]) == problem.line:
        return False
    line = lines[problem.line - 1]
    return line == lines[int(first[1]) - 1] and bool(re.search(r":[ \t]+[^\s|>&*{\[]\S*[ \t]*$", line))


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of a recipe.

    Attributes:
        document: with the place of every key.
        data: the mapping.
        path: where it is in the document.
    """

    document: Document
    data: dict[str, Any]
    path: KeyPath

    @property
    def source(self) -> str:
        """Name of the file."""
        return self.document.file

    def fault(self, key: str | int, message: str, hint: str | None = None) -> SpecError:
        """The error at ``key``, or at this mapping if it is not there."""
        return SpecError([self.document.problem((*self.path, key), message, hint)])

    def ensure(self, informational: frozenset[str] = frozenset()) -> None:
        """Raise a SpecError for duplicate keys and ambiguous values below other keys than ``informational``."""
        tops = tuple(f"{key}{mark}" for key in informational for mark in (".", "["))
        problems = [
            problem
            for problem in self.document.problems
            if not problem.path.startswith(tops)
            and (problem.path not in informational or "duplicate" in problem.message)
        ]
        if problems:
            raise SpecError(problems)

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.optional_text(key)
        if value is None:
            raise self.fault(key, f"{key} must be text", f"write {key}: …")
        return value

    def optional_text(self, key: str) -> str | None:
        """A text; None where it is missing, empty or null."""
        value = self.data.get(key)
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if not isinstance(value, str):
            raise self.fault(key, f"{key} must be text", f"write {key}: …")
        return value

    def mapping(self, key: str) -> Fields:
        """A mapping; empty where it is missing or null."""
        value = self.data.get(key)
        value = {} if value is None or value == [] else value
        if not isinstance(value, dict):
            raise self.fault(key, f"{key} must be a mapping", f"write {key}: with lines below it")
        return Fields(self.document, value, (*self.path, key))

    def items(self, key: str) -> list[Any]:
        """A list; empty where it is missing or null."""
        value = self.data.get(key)
        value = [] if value is None or value == {} else value
        if not isinstance(value, list):
            raise self.fault(key, f"{key} must be a list", f"write {key}: with lines below it that begin with '- '")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts and numbers, as texts."""
        values = self.items(key)
        for index, value in enumerate(values):
            if value is None or isinstance(value, dict | list):
                at = Fields(self.document, {}, (*self.path, key))
                raise at.fault(index, f"{key} must be a list of text", "quote it if it is a text")
        return [self.scalar(value, (*self.path, key, index)) for index, value in enumerate(values)]

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing or null."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fault(key, f"{key} must be true or false", f"write {key}: true")
        return bool(value)

    def count(self, key: str) -> int | None:
        """A number from 1; None where it is missing or null."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,8}", value):
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(key, f"{key} must be a number from 1", f"write {key}: 1")
        return value

    def written(self, key: str) -> str:
        """A scalar as ``str`` gives what PyYAML reads, by which runners in Python fill it in."""
        value = self.data[key]
        if isinstance(value, dict | list):
            raise self.fault(
                key, f"{key} is a {'mapping' if isinstance(value, dict) else 'list'} where text is filled in",
                "write JSON in single quotes",
            )  # fmt: skip
        return self.scalar(value, (*self.path, key))

    def scalar(self, value: Any, path: KeyPath) -> str:
        """``value`` as text: ``True`` and ``None`` as Python has them, numbers as they are written."""
        written = self.document.written.get(path, "")
        # PyYAML takes 1e5 for text: to be a number, it needs a dot and a sign.
        text = isinstance(value, float) and "e" in written.lower() and not ("." in written and {*"-+"} & {*written[1:]})
        return written if text else str(value)

    def unknown(self, known: frozenset[str], why: str) -> list[str]:
        """A note for each key that is not ``known``."""
        return [f"{shown(key)}: {why}" for key in self.data if key not in known]


def short(text: str) -> str:
    """``text`` on one line for a note, without secrets."""
    line = " ".join(shown(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def named(document: dict[str, Any], *, name: str | None, description: object) -> None:
    """Put the name and the description of a recipe into its playbook."""
    if name:
        document["name"] = name
    if isinstance(description, str) and description.strip():
        document["description"] = " ".join(description.split())


def started(
    top: Fields, container: Container, text: str, importer: Importer, *, lost: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The playbook of the shell text ``command`` of a recipe, run in its container; ``lost`` are notes to begin with.

    Raises:
        SpecError: it starts another engine, or cannot be read.
    """
    env = {name: value for name, value in container.env.items() if value is not None}
    try:
        command = Command.nested(text, dict(env), Script(), importer)
        if command is None:
            hint = f"write a command with `{importer.COMMAND} …`"
            raise top.fault("command", f"the command does not start `{importer.COMMAND}`", hint)
        container.notes = [*lost, *_extended(command, text, env), *container.notes]
        return playbook(container, command, {}, importer)
    except SpecError:
        raise
    except UsageError as error:
        raise top.fault("command", error.message, error.hint) from None


def _extended(command: Command, text: str, env: Mapping[str, str]) -> list[str]:
    """Take out variables that ``text`` sets to their own value and more, if the image has that value; notes on them.

    ``env`` are those that the recipe sets for the container.
    """
    notes: list[str] = []
    for name in [name for name in command.env if name not in env]:
        if re.search(rf"\b{name}=[^\n;]*\$({name}\b|{{{name}\b)", text):
            del command.env[name]
            notes.append(f"{shown(name)}: the command extends what the image has; write the whole value under env")
    return notes


def set_by_runner(document: Mapping[str, Any], variables: Mapping[str, str], runner: str) -> list[str]:
    """A note on ``variables`` that the runner gives every container, unless the recipe sets them itself."""
    lost = [f"{name}={value}" for name, value in variables.items() if name not in document.get("env", {})]
    return [f"{runner} itself sets {', '.join(lost)}: write them under env if you miss them"] if lost else []


def ranks(document: Mapping[str, Any]) -> int:
    """How many Sparks a playbook with fixed sizes needs: tensor, pipeline and data parallel multiplied."""
    data = document.get("args", {}).get("data-parallel-size", 1)
    sizes = (document.get("tensor_parallel", 1), document.get("pipeline_parallel", 1), data)
    return math.prod(size for size in sizes if isinstance(size, int))


def chosen(at: Fields, key: str, of: Sequence[str], choices: Mapping[str, str], what: str) -> str | None:
    """The entry of ``of`` that the user chose by ``key``; None where nothing is chosen.

    Raises:
        SpecError: it is not among them.
    """
    value = choices.get(key)
    if value is not None and value not in of:
        raise at.fault(
            what, f"--define {key}={shown(value)}: there is none of that name", f"choose from: {', '.join(of)}"
        )
    return value
