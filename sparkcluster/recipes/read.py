"""From the text of a recipe or script to a playbook."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.errors import NoEngine, Problem, SpecError, UsageError
from sparkcluster.recipes import compose, formats, markdown, structured, unit_file, write
from sparkcluster.recipes.choices import Choices, Format, Made
from sparkcluster.recipes.commands import Start, Starts, starts
from sparkcluster.recipes.serve import Importer, ensure_parsed, playbook
from sparkcluster.recipes.shell import MARKS, Assumed, Script, bare_name, is_placeholder, mark, plain, shown, unknown
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


def convert(
    text: str,
    source: str,
    *,
    name: str | None = None,
    defines: Mapping[str, str] | None = None,
    block: int | None = None,
) -> Imported:
    """Make a playbook of a recipe in YAML or JSON, or of a command, script, unit or page that starts an engine.

    The playbook says that it comes from ``source``; its name is by default the container's, or the model's. ``defines``
    has values for what the text leaves open: variables, arguments of a script as ``1``, placeholders; ``block`` is the
    number of a page's block.

    Raises:
        UsageError: nothing in it starts an engine, it leaves open which one or how, or it needs what no playbook
            may have.
        SpecError: it is YAML, and broken.
    """
    text = text.removeprefix("\ufeff")  # the mark of UTF-8 that editors write
    if MARKS & set(text).union(*(defines or {}).values()):
        raise UsageError(f"{source} contains characters that are not text", hint="is this the right file?")
    refuse_hidden(text, source)
    importers = [found for name_ in engines.names() if (found := engines.engine(name_).importer) is not None]
    # In a page a document of unknown format is no recipe, but an example of something else.
    choices = Choices(_script, (compose, unit_file, _Recipes(importers)), defines or {}, block)
    kinds: list[Format] = [markdown, compose, unit_file, _Recipes(importers, source)]
    kind = next((kind for kind in kinds if kind.looks(text)), None)
    if block is not None and kind is not markdown:
        raise UsageError(f"{source} has no blocks", hint="--block is for Markdown pages; leave it out")
    document, notes = (kind.read if kind else _script)(text, source, importers, choices)
    choices.check(source)
    if name is not None:
        document["name"] = name
    notes = list(dict.fromkeys(notes))
    if lost := [name for value in _texts(document) for name in unknown(value)]:
        raise UsageError(
            f"{source} needs {plain(mark(lost[0]))}, which the text does not set", hint="write its value in the text"
        )
    made = write.text(document, source, notes)
    _validated(made, source)
    return Imported(made, document, tuple(notes))


def _texts(value: Any) -> list[str]:
    """All texts in a document."""
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


@dataclasses.dataclass(frozen=True, slots=True)
class _Recipes:
    """Recipes in YAML and JSON as a ``Format``: every document of the file ``source``, known ones in a page."""

    importers: list[Importer]
    source: str | None = None

    def looks(self, text: str) -> bool:
        if self.source is not None:
            return structured.is_structured(text, self.source)
        return structured.is_structured(text, "") and formats.is_known(text, self.importers)

    def read(self, text: str, source: str, importers: list[Importer], choices: Choices) -> Made:
        return formats.read(text, source, importers, _Asking(choices))


class _Asking(Mapping[str, str]):
    """The user's values, of which it is kept which were asked for."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def __getitem__(self, name: str) -> str:
        value = self._choices.ask(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices.defines)

    def __len__(self) -> int:
        return len(self._choices.defines)


def _script(text: str, source: str, importers: list[Importer], choices: Choices) -> Made:
    script = Script(
        defines=dict(choices.defines), asked=choices.asked, environment=dict(choices.environment), where=source,
        files=dict(choices.files), directory=choices.directory,
    )  # fmt: skip
    found = starts(text, script, importers)
    if not found.engines:
        raise _none(text, found, source, importers)
    for line, command in found.unclear:
        raise UsageError(
            f"{source}:{line}: `{command}` may start an engine too, and is not followed",
            hint="copy the command that you want to a file of its own",
        )
    first = [each for each in found.engines if not each.importer.is_worker(each.command.words)]
    chosen = (first or found.engines)[0]
    others = [each for each in found.engines if each is not chosen]
    notes = _settled(chosen, others, source)
    notes += [f"only the first engine of the text is imported, not {other.shown}" for other in others]
    notes += [f"only the first engine of line {line} is imported" for line in dict.fromkeys(chosen.rivals)]
    _refuse_open(chosen, found.script, source)
    for importer in importers:
        ensure_parsed(found.script, importer)
    try:
        document, more = playbook(chosen.container, chosen.command, found.downloads, chosen.importer)
    except UsageError as error:
        raise UsageError(f"{source}:{chosen.line}: {error.message}", hint=error.hint) from None
    return document, [*more, *notes, *found.notes, *found.script.unparsed]


