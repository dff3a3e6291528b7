"""The topology of a group in the record of a release, and its drift since then. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sparkcluster.topology.model import Group, Member


def document(group: Group) -> dict[str, Any]:
    """``group`` as JSON."""
    found: dict[str, Any] = TypeAdapter(Group).dump_python(group, mode="json")
    return found


def restored(recorded: Mapping[str, Any]) -> Group | None:
    """The group in a document; None if it is invalid or has no members. Unknown keys are ignored."""
    try:
        group = TypeAdapter(Group).validate_python(recorded)
    except ValidationError:
        return None
    return group if group.members else None


def drift(before: Group, now: Group | None) -> list[str]:
    """Changes since the start in addresses, interfaces and GID indices that the ranks use, one per line.

    ``now`` is None if the current facts allow no topology.
    """
    if now is None:
        return ["the interconnect that its ranks use is no longer found"]
    current = {member.name: member for member in now.members}
    lines = []
    for member in before.members:
        if member.name in current:
            lines += [f"{member.name}: {line}" for line in _member(member, current[member.name])]
    if before.endpoint != now.endpoint:
        lines.append(f"endpoint {before.endpoint} → {now.endpoint}")
    return lines


def _member(before: Member, now: Member) -> Iterator[str]:
    if before.address != now.address:
        yield f"address {before.address} → {now.address}"
    if before.interface != now.interface:
        yield f"interface {before.interface} → {now.interface}"
    links = {link.interface: link for link in now.links}
    for link in before.links:
        other = links.pop(link.interface, None)
        if other is None:
            yield f"{link.interface} is no longer in use"
            continue
        if link.address not in {other.address, before.address}:
            yield f"address of {link.interface} {link.address} → {other.address}"
        if link.gid_index != other.gid_index:
            yield f"GID index of {link.hca or link.interface} {link.gid_index} → {other.gid_index}"
    for name in links:
        yield f"{name} is in use now"
