"""Numbers out of a config.json that anybody may have written: checked once, so that nothing later can grow absurd."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sparkcluster.errors import UsageError

LARGEST = 1 << 28
"""No dimension of a model comes near this; products of a few of them stay exact and cheap."""


class Document:
    """One mapping of a JSON file, with the name by which errors speak of it.

    Args:
        values: the mapping.
        name: path or repository, as the user knows it.
        path: where in the file this mapping stands, empty for the file itself.
        layered: whether something of one layer was laid over it.
    """

    def __init__(self, values: Mapping[str, Any], name: str, path: str = "", *, layered: bool = False) -> None:
        self.values = values
        self.name = name
        self.path = path
        self.layered = layered

    def refused(self, key: str, what: str) -> UsageError:
        """An error about ``key`` of this document."""
        at = f"{self.path}.{key}" if self.path else key
        return UsageError(
            f"{self.name}: {at} {what}",
            hint="use the config.json that the model's authors publish; no engine loads a model like this",
        )

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self.values.get(key) is not None

    def number(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number under the first of ``keys`` that is there.

        Args:
            keys: alternatives, as families name one thing differently.
            default: taken where none is there; None makes it an error.
            least: smallest that makes sense.
            most: largest that makes sense.

        Raises:
            UsageError: missing, no whole number, or out of range.
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
        """The boolean under ``key``; null is the default.

        Raises:
            UsageError: it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(key, f"must be true or false, is {_short(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """The text under ``key``.

        Raises:
            UsageError: it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refused(key, f"must be a string, is {_short(value)}")
        return value

    def words(self, key: str, count: int | None = None) -> list[str] | None:
        """The list of texts under ``key``, None where it is not there.

        Raises:
            UsageError: it is something else, or not ``count`` long.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.refused(key, f"must be a list of strings, is {_short(value)}")
        if count is not None and len(value) != count:
            raise self.refused(key, f"names {len(value)} layers, the model has {count}")
        return list(value)

    def numbers(self, key: str) -> list[int]:
        """The list of whole numbers under ``key``; empty where it is not there.

        Raises:
            UsageError: it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise self.refused(key, f"must be a list of whole numbers, is {_short(value)}")
        return list(value)

    def below(self, key: str) -> Document | None:
        """The mapping under ``key``, None where it is not there.

        Raises:
            UsageError: it is something else.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refused(key, f"must be a mapping, is {_short(value)}")
        return Document(value, self.name, f"{self.path}.{key}" if self.path else key)

    def over(self, other: Document | None) -> Document:
        """This mapping with the keys of ``other`` laid over it."""
        if other is None:
            return self
        return Document({**self.values, **other.values}, self.name, other.path, layered=True)


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a number of more than 77 digits"
    text = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
