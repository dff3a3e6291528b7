"""A pending switch to another release, from ``switch.json`` on every node. Pure.

It is pending until every node has a record in which all switched groups have this or a later release number.
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
    """A switch that was started but not completed.

    Attributes:
        document: its latest ``switch.json``.
        whole: whether every node has this document; if not, writing it was interrupted.
    """

    document: Mapping[str, Any]
    whole: bool

    @property
    def source(self) -> int:
        """The release that served before the switch."""
        return int(self.document["source"])

    def as_json(self) -> dict[str, Any]:
        """The part that ``status`` shows."""
        return {key: self.document[key] for key in ("source", "number", "back", "groups", "operator", "began_at")}

    @property
    def groups(self) -> list[str]:
        """The groups to switch."""
        return list(self.document["groups"])


def pending(facts: Mapping[str, Facts], newest: ReleaseFact | None) -> Switch | None:
    """The pending switch, or None."""
    found = {name: switch for name, node in facts.items() if (switch := read(node.switch)) is not None}
    recorded = recorded_groups(newest.record) if newest else {}
    # If nodes have different releases, recording the completed switch was interrupted.
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
    """Whether any node has the journal of a switch, pending or completed."""
    return any(node.switch is not None for node in facts.values())
