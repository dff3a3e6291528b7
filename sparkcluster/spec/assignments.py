"""Selection of a playbook, its image and overridden keys, from the inventory and the command line.

A *selection* maps ``playbook`` to its name, and overridden keys, including ``image``, to their values.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.spec.base import PLAYBOOK_KEY, settable
from sparkcluster.spec.compose import OF_A_REPOSITORY, forget
from sparkcluster.spec.document import Document, KeyPath, Place, parse, parse_scalar, path_text, shown
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.messages import may_show
from sparkcluster.spec.playbook import Playbook
from sparkcluster.suggest import closest

_YAML = ('"', "'", "[", "{")


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """A playbook key and its value.

    Attributes:
        key: parts joined by dots.
        value: None removes the key.
        place: where it is set; for a flag, without the value, which may be a secret.
    """

    key: str
    value: Any
    place: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Assignments:
    """Assignments of the inventory, then of the command line, in order."""

    entries: Sequence[Assignment]

    def put(self, document: Document) -> Document:
        """A copy of ``document``, the merged playbook, with these assignments.

        Other keys of a section are kept. A key that already has the value keeps its place.

        Raises:
            SpecError: a part of a key is not a mapping.
        """
        out = copy.deepcopy(document)
        for entry in self.entries:
            _put(out, entry)
        return out


def read(text: str, name: str = "--set") -> Assignment:
    """Parse ``KEY=VALUE`` of the flag ``name``; the value is YAML.

    Raises:
        UsageError: the text does not have this form, or the key cannot be set.
        SpecError: the value is not YAML.
    """
    key, equals, value = text.partition("=")
    flag = f"{name} {shown(key)[1:-1]}"
    if not re.fullmatch(PLAYBOOK_KEY, key):
        raise UsageError(f"{flag} is not a playbook key", hint=f"write it as {name} args.max-model-len=65536")
    try:
        settable(key)
    except ValueError as error:
        raise UsageError(f"{flag} {error.args[0]}", hint=error.args[1]) from None
    if not equals or not value.strip():
        hint = f"""write {flag}=VALUE, {flag}='""' for an empty string, or {flag}=null to remove the key"""
        raise UsageError(f"{flag} has no value", hint=hint)
    first = key.partition(".")[0]
    if first not in Playbook.model_fields and closest(first, Playbook.model_fields) is None:
        typed = value if may_show((key,), value) else "…"
        raise UsageError(f"{flag}: unknown playbook key {first}", hint=f"did you mean {name} args.{key}={typed}?")
    try:
        # Values with brackets or quotes are YAML; everything else is taken literally.
        is_yaml = value.strip().startswith(_YAML)
        document = parse(f"value: {value}", flag) if is_yaml else parse_scalar(value.strip(), flag, "value")
        problems = document.problems
    except SpecError as error:
        problems = [*error.problems]
    if problems:
        raise SpecError([each._replace(line=0, column=0, path=key) for each in problems])
    return Assignment(key, document.data["value"], Place(0, 0, flag))


def of_inventory(document: Document, inventory: Inventory) -> list[Assignment]:
    """Assignments from ``image`` and ``set`` of the inventory in ``document``."""
    paths: dict[KeyPath, Any] = {("set", key): value for key, value in inventory.set.items()}
    paths |= {("image",): inventory.image} if inventory.image else {}
    placed = {path: dataclasses.replace(document.keys[path], file=document.file) for path in paths}
    return [Assignment(str(path[-1]), value, placed[path]) for path, value in paths.items()]


def _put(out: Document, assignment: Assignment) -> None:
    place = assignment.place
    path: KeyPath = ()
    section, parts = out.data, assignment.key.split(".")
    while len(parts) > 1 and ".".join(parts) not in section:
        path = (*path, parts.pop(0))
        if section.get(path[-1]) is None:
            section[path[-1]] = {}
            out.keys[path] = out.values[path] = place
        section = section[path[-1]]
        if not isinstance(section, dict):
            message, hint = f"{path_text(path)} is not a mapping", f"set the complete value of {path_text(path)}"
            raise SpecError([Problem(str(place.file), place.line, place.column, "", message, hint)])
    name = ".".join(parts)
    if name in section and section[name] == assignment.value:
        return
    replaced = OF_A_REPOSITORY if path == ("model",) and name in {"id", "path"} else {name}
    for each in replaced & set(section):
        del section[each]
        forget(out, (*path, each))
    path = (*path, name)
    if assignment.value is not None:
        section[name] = copy.deepcopy(assignment.value)
    out.keys[path] = out.values[path] = place  # also for a removed key: the playbook is no longer as shipped
