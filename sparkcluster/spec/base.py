"""What every section of an inventory or playbook has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Names end up in container names, labels and file names on the nodes.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)]


class Section(BaseModel):
    """One mapping of a file that a user writes: unknown keys are refused, nothing is coerced silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, use_attribute_docstrings=True)
