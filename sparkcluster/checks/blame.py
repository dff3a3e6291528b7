"""Whose fault it is that pairs of nodes do not reach each other. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from sparkcluster.facts.reach import Path

Way = tuple[str, str]
"""A direction in which packets are lost: from, to."""


def blame(failed: Iterable[Path], *, nodes: int) -> dict[str | None, list[Path]]:
    """Failed paths of one rail by the node that they are blamed on; None for those of which it cannot be said.

    A packet that arrived although its answer did not was lost on the way back. A node that most of the losses have
    in common is to blame for all of its own; where two stand alike, as with two nodes and a cable that carries
    nothing in either direction, nobody is. Nor is anyone where none of ``nodes`` reaches any other.
    """
    paths = list(failed)
    blamed: dict[str | None, list[Path]] = {}
    # What never left its node says more than what the other end of that pair did not hear.
    certain = {frozenset((one.source, one.target)): one.source for one in paths if one.lost_at == "sent"}
    ways: dict[Way, list[Path]] = {}
    for one in paths:
        owner = certain.get(frozenset((one.source, one.target)))
        if owner is not None:
            blamed.setdefault(owner, []).append(one)
        else:
            way = (one.target, one.source) if one.lost_at == "source" else (one.source, one.target)
            ways.setdefault(way, []).append(one)
    if nodes > 2 and len(ways) == nodes * (nodes - 1):
        blamed.setdefault(None, []).extend(path for held in ways.values() for path in held)
        ways.clear()
    while ways:
        node, explained = _most_blamed(ways)
        blamed.setdefault(node, []).extend(path for way in explained for path in ways.pop(way))
    return blamed


def _most_blamed(ways: Collection[Way]) -> tuple[str | None, list[Way]]:
    """The node in most of ``ways``, among equals the one that they lead to, and those ways; None where two do alike."""
    count = Counter(node for way in ways for node in way)
    led_to = Counter(target for _, target in ways)

    def weight(node: str) -> tuple[int, int]:
        return count[node], led_to[node]

    def of(node: str) -> list[Way]:
        return [way for way in ways if node in way]

    first = min(count, key=lambda node: (-count[node], -led_to[node], node))
    alike = [node for node in count if node != first and weight(node) == weight(first) and of(node) == of(first)]
    return (None if alike else first), of(first)


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *others, last = list(names)
    return f"{', '.join(others)} and {last}" if others else last
