"""The formats of recipes that are imported, in the order in which they are recognized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.recipes import sparkring, sparkrun
from sparkcluster.recipes.serve import Importer
from sparkcluster.recipes.structured import Format, Read, load
from sparkcluster.spec import Playbook, kinds


def supported(importers: Sequence[Importer]) -> list[Format]:
    """All formats: those of engines come before sparkrun's, whose keys are a superset of a recipe of eugr's."""
    own = [each for importer in importers for each in importer.formats]
    return [sparkring.format_of(importers), *own, sparkrun.format_of(importers)]


def is_known(text: str, importers: Sequence[Importer]) -> bool:
    """Whether ``text`` is YAML or JSON of a known format."""
    try:
        data = load(text, "the text").data
    except SpecError:
        return False
    return any(each.fits(data) for each in supported(importers))


def read(text: str, source: str, importers: Sequence[Importer], choices: Mapping[str, str]) -> Read:
    """The playbook of a recipe in YAML or JSON, and what was left out.

    Raises:
        SpecError: it is YAML or JSON that is broken, or of an unknown format.
    """
    document = load(text, source)
    formats = supported(importers)
    found = next((each for each in formats if each.fits(document.data)), None)
    if found is None:
        ours = "an inventory" if kinds.is_inventory(document.document) else ""
        if kinds.is_playbook(document.document) and set(document.data) <= set(Playbook.model_fields):
            ours = "a playbook"
        if ours:
            message, hint = f"{ours} of sparkcluster, nothing to convert", "sparkcluster lint checks it"
            raise SpecError([document.document.problem((), message, hint)])
        kind = "JSON" if text.lstrip().startswith("{") else "YAML"
        hint = f"supported are {', '.join(each.title for each in formats)}, and shell text with the engine's command"
        raise SpecError([document.document.problem((), f"a {kind} document of unknown format", hint)])
    document.ensure(found.informational)
    try:
        return found.read(document, choices)
    except SpecError:
        raise
    except UsageError as error:
        raise SpecError([document.document.problem((), error.message, error.hint)]) from None
