"""What is chosen to serve: a playbook, and over it an image and keys, from the inventory and the command line.

A *selection* is ``playbook`` with its name, and beside it the keys over it, ``image`` as any other.
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
    """A key of the playbook and its value.

    Attributes:
        key: with dots between its parts.
        value: what it is set to; None removes the key.
        place: where it is set; of a flag without the value, which may be a secret.
    """

    key: str
    value: Any
    place: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Assignments:
    """Those of the inventory, then those of the command line, in order."""

    entries: Sequence[Assignment]

    def put(self, document: Document) -> Document:
        """``document``, the merged playbook, with these; it is not changed.

        A key within a section leaves the others of the section. What is set to the value that it has keeps its place.

        Raises:
            SpecError: a part of a key is no section.
        """
        out = copy.deepcopy(document)
        for entry in self.entries:
            _put(out, entry)
        return out


def read(text: str, name: str = "--set") -> Assignment:
    """What the flag ``name`` was given: ``KEY=VALUE``, where the value is written as in YAML.

    Raises:
        UsageError: it is not of this form, or the key cannot be set.
        SpecError: the value is not YAML.
    """
    key, equals, value = text.partition("=")
    flag = f"{name} {shown(key)[1:-1]}"
    if not re.fullmatch(PLAYBOOK_KEY, key):
        raise UsageError(f"{flag} names no key of a playbook", hint=f"write it as {name} args.max-model-len=65536")
    try:
        settable(key)
    except ValueError as error:
        raise UsageError(f"{flag} {error.args[0]}", hint=error.args[1]) from None
    if not equals or not value.strip():
        hint = f"""write {flag}=VALUE, {flag}='""' for an empty text, or {flag}=null to remove the key"""
        raise UsageError(f"{flag} has no value", hint=hint)
    first = key.partition(".")[0]
    if first not in Playbook.model_fields and closest(first, Playbook.model_fields) is None:
        typed = value if may_show((key,), value) else "…"
        raise UsageError(f"{flag}: a playbook has no key {first}", hint=f"did you mean {name} args.{key}={typed}?")
    try:
        # Brackets and quotes are YAML's, all else is taken as it is.
        is_yaml = value.strip().startswith(_YAML)
        document = parse(f"value: {value}", flag) if is_yaml else parse_scalar(value.strip(), flag, "value")
        problems = document.problems
    except SpecError as error:
        problems = [*error.problems]
    if problems:
        raise SpecError([each._replace(line=0, column=0, path=key) for each in problems])
    return Assignment(key, document.data["value"], Place(0, 0, flag))


def of_inventory(document: Document, inventory: Inventory) -> list[Assignment]:
    """``image`` and the keys under ``set`` of the inventory in ``document``."""
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
            message, hint = f"{path_text(path)} is not a section", f"set {path_text(path)} as a whole"
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
    out.keys[path] = out.values[path] = place  # also of what is removed: it is no longer what is shipped