def _none(text: str, found: Starts, source: str, importers: list[Importer]) -> UsageError:
    """Why no engine was found."""
    script = found.script
    titles = " or ".join(engines.engine(importer.ENGINE).title for importer in importers)
    for importer in importers:
        ensure_parsed(script, importer)
    for line, (problem, hint) in found.doubts:
        return UsageError(f"{source}:{line}: {problem}", hint=hint)
    if found.compose is not None:
        return NoEngine(
            f"{source}:{found.compose}: docker compose starts what its compose file says",
            hint="sparkcluster import docker-compose.yml; write what `docker compose run` adds into it first",
        )
    define = f"add --define {next(iter(script.asked))}=VALUE" if script.asked else None
    if script.ended is not None:
        return NoEngine(
            f"{source} starts no {titles}: it ends on line {script.ended}",
            hint=define or "remove the exit, or what fails under set -e",
        )
    commands = [importer.COMMAND for importer in importers]
    at = [number for number, line in enumerate(text.splitlines(), start=1) if any(each in line for each in commands)]
    if at:
        return NoEngine(
            f"{source} starts no {titles}: the command on line {at[0]} is not reached, or not followed",
            hint=define or "copy the command to a file of its own",
        )
    return NoEngine(
        f"{source} starts no {titles}",
        hint=f"give a recipe, or a text with `docker run … {commands[0]} …` or `{commands[0]} …` in it",
    )


def _settled(chosen: Start, others: list[Start], source: str) -> list[str]:
    """Notes about the conditions under which the engine starts.

    Raises:
        UsageError: they decide which of several engines starts.
    """
    assumed = chosen.assumed
    rivals = [other.line for other in others if chosen.differs(other)] + [*chosen.rivals]
    if assumed and rivals:
        why = assumed[-1]
        lines = ", ".join(str(line) for line in dict.fromkeys((chosen.line, *rivals)))
        raise UsageError(
            f"{source}:{why.line}: `{why.text}` decides which engine starts (lines {lines})",
            hint=_define(why.names) or "copy the command that you want to a file of its own",
        )
    return [
        f"line {why.line}: imported as if `{why.text}` is {'true' if why.holds else 'false'}"
        for why in sorted(dict.fromkeys((*chosen.guards, *assumed)), key=lambda why: why.line)
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
    words = [*chosen.command.words, *env, *chosen.command.setup]
    if odd := next((word for word in words if word[:1] in "\u2013\u2014\u201c\u201d\u2018\u2019" and word), None):
        raise UsageError(
            f"{source}:{chosen.line}: {shown(odd)} begins with a typographic character", hint='type - or " instead'
        )
    if container is not None:
        words += [container.image, *(part for volume in container.volumes for part in (volume.source, volume.target))]
    names = list(dict.fromkeys(name for word in words for name in unknown(word)))
    for name in names:
        why: Assumed | None = script.undecided.get(name)
        if why is not None and name.isidentifier():
            raise UsageError(f"{source}:{why.line}: {name} depends on `{why.text}`", hint=f"add --define {name}=VALUE")
        if why is not None and name == "@":
            raise UsageError(
                f"{source}:{why.line}: the arguments depend on `{why.text}`", hint="copy the command out of the branch"
            )
        if why is not None:
            raise UsageError(f"{source}:{why.line}: `{why.text}` is not followed", hint="write what it becomes")
    places = [name for name in names if is_placeholder(name)]
    if places:
        raise UsageError(
            f"{source}:{chosen.line}: the command leaves {', '.join(places)} to its reader",
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
