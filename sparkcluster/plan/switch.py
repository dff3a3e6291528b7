"""The switch to another release that is under way, as ``switch.json`` on every node has it. Pure.

It counts until every node has a record in which each of its groups has its number, or a later one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts, ReleaseFact
from sparkcluster.plan.release_record import recorded_groups


@dataclasses.dataclass(frozen=True, slots=True)
class Switch:
    """A switch that was begun and not ended.

    Attributes:
        document: what was written of it last.
        whole: whether every node has that; else it was cut off while it was written.
    """

    document: Mapping[str, Any]
    whole: bool

    @property
    def source(self) -> int:
        """The release that served before."""
        return int(self.document["source"])

    def as_json(self) -> dict[str, Any]:
        """What ``status`` shows of it."""
        return {key: self.document[key] for key in ("source", "number", "back", "groups", "operator", "began_at")}

    @property
    def groups(self) -> list[str]:
        """The groups that are switched."""
        return list(self.document["groups"])


def pending(facts: Mapping[str, Facts], newest: ReleaseFact | None) -> Switch | None:
    """The switch that was begun and not ended; None without any. Pure."""
    found = {name: switch for name, node in facts.items() if (switch := read(node.switch)) is not None}
    recorded = recorded_groups(newest.record) if newest else {}
    # It was cut off while its end was recorded, if not all nodes have that.
    everywhere = len({release.number for node in facts.values() if (release := read(node.release))}) == 1
    found = {
        name: switch
        for name, switch in found.items()
        if not everywhere
        or any(
            group not in recorded or not recorded[group].verified or recorded[group].release < switch["number"]
            for group in switch["groups"]
        )
    }
    if not found:
        return None
    last = max(found.values(), key=lambda switch: (switch["number"], switch["began_at"]))
    return Switch(last, whole=all(found.get(name) == last for name in facts))


def anything(facts: Mapping[str, Facts]) -> bool:
    """Whether a node has the journal of a switch, also of one that has ended."""
    return any(node.switch is not None for node in facts.values())
