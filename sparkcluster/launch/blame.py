"""Whose death a log tells of: the head repeats what its workers said, and ends because of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sparkcluster.engines.base import Engine


def blamed(engine: Engine, lines: Sequence[str], members: Sequence[str]) -> int | None:
    """The rank that a log of its group blames, or None where it blames nobody.

    Args:
        engine: what the ranks run.
        lines: of one rank's log, oldest first.
        members: addresses of the group's nodes, by rank.
    """
    for pattern in engine.culprits:
        for line in lines:
            found = pattern.search(line)
            if found is None:
                continue
            place = found.groupdict()
            number = place.get("rank") or place.get("other")
            if number is not None and int(number) < len(members):
                return int(number)
            if place.get("address") in members:
                return members.index(str(place["address"]))
    return None
