"""Progress interface for the packages below the CLI, which shows it as plain lines, live, or as JSON lines."""

from __future__ import annotations

from typing import Literal, NamedTuple

Medium = Literal["rail", "wire", "wifi", "tunnel"]
"""How bytes travel from one node to another; all but ``rail`` use the management network."""


State = Literal["copying", "complete", "skipped"]


class Transfer(NamedTuple):
    """Progress of one node with one artifact.

    Attributes:
        node: the receiving node.
        what: ``weights``, ``image`` and so on.
        bytes: staged bytes that the node has, including those of an earlier run.
        total: bytes to stage.
        source: the sender: a node, ``download`` or ``controller``; once complete, the last sender; None if nothing
            sends.
        medium: how bytes come from another node.
        encrypted: whether the transfer is encrypted.
        state: ``skipped`` means that the other nodes continue without this node.
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
    """Receives progress and discards it; subclasses show it. Called from several threads."""

    asked_s = 0.0
    """Time spent waiting for the user's answers; not counted in measured durations."""

    def step(self, name: str, text: str = "") -> None:
        """Begin a step; ``name`` is stable, for example ``copy``. For the current step, change its text."""

    def progress(self, node: str, text: str) -> None:
        """What a node is doing; replaces its previous text."""

    def transfer(self, transfer: Transfer) -> None:
        """Progress of a node with an artifact, about once a second; replaces the previous one."""

    def failed(self) -> None:
        """The current step failed, though no exception ends the command."""

    def done(self) -> None:
        """The current step is done: a later error is not about it. Steps may be repeated."""

    def log(self, node: str, line: str) -> None:
        """The last log line of the rank that the others wait for; replaces the previous one."""

    def note(self, text: str) -> None:
        """A message."""

    def confirm(self, question: str) -> bool:  # noqa: ARG002 - used by subclasses
        """Whether the user answers yes to ``question``; False without a terminal."""
        return False


_GB = 10**8
"""From this size on, GB are used."""


def size(size_bytes: float) -> str:
    """``63.4 GB``, ``1.21 GB``, ``24 MB``, ``0.3 MB``; GB = 10^9 bytes."""
    return f"{in_unit_of(size_bytes, size_bytes)} {'GB' if abs(size_bytes) >= _GB else 'MB'}"


def share(size_bytes: float, whole: float) -> str:
    """``12.3 of 63.4 GB``, both in bytes; ``12.3 GB`` if ``whole`` is 0 (unknown)."""
    return f"{in_unit_of(size_bytes, whole)} of {size(whole)}" if whole else size(size_bytes)


def in_unit_of(size_bytes: float, whole: float) -> str:
    """``size_bytes`` as a number in the unit and precision of ``whole``."""
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
