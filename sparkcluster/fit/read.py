"""Validated access to an untrusted config.json, so that later arithmetic needs no checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from sparkcluster.errors import UsageError

LARGEST = 1 << 28
"""Limit of any dimension, far above real models; products of a few stay exact and cheap."""


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """A mapping of a JSON file, with its name for errors.

    Each reader raises UsageError if the value has the wrong type.

    Attributes:
        values: the mapping.
        name: path or repository, for messages.
        path: path of this mapping in the file, empty at the top.
    """

    values: Mapping[str, Any]
    name: str
    path: str = ""

    def refused(self, key: str, what: str) -> UsageError:
        """An error about ``key`` of this document."""
        at = f"{self.path}.{key}" if self.path else key
        return UsageError(
            f"{self.name}: {at} {what}",
            hint="use the config.json published by the model's authors; no engine loads this one",
        )

    def has(self, key: str) -> bool:
        """Whether ``key`` is present and not null."""
        return self.values.get(key) is not None

    def number(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number under the first present key of ``keys``, which are names in different families.

        Without a ``default``, a missing number is an error.
        """
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, float) and math.isfinite(value) and value == int(value):
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.refused(key, f"must be a whole number, is {_short(value)}")
            if not least <= value <= most:
                raise self.refused(key, f"must be from {least} to {most}, is {_short(value)}")
            return value
        if default is None:
            raise self.refused(keys[0], "is missing")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """The boolean under ``key``; ``default`` if missing or null."""
        value = self._checked(key, lambda value: isinstance(value, bool), "true or false")
        return default if value is None else bool(value)

    def text(self, key: str, default: str = "") -> str:
        """The text under ``key``."""
        value = self._checked(key, lambda value: isinstance(value, str), "a string")
        return default if value is None else str(value)

    def words(self, key: str, count: int | None = None) -> list[str]:
        """The list of strings under ``key``, of length ``count``; empty if missing."""
        return self._listed(key, str, "strings", count)

    def numbers(self, key: str, count: int | None = None) -> list[int]:
        """The list of whole numbers under ``key``, of length ``count``; empty if missing."""
        return self._listed(key, int, "whole numbers", count)

    def below(self, key: str) -> Document | None:
        """The mapping under ``key``; None if missing."""
        value = self._checked(key, lambda value: isinstance(value, Mapping), "a mapping")
        return None if value is None else Document(value, self.name, f"{self.path}.{key}" if self.path else key)

    def members(self, key: str) -> dict[str, Document]:
        """The mappings in the mapping under ``key``, by name; empty if missing."""
        below = self.below(key)
        if below is None:
            return {}
        found = {name: below.below(name) for name in below.values}
        return {name: each for name, each in found.items() if each is not None}

    def _checked(self, key: str, is_valid: Callable[[Any], bool], kind: str) -> Any:
        """The value under ``key``, None if missing; raises UsageError if it is not ``kind``."""
        value = self.values.get(key)
        if value is not None and not is_valid(value):
            raise self.refused(key, f"must be {kind}, is {_short(value)}")
        return value

    def _listed(self, key: str, kind: type, members: str, count: int | None) -> list[Any]:
        def is_valid(value: object) -> bool:
            return isinstance(value, list) and all(type(member) is kind for member in value)

        found: list[Any] | None = self._checked(key, is_valid, f"a list of {members}")
        if found is not None and count is not None and len(found) != count:
            raise self.refused(key, f"names {len(found)} layers, but the model has {count}")
        return found or []

    def over(self, other: Document | None) -> Document:
        """This mapping, overridden by the keys of ``other``."""
        if other is None:
            return self
        return Document({**self.values, **other.values}, self.name, other.path)


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
