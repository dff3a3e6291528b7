"""How the rooms below the CLI report progress without printing: the CLI shows it as lines, live, or as JSON lines."""

from __future__ import annotations

from typing import Literal, NamedTuple

Medium = Literal["rail", "wire", "wifi", "tunnel"]
"""What carries bytes from one node to another; all but ``rail`` are ways of the management network."""


State = Literal["copying", "complete", "left out"]


class Transfer(NamedTuple):
    """How far one node is with one artifact.

    Attributes:
        node: which gets it.
        what: ``weights``, ``image`` and so on.
        bytes: that it has of those that are staged, from an earlier run too.
        total: bytes that are staged.
        source: where its bytes come from: a node, ``download`` or ``controller``; of one that is complete, where they
            came from; None where nothing sends.
        medium: how they come from another node.
        encrypted: whether they are encrypted on the way.
        state: ``left out`` of a node that the others go on without.
    """

    node: str
    what: str
    bytes: int
    total: int
    source: str | None = None
    medium: Medium = "rail"
    encrypted: bool = False
    state: State = "copying"


class Report:
    """Receives progress, and discards it: what shows it overrides these. Called from several threads."""

    asked_s = 0.0
    """For how long the user was asked: what is timed goes without it."""

    def step(self, name: str, text: str = "") -> None:
        """A step begins; ``name`` is stable, as ``copy``. The one under way goes on, and gets another text."""

    def progress(self, node: str, text: str) -> None:
        """What a node is doing; replaces what was reported for it before."""

    def transfer(self, transfer: Transfer) -> None:
        """How far a node is with an artifact, about once a second; replaces what was reported of both before."""

    def failed(self) -> None:
        """The step that is under way failed, though no exception ends the command."""

    def done(self) -> None:
        """The step that is under way is done: an error that follows is not about it, and steps may be repeated."""

    def log(self, node: str, line: str) -> None:
        """The last log line of the rank that others wait for; replaces the one before."""

    def note(self, text: str) -> None:
        """A message."""

    def confirm(self, question: str) -> bool:  # noqa: ARG002 - for what shows it
        """Whether the user says yes to ``question``; no where nobody can be asked."""
        return False


_GB = 10**8
"""From here on sizes are told in GB."""


def size(size_bytes: float) -> str:
    """``63.4 GB``, ``1.21 GB``, ``24 MB``, ``0.3 MB``; GB = 10^9 bytes."""
    return f"{in_unit_of(size_bytes, size_bytes)} {'GB' if abs(size_bytes) >= _GB else 'MB'}"


def share(size_bytes: float, whole: float) -> str:
    """``12.3 of 63.4 GB``; both in bytes. Without ``whole``, where it is not known, ``12.3 GB``."""
    return f"{in_unit_of(size_bytes, whole)} of {size(whole)}" if whole else size(size_bytes)


def in_unit_of(size_bytes: float, whole: float) -> str:
    """``size_bytes`` as a number in the unit of ``whole``, and as precise."""
    whole = abs(whole)
    unit = 10**9 if whole >= _GB else 10**6
    digits = 2 if _GB <= whole < 10**10 else 1 if whole >= _GB or whole < 10**7 else 0
    return f"{size_bytes / unit:.{digits}f}"


def duration(seconds: float) -> str:
    """``0.4 s``, ``42 s``, ``10 min``, ``2 h 10 min``, ``5 d 2 h``."""
    if seconds < 89.5:
        return f"{round(seconds) if seconds >= 10 else round(max(seconds, 0.1), 1):g} s"
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    if days > 1:
        return f"{days} d {hours} h"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min".removesuffix(" 0 min")


def speed_change(before: float, after: float) -> str:
    """``61.2 → 57.5 tokens/s, 6 % slower``."""
    percent = round(100 * (after / before - 1))
    word = f"{abs(percent)} % {'faster' if percent > 0 else 'slower'}" if percent else "as before"
    return f"{before:.1f} → {after:.1f} tokens/s, {word}"


def count(number: int, thing: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
