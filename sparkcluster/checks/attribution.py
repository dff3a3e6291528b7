"""Find the node at fault for failed connections between pairs of nodes, and describe the attempts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from sparkcluster.checks.compare import listed
from sparkcluster.facts.between import Path, Rate

T = TypeVar("T")

Way = tuple[str, str]
"""Direction of lost packets: from, to."""


def by_faulty_node(failed: Iterable[Path], *, nodes: int) -> dict[str | None, list[Path]]:
    """Failed paths of one rail by the node at fault; None if the node is unknown.

    If a packet arrived but its reply did not, the reply was lost. The node in most losses is at fault for all of its
    losses. The node is unknown on a tie, as with two nodes and a dead cable, or if none of ``nodes`` reaches another.
    """
    paths = list(failed)
    result: dict[str | None, list[Path]] = {}
    # A packet that could not be sent is better evidence than a packet that did not arrive.
    certain = {frozenset((path.source, path.target)): path.source for path in paths if path.lost_at == "sent"}
    ways: dict[Way, list[Path]] = {}
    for path in paths:
        faulty = certain.get(frozenset((path.source, path.target)))
        if faulty is not None:
            result.setdefault(faulty, []).append(path)
        else:
            way = (path.target, path.source) if path.lost_at == "source" else (path.source, path.target)
            ways.setdefault(way, []).append(path)
    for node, attributed in by_common_node(ways, nodes=nodes).items():
        result.setdefault(node, []).extend(attributed)
    return result


def by_common_node(ways: Mapping[Way, list[T]], *, nodes: int) -> dict[str | None, list[T]]:
    """Observations by the node in most of their ``ways``; see ``by_faulty_node``."""
    remaining, result = dict(ways), dict[str | None, list[T]]()
    if nodes > 2 and len(remaining) == nodes * (nodes - 1):
        return {None: [item for items in remaining.values() for item in items]}
    while remaining:
        node, explained = _most_common_node(remaining)
        result.setdefault(node, []).extend(item for way in explained for item in remaining.pop(way))
    return result


def _most_common_node(ways: Collection[Way]) -> tuple[str | None, list[Way]]:
    """The node in most of ``ways`` (on a tie, their target) with its ways; None if two nodes are equal."""
    count = Counter(node for way in ways for node in way)
    led_to = Counter(target for _, target in ways)

    def weight(node: str) -> tuple[int, int]:
        return count[node], led_to[node]

    def of(node: str) -> list[Way]:
        return [way for way in ways if node in way]

    first = min(count, key=lambda node: (-count[node], -led_to[node], node))
    equal = [node for node in count if node != first and weight(node) == weight(first) and of(node) == of(first)]
    return (None if equal else first), of(first)


def ends(attempts: Iterable[Path | Rate], but: str | None = None) -> list[str]:
    """Nodes of the attempts, sorted, without ``but``."""
    return sorted({name for each in attempts for name in each.nodes} - {but})


def between(node: str | None, attempts: Iterable[Path | Rate]) -> str:
    """``between a and b``, with ``node`` first."""
    others = listed(ends(attempts, node))
    return f"between {others}" if node is None else f"between {node} and {others}"


def rails(attempts: Iterable[Path | Rate]) -> str:
    """Subnets of the attempts, or the interface or network used."""
    own = (each.subnet or (each.over if isinstance(each, Rate) else "the management network") for each in attempts)
    return listed(sorted(dict.fromkeys(own)))
