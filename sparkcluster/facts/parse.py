"""Parses the output of the probe into facts."""

from __future__ import annotations

import functools
import typing
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import CommandFailed
from sparkcluster.facts.model import EngineFacts, Facts, Unread


def parse(node: str, document: dict[str, Any]) -> Facts:
    """Facts of ``node`` from the output of its probe.

    A reading of an unexpected shape, for example from an unusual version of a tool, becomes Unread; the others are
    kept.

    Raises:
        CommandFailed: the document is not the output of a probe; the message names the first invalid field.
    """
    try:
        return Facts.model_validate(document)
    except ValidationError as error:
        fields = {str(problem["loc"][0]) if problem["loc"] else "" for problem in error.errors(include_input=False)}
        if fields <= _may_be_unread():
            unread = {field: {"unread": _problem(error, field)} for field in fields}
            return Facts.model_validate({**document, **unread})
        more = f" and {error.error_count() - 1} more" if error.error_count() > 1 else ""
        raise CommandFailed(
            f"invalid answer of the probe on {node}: {_problem(error)}{more}",
            node=node,
            step="probe",
            hint="run the same sparkcluster version that is installed here; the probe travels with it",
        ) from error


def parse_engine(document: dict[str, Any]) -> EngineFacts | Unread:
    """What is in an image, or why it is unknown."""
    try:
        return Unread.model_validate(document) if "unread" in document else EngineFacts.model_validate(document)
    except ValidationError as error:
        return Unread(unread=f"invalid answer of the image: {_problem(error)}")


def _problem(error: ValidationError, field: str | None = None) -> str:
    """The first problem, or the first of ``field``."""
    problems = error.errors(include_url=False, include_input=False)
    chosen = [each for each in problems if field is None or each["loc"][:1] == (field,)]
    first = next((each for each in chosen if "Unread" not in each["loc"]), chosen[0])
    return f"{'.'.join(str(part) for part in first['loc']) or 'the document'}: {first['msg']}"


@functools.cache
def _may_be_unread() -> frozenset[str]:
    """Fields of Facts whose value may be Unread."""
    fields = Facts.model_fields.items()
    return frozenset(name for name, field in fields if Unread in typing.get_args(field.annotation))
