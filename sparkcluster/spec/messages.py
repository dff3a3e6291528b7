"""Convert pydantic errors to messages with places in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ValidationError

from sparkcluster.errors import Problem
from sparkcluster.spec.base import FORMS, Section
from sparkcluster.spec.document import Document, KeyPath, shown
from sparkcluster.spec.secret_patterns import holds_secret, mentions_secret
from sparkcluster.suggest import did_you_mean

# Replacements for pydantic's messages that refer to Python types.
_WORDS = {
    "missing": "is required",
    "extra_forbidden": "unknown key",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "bool_type": "must be true or false",
}
# Sections whose values may contain secrets.
_NOT_SHOWN = ("env", "setup", "command", "after_ready", "on_event")


def problems(error: ValidationError, document: Document, model: type[Section]) -> list[Problem]:
    """Problems from pydantic's ``error``, one per place."""
    found: dict[KeyPath, list[Any]] = {}
    for each in error.errors(include_url=False):
        found.setdefault(_path(each["loc"], document.data, each["type"]), []).append(each)
    # For a union, report the problems inside the branch that fits the value, not the union itself.
    outside = {path[:size] for path in found for size in range(len(path))}
    # A missing key may be a misspelled one that is reported as unknown.
    unknown = {path[:-1] for path, errors in found.items() if errors[0]["type"] == "extra_forbidden"}
    return [
        _problem(errors, path, document, model)
        for path, errors in found.items()
        if path not in outside and not (errors[0]["type"] == "missing" and path[:-1] in unknown)
    ]


def may_show(path: KeyPath, value: object) -> bool:
    """Whether ``value`` may be shown in a message: neither its path nor its form suggests a secret."""
    if any(isinstance(part, str) and (part in _NOT_SHOWN or mentions_secret(part)) for part in path):
        return False
    return not (isinstance(value, str) and holds_secret(value))


def _path(loc: tuple[int | str, ...], data: Any, kind: str) -> KeyPath:
    """The path of ``loc`` in the file, without the names of union branches that pydantic inserts."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        if part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data)):
            data = data[part]
            path.append(part)
        elif kind == "missing" and index == len(loc) - 1:
            path.append(part)
    return tuple(path)


def _problem(errors: list[Any], path: KeyPath, document: Document, model: type[Section]) -> Problem:
    first, value = errors[0], errors[0]["input"]
    kind, of_key = first["type"], first["loc"][-1:] == ("[key]",)
    if kind == "value_error":
        message, *hint = first["ctx"]["error"].args
        return document.problem(path, message, *hint, key=of_key)
    section = _section(model, path[:-1]).model_fields
    if kind == "extra_forbidden":
        hint = did_you_mean(path[-1], section, f"allowed: {', '.join(sorted(section))}")
        return document.problem(path, _WORDS[kind], hint, key=True)
    if kind == "missing":
        return document.problem(path, _WORDS[kind], f"add {path[-1]}: {section[str(path[-1])].description or '…'}")
    words, *others = dict.fromkeys(map(_words, errors))
    message = " or ".join([words, *(other.removeprefix("must be ") for other in others)])
    if of_key:
        return document.problem(path, f"this key {message}", key=True)
    if (
        may_show(path, value)
        and re.match("must be an? ", message)
        and isinstance(value, (str, int, float))
        and value != ""
    ):
        message = f"{_shown(value)} is not {message.removeprefix('must be ')}"
    else:
        message += _is(path, value)
    return document.problem(path, message, _instead(first, path, model))


def _words(error: Any) -> str:
    """The expectation, from the field's form or pydantic's message."""
    if error["type"] == "string_pattern_mismatch":
        return f"must be {FORMS[error['ctx']['pattern']]}"
    plain = error["msg"].partition(" after")[0].replace("'", "").replace("a valid integer", "a whole number")
    return _WORDS.get(error["type"]) or re.sub(r"^\w+ should", "must", plain.replace("valid ", ""))


def _instead(error: Any, path: KeyPath, model: type[Section]) -> str | None:
    """A hint that follows from the expectation, or None."""
    kind, value = error["type"], error["input"]
    if kind == "model_type":
        return f"write its keys as 'key: value': {', '.join(sorted(_section(model, path).model_fields))}"
    if kind == "list_type":
        return "write '- ' before each entry, or [first, second]"
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return "quote it: YAML does not read it as text"
    if kind == "literal_error":
        return did_you_mean(value, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    return None


def _is(path: KeyPath, value: object) -> str:
    """``, is 70000``: the value, if it may be shown."""
    if value in (None, "", [], {}):
        return ", but is empty"
    if isinstance(value, (dict, list)):
        return ", is a mapping" if isinstance(value, dict) else ", is a list"
    return f", is {_shown(value)}" if may_show(path, value) else ""


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _section(model: type[Section], path: KeyPath) -> type[Section]:
    """The section at ``path``, or the last one that leads there."""
    for part in path:
        field = model.model_fields.get(str(part))
        model = next(_sections(field.annotation), model) if field else model
    return model


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """The sections in a type annotation."""
    for each in get_args(annotation):
        yield from _sections(each)
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, Section):
        yield annotation
