"""From the probe's document to facts."""

from __future__ import annotations

import functools
import typing
from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import CommandFailed
from sparkcluster.facts.model import EngineFacts, Facts, Unread


def parse(node: str, document: dict[str, Any]) -> Facts:
    """Facts of ``node`` from what its probe answered.

    A reading of an unexpected shape, as of a tool that answers what no other version did, is Unread and costs
    the others nothing.

    Raises:
        CommandFailed: the document is not what a probe answers; the message names the first field.
    """
    try:
        return Facts.model_validate(document)
    except ValidationError as error:
        fields = {str(problem["loc"][0]) if problem["loc"] else "" for problem in error.errors(include_input=False)}
        if fields <= _may_be_unread():
            odd = {field: {"unread": _wrong(error, field)} for field in fields}
            return Facts.model_validate({**document, **odd})
        more = f" and {error.error_count() - 1} more" if error.error_count() > 1 else ""
        raise CommandFailed(
            f"probe of {node} answered {_wrong(error)}{more}",
            node=node,
            step="probe",
            hint="run the same sparkcluster version that is installed here; the probe travels with it",
        ) from error


def parse_engine(document: dict[str, Any]) -> EngineFacts | Unread:
    """What an image said of itself, or why that is not known."""
    try:
        return Unread.model_validate(document) if "unread" in document else EngineFacts.model_validate(document)
    except ValidationError as error:
        return Unread(unread=f"the image answered {_wrong(error)}")


def _wrong(error: ValidationError, field: str | None = None) -> str:
    """The first problem, or the first of ``field``, in words."""
    problems = error.errors(include_url=False, include_input=False)
    chosen = [each for each in problems if field is None or each["loc"][:1] == (field,)]
    first = next((each for each in chosen if "Unread" not in each["loc"]), chosen[0])
    return f"{'.'.join(str(part) for part in first['loc']) or 'the document'} wrongly: {first['msg']}"


@functools.cache
def _may_be_unread() -> frozenset[str]:
    """Fields of Facts whose value may be Unread."""
    fields = Facts.model_fields.items()
    return frozenset(name for name, field in fields if Unread in typing.get_args(field.annotation))
