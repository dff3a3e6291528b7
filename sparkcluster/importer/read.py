"""Convert the text of a recipe or script to a playbook."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.errors import SpecError, UsageError
from sparkcluster.importer import inspected, page, recipe, script, unit, write
from sparkcluster.importer.script import Text
from sparkcluster.importer.unknown import SIGNS, shown, unknown
from sparkcluster.spec import Playbook, check, messages
from sparkcluster.spec.document import parse, refuse_hidden

_NAME = re.compile(r"\w[\w ./:|+-]*|%[A-Za-z]")
_SUFFIXES = {".md": "page", ".markdown": "page", ".service": "unit", ".sh": "shell", ".yaml": "data", ".yml": "data"}


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """An imported playbook.

    Attributes:
        text: the playbook as YAML, with the notes as comments.
        document: the playbook as data.
        notes: parts that were not converted, and what to do about them.
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
    """Convert a recipe in YAML or JSON, or a command, script, unit or page that starts an engine.

    Args:
        text: the recipe.
        source: its name, for messages and for a comment in the playbook.
        name: name of the playbook; default: that of the container or model.
        defines: values of unset variables, script arguments (such as ``1``) and placeholders.
        block: number of a page's code block.

    Raises:
        UsageError: it starts no engine, it is ambiguous, or it needs something that a playbook cannot have.
        SpecError: invalid YAML.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")  # byte order mark
    if SIGNS.search("".join([text, *(defines or {}).values()])):
        raise UsageError(f"{source} contains characters that are not text", hint="is this the right file?")
    refuse_hidden(text, source)
    importers = [found for each in engines.names() if (found := engines.engine(each).importer) is not None]
    about = Text(source, importers, defines or {}, block)
    kind = kind_of(text, source)
    if block is not None and kind != "page":
        raise UsageError(f"{source} has no blocks", hint="--block is for Markdown pages; omit it")
    try:
        document, notes = _READ[kind](text, about)
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint="import the docker run line alone") from None
    for given in about.defines:
        if given not in about.asked:
            names = ", ".join([each for each in about.asked if each][:20])
            hint = f"variables: {names}" if names else "it has no variables to define; omit --define"
            raise UsageError(f"--define {given}: {source} has no variable {given}", hint=hint)
    return finished(document, notes, source, name)


def finished(
    document: dict[str, Any], notes: list[str], source: str, name: str | None = None, command: str = "import"
) -> Imported:
    """The playbook ``document`` as text with ``notes``, validated; ``command`` is the command that made it.

    Raises:
        UsageError: it is not a valid playbook.
    """
    document |= {"name": name} if name is not None else {}
    notes = list(dict.fromkeys(notes))
    made = write.text(document, source, notes, command)
    for lost in unknown(made):
        raise UsageError(f"{source} needs {shown(lost)}, which is not set", hint="write its value in the text")
    _validated(made, source)
    return Imported(made, document, tuple(notes))


def defines(written: list[str]) -> dict[str, str]:
    """Parse values of ``--define``, each ``NAME=VALUE``.

    Raises:
        UsageError: a value without this form, or a duplicate name.
    """
    out: dict[str, str] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name) or not value.isprintable():
            raise UsageError("--define takes NAME=VALUE", hint="as in --define MODEL=openai/gpt-oss-20b")
        if name in out:
            raise UsageError(f"duplicate --define {name}", hint="keep one of them")
        out[name] = value
    return out


def kind_of(text: str, source: str) -> str:
    """The kind of a text, by its file name, else by its content."""
    named = _SUFFIXES.get(PurePath(source).suffix.lower())
    if text.lstrip().startswith("[{") or (text.lstrip().startswith("[") and re.match(r'\s*\[\s*\{\s*"', text)):
        return "inspected"
    if named or text.startswith("#!"):
        return named or "shell"
    if unit.looks(text):
        return "unit"
    if re.match(r'\s*\{\s*("|$)', text) or re.search(r"^(services|model|recipe_version)[ \t]*:", text, re.MULTILINE):
        return "page" if re.search(r"^[ \t>]*```", text, re.MULTILINE) else "data"
    return "page" if re.search(r"^[ \t>]*(```|~~~)", text, re.MULTILINE) else "shell"


def _validated(text: str, source: str) -> None:
    """Validate a playbook before it is written to a file.

    Raises:
        UsageError: the first problem, in terms of the recipe.
    """
    try:
        document = parse(text, source)
        problems = list(document.problems)
        try:
            problems += check.playbook(Playbook.model_validate(document.data), document)
        except ValidationError as error:
            problems += messages.problems(error, document, Playbook)
    except SpecError as error:
        problems = list(error.problems)
    for first in problems[:1]:
        problem = f"{source} cannot be converted to a valid playbook: {first.summary}"
        raise UsageError(problem, hint=first.hint or "remove it from the text, or change --name")


_READ = {"shell": script.read, "data": recipe.data, "page": page.read, "unit": unit.read, "inspected": inspected.read}
