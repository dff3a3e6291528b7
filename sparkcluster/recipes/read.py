"""From the text of a recipe or script to a playbook."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.recipes import write
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.container import read as read_container
from sparkcluster.recipes.serve import Command, Importer, playbook
from sparkcluster.recipes.shell import MARKS, Script, assignment, parse, plain
from sparkcluster.spec import Playbook, check, messages
from sparkcluster.spec.document import parse as parse_yaml
from sparkcluster.spec.secret_patterns import without_secrets

_DOCKER = frozenset({"docker", "podman", "nerdctl"})
_BEFORE = frozenset({"sudo", "nohup", "exec", "time", "command", "env"})
_QUIET = frozenset({"set", "echo", "printf", "cd", "mkdir", "sleep", "exit", "true", ":", "clear", "trap", "shopt"})


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """A playbook made of something else.

    Attributes:
        text: the playbook as YAML, with what was left out in its comments.
        document: the same as data.
        left: what could not be carried over, and what to do about it.
    """

    text: str
    document: dict[str, Any]
    left: tuple[str, ...]


def convert(text: str, source: str, *, name: str | None = None) -> Imported:
    """Make a playbook of a recipe in YAML, or of a command or script that starts an engine.

    The playbook says that it comes from ``source``; its name is by default the container's, or the model's.

    Raises:
        UsageError: nothing in it starts an engine, or it needs what no playbook may have.
        SpecError: it is YAML, and broken.
    """
    if MARKS & set(text):
        raise UsageError(f"{source} contains characters that are not text", hint="is this the right file?")
    odd = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise UsageError(f"{source}: line {line} holds the character \\x{ord(odd[0]):02x}", hint="is it a text file?")
    importers = [found for name_ in engines.names() if (found := engines.engine(name_).importer) is not None]
    recipes = [importer for importer in importers if importer.is_recipe(text)]
    document, left = recipes[0].recipe(text, source) if recipes else _script(text, source, importers)
    if name is not None:
        document["name"] = name
    left = [without_secrets(line, "…") for line in dict.fromkeys(left)]
    made = write.text(document, source, left)
    _validated(made, source)
    return Imported(made, document, tuple(left))


def _script(text: str, source: str, importers: list[Importer]) -> tuple[dict[str, Any], list[str]]:
    script = parse(text)
    left = list(script.left)
    chosen: tuple[Container | None, Command, Importer] | None = None
    downloads: dict[str, str] = {}
    for words in script.commands:
        env, rest = _bare(words, importers)
        found = next((engine for importer in importers if (engine := _started(rest, env, script, importer))), None)
        if found is None:
            _downloaded(rest, downloads)
            if rest and rest[0] not in _QUIET and not _downloads(rest):
                left.append(f"the command {_cut(words)}")
        elif chosen is None:
            chosen = found
        else:
            left.append(f"only the first engine of the text is imported, not {_cut(words)}")
    if chosen is None:
        command = importers[0].COMMAND
        raise UsageError(
            f"{source} starts no {' or '.join(engines.engine(importer.ENGINE).title for importer in importers)}",
            hint=f"give a recipe, or a text with `docker run … {command} …` or `{command} …` in it",
        )
    container, chosen_command, importer = chosen
    document, more = playbook(container, chosen_command, downloads, importer)
    return document, [*more, *left]


def _bare(words: list[str], importers: list[Importer]) -> tuple[dict[str, str], list[str]]:
    """Assignments in front of a command, and the command without what only wraps it."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest:
        assigned = assignment(rest[0])
        if assigned is not None:
            env[assigned[0]] = assigned[1]
        elif rest[:2] == ["uv", "run"] or rest[0] == "uvx":
            return env, _launched(rest[1:], importers)
        elif rest[0] not in _BEFORE:
            break
        elif rest[0] == "sudo":
            rest = _after_flags(rest)
            continue
        rest = rest[1:]
    return env, rest


def _after_flags(words: list[str]) -> list[str]:
    """What stands behind sudo and its flags, of which -u and -g take a word."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in {"-u", "-g"} else 1
    return words[at:]


def _launched(words: list[str], importers: list[Importer]) -> list[str]:
    """What uv runs: from the first word on that starts an engine."""
    for at in range(len(words)):
        if any(importer.after_command(words[at:]) is not None for importer in importers):
            return words[at:]
    return words


def _started(
    rest: list[str], env: dict[str, str], script: Script, importer: Importer
) -> tuple[Container | None, Command, Importer] | None:
    """The engine that a command starts, in a container or not."""
    container: Container | None = None
    if rest and rest[0].rpartition("/")[2] in _DOCKER:
        words = rest[1:]
        if words[:1] == ["container"]:
            words = words[1:]
        if words[:1] != ["run"] or _other(words):
            return None
        container = read_container(words[1:])
        command = importer.by_variables(container) or Command.of(container, script, importer)
    elif rest and (container := importer.launched(rest)) is not None:
        command = Command.of(container, script, importer)
    else:
        command = Command.plain(rest, env, script, importer)
    return (container, command, importer) if command is not None else None


def _other(words: list[str]) -> bool:
    """Whether a ``docker run`` only looks at something, as ``nvidia-smi`` or ``--version``."""
    return words[-1] in {"nvidia-smi", "--version", "--help", "bash", "sh"} or "bench" in words


def _downloads(words: list[str]) -> bool:
    return words[:2] in (["hf", "download"], ["huggingface-cli", "download"])


def _downloaded(words: list[str], downloads: dict[str, str]) -> None:
    """Remember which repository a directory was downloaded from."""
    if not _downloads(words):
        return
    for index, word in enumerate(words[:-1]):
        if word == "--local-dir":
            downloads[words[index + 1].rstrip("/")] = words[2]


def _cut(words: list[str]) -> str:
    line = plain(" ".join(words)).replace("\n", " ")
    return line if len(line) <= 80 else f"{line[:79]}…"


def _validated(text: str, source: str) -> None:
    """Refuse what no playbook may have, before it is written to a file.

    Raises:
        UsageError: the first thing that is wrong, in terms of the recipe.
    """
    problems: list[Problem]
    try:
        document = parse_yaml(text, source)
        problems = list(document.problems)
        try:
            problems += check.playbook(Playbook.model_validate(document.data), document)
        except ValidationError as error:
            problems += messages.problems(error, document, Playbook)
    except SpecError as error:
        problems = list(error.problems)
    if problems:
        first = problems[0]
        where = f"{first.path}: " if first.path else ""
        raise UsageError(
            f"{source} needs what a playbook may not have: {where}{first.message}",
            hint=first.hint or "remove it from the text",
        )
