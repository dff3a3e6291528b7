"""Values of a Compose file, with their places and with ``<<`` and variables put in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sparkcluster.errors import UsageError
from sparkcluster.recipes import compose_text
from sparkcluster.spec.document import Document, KeyPath, path_text


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A value of a YAML document, with its place.

    Attributes:
        document: that it is of.
        path: of the value in it.
        variable: the value of a variable by its name; None for those that are not set.
    """

    document: Document
    path: KeyPath
    value: Any
    variable: Callable[[str], str | None]

    def entries(self) -> dict[str, Node]:
        """Keys and values of a mapping, those of ``<<`` included.

        Raises:
            UsageError: it is no mapping.
        """
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error("must be a mapping")
        own = {key: self._at(key, value) for key, value in self.value.items() if key != "<<"}
        if "<<" not in self.value:
            return own
        merged = self._at("<<", self.value["<<"])
        out: dict[str, Node] = {}
        # The first of several wins, and what is written beside them wins over all.
        for base in reversed(merged.items() if isinstance(merged.value, list) else [merged]):
            out.update(base.entries())
        return out | own

    def items(self) -> list[Node]:
        """Values of a list; of a scalar the scalar itself."""
        if isinstance(self.value, list):
            return [self._at(index, value) for index, value in enumerate(self.value)]
        return [] if self.value is None else [self]

    def text(self) -> str:
        """A scalar as Compose takes it, with variables put in.

        Raises:
            UsageError: it is none, or Compose or another reader of YAML takes it for something else.
        """
        value = self.value
        written = self.document.written.get(self.path)
        if isinstance(value, bool):
            # Of YAML 1.1's words Compose takes these two alone for more than text.
            return "true" if value and str(written).lower() == "true" else _not_true(value, written)
        if isinstance(value, int | float):
            return compose_text.number(value)
        if not isinstance(value, str):
            raise self.error("must be text")
        if written is not None and ":" not in written and self._is_ambiguous():
            raise self.error("is a number that YAML parsers read differently", "quote it")
        try:
            return compose_text.interpolated(value, self.variable)
        except compose_text.TextError as error:
            raise self.error(f"has {error}", error.hint) from None

    def words(self) -> list[str] | None:
        """A command: a list of words, or text that Compose splits into them; None if it is not given.

        Raises:
            UsageError: Compose does not take it as it is meant.
        """
        if self.value is None:
            return None
        if isinstance(self.value, list):
            return [item.text() for item in self.items()]
        try:
            return compose_text.words(self.text())
        except compose_text.TextError as error:
            raise self.error(f"has {error}", error.hint) from None

    def error(self, problem: str, hint: str | None = None) -> UsageError:
        """An error about this value."""
        place = self.document.values.get(self.path)
        where = f"{self.document.file}:{place.line}" if place else self.document.file
        # Where a base's value counts, the path goes through the `<<` that names it.
        path = path_text(tuple(part for part in self.path if part != "<<"))
        return UsageError(f"{where}: {path} {problem}", hint=hint or "see docs.docker.com/reference/compose-file")

    def _at(self, key: str | int, value: Any) -> Node:
        return Node(self.document, (*self.path, key), value, self.variable)

    def _is_ambiguous(self) -> bool:
        place = self.document.values.get(self.path)
        return place is not None and any(
            (problem.line, problem.column) == (place.line, place.column) for problem in self.document.problems
        )


def _not_true(value: bool, written: str | None) -> str:
    lower = str(written).lower()
    return lower if lower in {"true", "false"} else str(written if written is not None else value)
