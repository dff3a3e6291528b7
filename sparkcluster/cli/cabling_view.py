"""Draws which port is cabled to which as text: machines, and a letter for each cable and switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sparkcluster.cli.drawing import Row, rate, stack
from sparkcluster.report import count
from sparkcluster.setup.ports import ports_of

if TYPE_CHECKING:
    from sparkcluster.facts.survey import Survey
    from sparkcluster.setup.cabling import Cabling
    from sparkcluster.setup.ports import Port


def draw(surveys: Mapping[str, Survey], cabling: Cabling, width: int) -> list[list[str]]:
    """Lines of the drawing, at most ``width`` columns wide if the names allow it, each in parts."""
    alone = tuple(node for node in cabling.nodes if not any(node in group for group in cabling.groups))
    parts = []
    for group in cabling.groups:
        own = [segment for segment in cabling.segments if segment.nodes[0] in group]
        joined = "a switch" if any(each.kind == "switch" for each in own) else count(len(own), "cable")
        parts.append((f"{len(group)} machines, {joined}", group))
    if alone:
        parts.append(("not connected to the others" if parts else "not connected", alone))
    ends = {each.port.key: ", ".join(name.partition(" (")[0] for name in each.seen) for each in cabling.loose}
    rails = _rails(cabling)
    lines: list[list[str]] = []
    for heading, nodes in parts:
        lines += [[], [heading], *stack([_node(node, surveys[node], rails, ends) for node in nodes], width)]
    return lines[1:]


Ports = Mapping[tuple[str, str], str]
"""Text by ``Port.key``."""


def _rails(cabling: Cabling) -> Ports:
    """The legend for each port on a cable or switch."""
    named = {}
    for number, segment in enumerate(cabling.segments, 1):
        ends = " to ".join(f"{port.node} {port.name}" for port in segment.ports)
        name = f"cable from {ends}" if segment.kind == "cable" else f"switch {number}"
        named.update({port.key: name for port in segment.ports})
    return named


def _node(node: str, survey: Survey, rails: Ports, ends: Ports) -> list[Row]:
    management = survey.management()
    title = ", ".join(dict.fromkeys([node, *([str(management.ip)] if management else [])]))
    rows = [row for port in ports_of(node, survey) for row in _rows(port, rails.get(port.key), ends.get(port.key))]
    return [Row((title,), style="bold"), *(rows or [Row(("no cable",))])]


def _rows(port: Port, rail: str | None, end: str | None) -> Iterator[Row]:
    if not port.cabled:
        yield Row((f"{port.name} no cable",))
        return
    for twin in port.twins:
        address = twin.addresses[0].partition("/")[0] if twin.addresses else "no address"
        state = "" if twin.carrier else "down"
        yield Row((port.name, twin.name, address, "", state, *rate(twin)), rail=rail)
    if rail is None:
        yield Row((f"{port.name} {f'sees {end}' if end else 'nothing answers'}",))
