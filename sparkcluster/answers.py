"""Validates what a node sent and turns it into a typed value."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from sparkcluster.errors import CommandFailed
from sparkcluster.printable import one_line

T = TypeVar("T")


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(kind: type[T], found: object, *, node: str, step: str) -> T:
    """Validate ``found``, which ``node`` sent during ``step``, as a ``kind``.

    Raises:
        CommandFailed: it is invalid; the message names the first invalid field.
    """
    try:
        return _adapter(kind).validate_python(found)  # type: ignore[arg-type, no-any-return]
    except ValidationError as error:
        raise malformed(node, step, problem(error)) from error


def malformed(node: str, step: str, why: str) -> CommandFailed:
    """The error for a malformed answer of ``node``; ``why`` says what is wrong with it."""
    return CommandFailed(
        f"{node} sent a malformed answer to {step}: {one_line(why)}",
        node=node,
        step=step,
        hint=f"check what python3 is on {node}, or remove the node from the inventory",
    )


def problem(error: ValidationError, field: str | None = None) -> str:
    """The first problem in ``error``, or the first with ``field``, in one short line."""
    problems = error.errors(include_url=False, include_input=False)
    chosen = [each for each in problems if field is None or each["loc"][:1] == (field,)]
    first = next((each for each in chosen if "Unread" not in each["loc"]), chosen[0])
    return one_line(f"{'.'.join(str(part) for part in first['loc']) or 'the document'}: {first['msg']}"[:200])
