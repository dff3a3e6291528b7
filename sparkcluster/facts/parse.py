"""Parses program output from a node into facts; an unexpected value makes only that fact ``Unread``."""

from __future__ import annotations

import functools
import typing
from typing import Any, TypeVar

from pydantic import ValidationError

from sparkcluster.answers import malformed, problem
from sparkcluster.facts.base import Fact, Unread
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.model import Facts

AnyFact = TypeVar("AnyFact", bound=Fact)


def parse(node: str, document: dict[str, Any]) -> Facts:
    """Facts of ``node`` from the output of its probe; see ``readings``."""
    return readings(Facts, node, "probe", document)


def readings(kind: type[AnyFact], node: str, step: str, document: dict[str, Any]) -> AnyFact:
    """Facts of ``kind`` from the output of ``node`` during ``step``.

    A value of an unexpected shape, for example from an unusual version of a tool, becomes Unread; the others are kept.
    A field that cannot be Unread gets its default.

    Raises:
        CommandFailed: the document is not of this kind; the message names the first invalid field.
    """
    unread = {key for key, value in document.items() if isinstance(value, dict) and value.keys() == {"unread"}}
    document = {key: document[key] for key in document if key not in unread - _may_be_unread(kind)}
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        fields = {str(each["loc"][0]) if each["loc"] else "" for each in error.errors(include_input=False)}
        if not fields <= _may_be_unread(kind):
            raise malformed(node, step, problem(error)) from error
        return kind.model_validate(document | {field: {"unread": problem(error, field)} for field in fields})


def parse_engine(document: dict[str, Any]) -> EngineFacts | Unread:
    """The content of an image, or why it is unknown."""
    try:
        return Unread.model_validate(document) if "unread" in document else EngineFacts.model_validate(document)
    except ValidationError as error:
        return Unread(unread=f"invalid answer of the image: {problem(error)}")


@functools.cache
def _may_be_unread(kind: type[Fact]) -> frozenset[str]:
    """Fields of ``kind`` whose value may be Unread."""
    fields = kind.model_fields.items()
    return frozenset(name for name, field in fields if Unread in typing.get_args(field.annotation))
