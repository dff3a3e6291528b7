"""How the rooms below the CLI report progress without printing: the CLI shows it as lines, live, or as JSON lines."""

from __future__ import annotations


class Report:
    """Receives progress, and discards it: what shows it overrides these. Called from several threads."""

    def step(self, name: str, text: str = "") -> None:
        """A step begins; ``name`` is stable, as ``stage``."""

    def progress(self, node: str, text: str) -> None:
        """What a node is doing; replaces what was reported for it before."""

    def note(self, text: str) -> None:
        """A message."""

    def confirm(self, question: str) -> bool:  # noqa: ARG002 - for what shows it
        """Whether the user says yes to ``question``; no where nobody can be asked."""
        return False


def count(number: int, thing: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
