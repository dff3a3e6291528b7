"""From the probe's document to facts."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from sparkcluster.errors import CommandFailed
from sparkcluster.facts.model import Facts


def parse(node: str, document: dict[str, Any]) -> Facts:
    """Facts of ``node`` from what its probe answered.

    Raises:
        CommandFailed: the document is not what a probe answers; the message names the first field.
    """
    try:
        return Facts.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        field = ".".join(str(part) for part in problems[0]["loc"]) or "the document"
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CommandFailed(
            f"probe of {node} answered {field} wrongly: {problems[0]['msg']}{more}",
            node=node,
            step="probe",
            hint="run the same sparkcluster version that is installed here; the probe travels with it",
        ) from error
