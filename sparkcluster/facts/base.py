"""Base types of facts. A value that could not be read is an ``Unread`` with the reason, never a default.

The types here limit single values in a node's answer. ``hosts.program.document`` limits the answer as a whole: bytes,
values and depth.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from sparkcluster.printable import one_line

T = TypeVar("T")

Few = Annotated[tuple[T, ...], Field(max_length=1024)]
"""A list that is compared with all others; 1024 is more than a machine has of anything."""
Raw = Annotated[str, Field(pattern="")]
"""A text as it was sent, which may have several lines; all other texts are single lines."""
Path = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=4096)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Version = Annotated[str, Field(max_length=128)]
"""Versions are compared number by number."""
Number = Annotated[int, Field(ge=0)]
"""A count, bytes or an ordinal number."""
Measure = Annotated[float, Field(ge=0)]
Time = Annotated[float, Field(ge=0, lt=1 << 37)]
"""Seconds since 1970, up to the year 6325, which every calendar can show."""
LINE_CHARACTERS = 1 << 16


def _line(text: str) -> str:
    """``text`` as one line of printable characters, truncated if it is too long."""
    return one_line(text[:LINE_CHARACTERS])


def _in_lines(schema: Any) -> Any:
    """``schema`` of a model's fields with ``_line`` applied to all texts without a pattern or a function."""
    if isinstance(schema, list):
        return [_in_lines(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "str" and "pattern" not in schema:
        return core_schema.no_info_after_validator_function(_line, schema)
    if kind in ("str", "model", "typed-dict") or str(kind).startswith("function"):
        return schema
    return {key: _in_lines(value) for key, value in schema.items()}


class Fact(BaseModel):
    """Base of all facts: immutable; unknown keys of a newer probe are ignored; a text is one line unless ``Raw``."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """The schema of the model, with ``_line`` applied to texts."""
        schema = handler(source)
        model: Any = handler.resolve_ref_schema(schema)
        model["schema"] = _in_lines(model["schema"])
        return schema


class Unread(Fact):
    """A value that could not be read, and why; in JSON ``{"unread": "why"}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    unread: str


def read(value: T | Unread) -> T | None:
    """``value``, or None if it could not be read."""
    return None if isinstance(value, Unread) else value
