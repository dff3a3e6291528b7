"""From the text of a recipe or script to a playbook."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.recipes import formats, write
from sparkcluster.recipes.commands import Start, starts
from sparkcluster.recipes.serve import Importer, playbook
from sparkcluster.recipes.shell import MARKS, Assumed, Script, bare_name, is_placeholder, unknown
from sparkcluster.spec import Playbook, check, messages
from sparkcluster.spec.document import parse as parse_yaml
from sparkcluster.spec.document import refuse_hidden
from sparkcluster.spec.secret_patterns import names_secret


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


def convert(text: str, source: str, *, name: str | None = None, defines: Mapping[str, str] | None = None) -> Imported:
    """Make a playbook of a recipe in YAML or JSON, or of a command or script that starts an engine.

    The playbook says that it comes from ``source``; its name is by default the container's, or the model's. ``defines``
    has values for what the text leaves open: variables, arguments of a script as ``1``, placeholders.

    Raises:
        UsageError: nothing in it starts an engine, it leaves open which one or how, or it needs what no playbook
            may have.
        SpecError: it is YAML, and broken.
    """
    if MARKS & set(text):
        raise UsageError(f"{source} contains characters that are not text", hint="is this the right file?")
    refuse_hidden(text, source)
    importers = [found for name_ in engines.names() if (found := engines.engine(name_).importer) is not None]
    document, notes = formats.read(text, source, importers, defines or {}) or _script(
        text, source, importers, dict(defines or {})
    )
    if name is not None:
        document["name"] = name
    notes = list(dict.fromkeys(notes))
    made = write.text(document, source, notes)
    _validated(made, source)
    return Imported(made, document, tuple(notes))


def _script(
    text: str, source: str, importers: list[Importer], defines: dict[str, str]
) -> tuple[dict[str, Any], list[str]]:
    script = Script(defines=defines, where=source)
    found = starts(text, script, importers)
    if not found.engines:
        raise _none(found.script, source, importers, found.compose)
    chosen, others = found.engines[0], found.engines[1:]
    notes = _settled(chosen, others, source)
    notes += [f"only the first engine of the text is imported, not {other.shown}" for other in others]
    _refuse_open(chosen, found.script, source)
    broken = [line for line, text in found.script.unread if any(_mentions(text, importer) for importer in importers)]
    if broken:
        raise UsageError(f"{source}:{broken[0]}: cannot be parsed as shell text", hint="copy the whole command")
    if unused := sorted(set(defines) - script.used):
        asked = ", ".join(name for name in script.asked) or "nothing"
        raise UsageError(f"{source} does not ask for {unused[0]}", hint=f"it asks for {asked}")
    document, more = playbook(chosen.container, chosen.command, found.downloads, chosen.importer)
    unread = [f"line {line}, which cannot be parsed as shell text" for line, _ in found.script.unread]
    return document, [*more, *notes, *found.notes, *unread]


def _mentions(text: str, importer: Importer) -> bool:
    return importer.COMMAND.split()[0] in text


def _none(script: Script, source: str, importers: list[Importer], compose: int | None) -> UsageError:
    """Why no engine was found."""
    titles = " or ".join(engines.engine(importer.ENGINE).title for importer in importers)
    broken = [line for line, text in script.unread if any(_mentions(text, importer) for importer in importers)]
    if broken:
        return UsageError(f"{source}:{broken[0]}: cannot be parsed as shell text", hint="copy the whole command")
    if compose is not None:
        return UsageError(
            f"{source}:{compose}: docker compose starts what its compose file says",
            hint="sparkcluster import docker-compose.yml",
        )
    if script.ended is not None and script.asked:
        return UsageError(
            f"{source} starts no {titles}: it ends on line {script.ended}",
            hint=f"add --define {next(iter(script.asked))}=VALUE",
        )
    command = importers[0].COMMAND
    return UsageError(
        f"{source} starts no {titles}",
        hint=f"give a recipe, or a text with `docker run … {command} …` or `{command} …` in it",
    )


def _settled(chosen: Start, others: list[Start], source: str) -> list[str]:
    """Notes about the conditions under which the engine starts.

    Raises:
        UsageError: they decide which of several engines starts.
    """
    assumed = chosen.assumed
    if not assumed:
        return []
    rivals = [other for other in others if other.shown != chosen.shown]
    if rivals:
        why = assumed[-1]
        lines = ", ".join(str(line) for line in dict.fromkeys(start.line for start in (chosen, *rivals)))
        raise UsageError(
            f"{source}:{why.line}: `{why.text}` decides which engine starts (lines {lines})",
            hint=_define(why.names) or "copy the command that you want to a file of its own",
        )
    return [
        f"line {why.line}: imported as if `{why.text}` is {'true' if why.holds else 'false'}"
        for why in dict.fromkeys(assumed)
    ]


def _define(names: tuple[str, ...]) -> str | None:
    return " ".join(["add", *(f"--define {name}=VALUE" for name in names)]) if names else None


def _refuse_open(chosen: Start, script: Script, source: str) -> None:
    """Refuse a command with values that depend on a branch, or that the text leaves to its reader.

    Raises:
        UsageError: there are such.
    """
    container = chosen.container
    env = [text or "" for name, text in chosen.command.env.items() if not names_secret(name)]
    words = [*chosen.command.words, *env]
    if container is not None:
        words += [container.image, *(part for volume in container.volumes for part in (volume.source, volume.target))]
    names = list(dict.fromkeys(name for word in words for name in unknown(word)))
    for name in names:
        why: Assumed | None = script.undecided.get(name)
        if why is not None and name.isidentifier():
            raise UsageError(f"{source}:{why.line}: {name} depends on `{why.text}`", hint=f"add --define {name}=VALUE")
        if why is not None:
            raise UsageError(f"{source}:{why.line}: `{why.text}` is not followed", hint="write what it becomes")
    places = [name for name in names if is_placeholder(name)]
    if places:
        raise UsageError(
            f"{source} leaves {', '.join(places)} to its reader",
            hint=_define(tuple(bare_name(name) for name in places)),
        )


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
