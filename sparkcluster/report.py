"""How engines tell what they do, without printing: the cli renders it as lines, live, or JSON lines."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Where an engine says what it is doing. Called from several threads."""

    def step(self, name: str, text: str = "") -> None:
        """A step of the walk begins; ``name`` is stable, as ``stage``."""
        ...

    def progress(self, node: str, text: str) -> None:
        """What one node is at; replaces what was said of it before."""
        ...

    def note(self, text: str) -> None:
        """A line that stays."""
        ...


class Silent:
    """A Report that nobody listens to."""

    def step(self, name: str, text: str = "") -> None:
        """Nothing is said."""

    def progress(self, node: str, text: str) -> None:
        """Nothing is said."""

    def note(self, text: str) -> None:
        """Nothing is said."""


def count(number: int, thing: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
