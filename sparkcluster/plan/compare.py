"""The differences between two recorded releases, as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkcluster.facts.model import ReleaseFact
from sparkcluster.plan.diff import difference
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.report import speed_change

LONGEST = 60


def compare(old: ReleaseFact, new: ReleaseFact) -> list[str]:
    """One line per difference in plan, image, versions, verification, and measurements of a switch.

    Records of older versions lack versions and measurements; these are then skipped.
    """
    lines = [*_identity(old.record, new.record)]
    if old.nodes and new.nodes:
        lines += difference(old.record["plan"], new.record["plan"])
    before, after = recorded_groups(old.record), recorded_groups(new.record)
    for name in after.keys() & before.keys():
        group = f"{name}: " if len(after) > 1 else ""
        lines += (f"{group}{line}" for line in _group(before[name], after[name], old.number))
    return lines


def _identity(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key, label in (("operator", "operator"), ("version", "sparkcluster"), ("image_digest", "digest")):
        before, after = (re.sub(r" \(pid \d+\)$", "", str(each.get(key) or "unknown")) for each in (old, new))
        if before != after:
            yield f"{label}: {before} → {after}"


def _group(old: RecordedGroup, new: RecordedGroup, source: int) -> Iterator[str]:
    layers = [set((group.image or {}).get("layers", ())) for group in (old, new)]
    if all(layers) and layers[0] != layers[1]:
        yield f"image: {len(layers[1] - layers[0])} of {len(layers[1])} layers are new"
    yield from versions(old.versions, new.versions)
    if old.verify != new.verify:
        yield "verify was edited"
    switch = new.measured.get("switch") or {}
    if switch.get("source") == source:
        yield f"speed: {speed_change(switch['before'], switch['after'])}"


def versions(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """One line per changed version, with its nodes unless it changed equally on all."""
    changed: dict[str, list[str]] = {}
    nodes = [name for name in new if name in old]
    for node in nodes:
        for what in [*new[node], *(what for what in old[node] if what not in new[node])]:
            before, after = old[node].get(what), new[node].get(what)
            if before != after:
                changed.setdefault(f"{what} {before or 'none'} → {after or 'none'}", []).append(node)
    for line, where in changed.items():
        yield line if where == nodes else f"{line} on {', '.join(where)}"


def edited(old: Any, new: Any, path: str = "") -> list[str]:
    """One line per changed key of two recorded playbooks; a single line if their names differ."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or "." in path:
        return [f"{path or 'playbook'} {_short(old)} → {_short(new)}"] if old != new else []
    if not path and old.get("name") != new.get("name"):
        return edited(old.get("name"), new.get("name"))
    keys = sorted(old.keys() | new.keys(), key=lambda key: (key != "image", key))
    return [line for key in keys for line in edited(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
