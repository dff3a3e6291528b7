"""Whose fault it is that pairs of nodes do not reach each other. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from sparkcluster.facts.reach import Path

T = TypeVar("T")

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
    for node, held in share(ways, nodes=nodes).items():
        blamed.setdefault(node, []).extend(held)
    return blamed


def share(ways: Mapping[Way, list[T]], *, nodes: int) -> dict[str | None, list[T]]:
    """What was seen in ``ways`` by the node that most of them have in common, as ``blame`` says."""
    left, shared = dict(ways), dict[str | None, list[T]]()
    if nodes > 2 and len(left) == nodes * (nodes - 1):
        return {None: [item for held in left.values() for item in held]}
    while left:
        node, explained = _most_blamed(left)
        shared.setdefault(node, []).extend(item for way in explained for item in left.pop(way))
    return shared


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
