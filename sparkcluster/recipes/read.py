"""From the text of a recipe or script to a playbook."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.errors import NoEngine, Problem, SpecError, UsageError
from sparkcluster.recipes import compose, markdown, unit_file, write
from sparkcluster.recipes.choices import Choices, Format
from sparkcluster.recipes.container import Container
from sparkcluster.recipes.container import read as read_container
from sparkcluster.recipes.serve import Command, Importer, playbook
from sparkcluster.recipes.shell import MARKS, Script, assignment, parse, shown
from sparkcluster.spec import Playbook, check, messages
from sparkcluster.spec.document import parse as parse_yaml
from sparkcluster.spec.document import refuse_hidden

_DOCKER = frozenset({"docker", "podman", "nerdctl"})
_BEFORE = frozenset({"sudo", "nohup", "exec", "time", "command", "env"})
_QUIET = frozenset({"set", "echo", "printf", "cd", "mkdir", "sleep", "exit", "true", ":", "clear", "trap", "shopt"})


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """A playbook made of something else.

    Attributes:
        text: the playbook as YAML, with what was left out in its comments.
        document: the same as data.
        notes: what could not be carried over, and what to do about it.
    """

    text: str
    document: dict[str, Any]
    notes: tuple[str, ...]


def convert(
    text: str,
    source: str,
    *,
    name: str | None = None,
    defines: Mapping[str, str] | None = None,
    block: int | None = None,
) -> Imported:
    """Make a playbook of a recipe in YAML, or of a command, script, unit or page that starts an engine.

    The playbook says that it comes from ``source``; its name is by default the container's, or the model's. ``defines``
    has values by the names that the text asks for, and ``block`` is the number of a page's block.

    Raises:
        UsageError: nothing in it starts an engine, several things do, or it needs what no playbook may have.
        SpecError: it is YAML, and broken.
    """
    if MARKS & set(text).union(*(defines or {}).values()):
        raise UsageError(f"{source} contains characters that are not text", hint="is this the right file?")
    refuse_hidden(text, source)
    importers = [found for name_ in engines.names() if (found := engines.engine(name_).importer) is not None]
    formats: list[Format] = [compose, unit_file, *(_Recipe(importer) for importer in importers)]
    choices = Choices(_script, tuple(formats), defines or {}, block)
    kind = next((kind for kind in [markdown, *formats] if kind.looks(text)), None)
    if block is not None and kind is not markdown:
        raise UsageError(f"{source} has no blocks", hint="--block is for Markdown pages; leave it out")
    document, notes = (kind.read if kind else _script)(text, source, importers, choices)
    choices.check(source)
    if name is not None:
        document["name"] = name
    notes = list(dict.fromkeys(notes))
    made = write.text(document, source, notes)
    _validated(made, source)
    return Imported(made, document, tuple(notes))


@dataclasses.dataclass(frozen=True, slots=True)
class _Recipe:
    """Recipes of an engine's importer as a ``Format``."""

    importer: Importer

    def looks(self, text: str) -> bool:
        return self.importer.is_recipe(text)

    def read(
        self, text: str, source: str, _importers: list[Importer], _choices: Choices
    ) -> tuple[dict[str, Any], list[str]]:
        return self.importer.recipe(text, source)


def _script(text: str, source: str, importers: list[Importer], _choices: Choices) -> tuple[dict[str, Any], list[str]]:
    script = parse(text)
    notes = list(script.notes)
    chosen: tuple[Container | None, Command, Importer] | None = None
    downloads: dict[str, str] = {}
    for words in script.commands:
        env, remaining = _unwrapped(words, importers)
        found = next((engine for importer in importers if (engine := _started(remaining, env, script, importer))), None)
        if found is None:
            _downloaded(remaining, downloads)
            if remaining and remaining[0] not in _QUIET and not _downloads(remaining):
                notes.append(f"the command {_abridged(words)}")
        elif chosen is None:
            chosen = found
        else:
            notes.append(f"only the first engine of the text is imported, not {_abridged(words)}")
    if chosen is None:
        command = importers[0].COMMAND
        raise NoEngine(
            f"{source} starts no {' or '.join(engines.engine(importer.ENGINE).title for importer in importers)}",
            hint=f"give a recipe, or a text with `docker run … {command} …` or `{command} …` in it",
        )
    container, chosen_command, importer = chosen
    document, more = playbook(container, chosen_command, downloads, importer)
    return document, [*more, *notes]


def _unwrapped(words: list[str], importers: list[Importer]) -> tuple[dict[str, str], list[str]]:
    """Assignments in front of a command, and the command without what only wraps it."""
    env: dict[str, str] = {}
    remaining = list(words)
    while remaining:
        assigned = assignment(remaining[0])
        if assigned is not None:
            env[assigned[0]] = assigned[1]
        elif remaining[:2] == ["uv", "run"] or remaining[0] == "uvx":
            return env, _launched(remaining[1:], importers)
        elif remaining[0] not in _BEFORE:
            break
        elif remaining[0] == "sudo":
            remaining = _after_flags(remaining)
            continue
        remaining = remaining[1:]
    return env, remaining


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
    remaining: list[str], env: dict[str, str], script: Script, importer: Importer
) -> tuple[Container | None, Command, Importer] | None:
    """The engine that a command starts, in a container or not."""
    container: Container | None = None
    if remaining and remaining[0].rpartition("/")[2] in _DOCKER:
        words = remaining[1:]
        if words[:1] == ["container"]:
            words = words[1:]
        if words[:1] != ["run"] or _is_diagnostic(words):
            return None
        container = read_container(words[1:])
        command = importer.by_variables(container) or Command.of(container, script, importer)
    elif remaining and (container := importer.launched(remaining)) is not None:
        command = Command.of(container, script, importer)
    else:
        command = Command.plain(remaining, env, script, importer)
    return (container, command, importer) if command is not None else None


def _is_diagnostic(words: list[str]) -> bool:
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


def _abridged(words: list[str]) -> str:
    line = shown(" ".join(words)).replace("\n", " ")
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
