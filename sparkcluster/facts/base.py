"""What every fact is made of. A value that could not be read is an ``Unread`` with the reason, never a default."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")

Few = Annotated[tuple[T, ...], Field(max_length=1024)]
"""As many as one machine can have of anything that is compared with all others."""
Many = Annotated[tuple[T, ...], Field(max_length=65_536)]
Path = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=4096)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Version = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=128)]


class Fact(BaseModel):
    """Base of all facts: immutable; unknown keys of a newer probe are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_max_length=1 << 16, allow_inf_nan=False)


class Unread(Fact):
    """A value that could not be read, and why; in JSON ``{"unread": "why"}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    unread: str


def read(value: T | Unread) -> T | None:
    """``value``, or None if it could not be read."""
    return None if isinstance(value, Unread) else value
