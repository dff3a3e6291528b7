"""Draws which port is cabled to which, as text: machines as boxes, cables and switches as double lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sparkcluster.cli.drawing import Row, rate, stack

if TYPE_CHECKING:
    from sparkcluster.facts.network import Interface
    from sparkcluster.facts.survey import Survey
    from sparkcluster.setup.cabling import Cabling
    from sparkcluster.setup.ports import Port
    from sparkcluster.setup.rails import Proposal

_KINDS = {
    "one cable": "one cable",
    "two cables": "two cables",
    "ring": "a ring of three",
    "line": "cables in a line",
    "switch": "a switch",
    "mixed": "several cables or switches",
}


def draw(
    surveys: Mapping[str, Survey], cabling: Cabling, proposal: Proposal | None = None, *, width: int = 80
) -> list[str]:
    """Lines of the drawing, at most ``width`` columns wide if the names allow it.

    Connected machines are together; addresses are those of ``proposal``, else what the machines have.
    """
    labels = _labels(cabling, proposal)
    connected = {node for fabric in cabling.fabrics for node in fabric.nodes}
    parts = [(f"{len(fabric.nodes)} machines, {_KINDS[fabric.kind]}", fabric.nodes) for fabric in cabling.fabrics]
    alone = tuple(node for node in cabling.nodes if node not in connected)
    if alone:
        parts.append(("connected to none of the others" if parts else "not connected", alone))
    lines: list[list[str]] = []
    for heading, nodes in parts:
        drawn = stack([_node(node, surveys[node], cabling, labels, proposal) for node in nodes], width)
        lines += [[], [heading], *drawn]
    return ["".join(parts) for parts in lines[1:]]


def _labels(cabling: Cabling, proposal: Proposal | None) -> dict[int, str]:
    """What the legend says of each segment, by its position."""
    found = {}
    for position, segment in enumerate(cabling.segments):
        ends = " to ".join(f"{port.node} {port.name}" for port in segment.ports)
        name = f"cable from {ends}" if segment.kind == "cable" else f"switch {position + 1}"
        subnets = [str(rail.subnet) for rail in proposal.rails if rail.segment == segment] if proposal else []
        found[position] = " ".join([name, *subnets])
    return found


def _node(
    node: str, survey: Survey, cabling: Cabling, labels: Mapping[int, str], proposal: Proposal | None
) -> list[Row]:
    from sparkcluster.setup.ports import ports_of

    management = survey.management()
    title = ", ".join(dict.fromkeys([node, *([str(management.ip)] if management else [])]))
    rails = {port.key: labels[at] for at, segment in enumerate(cabling.segments) for port in segment.ports}
    ends = {each.port.key: f"reports {_few(list(map(str, each.others)))}, not confirmed" for each in cabling.one_sided}
    ends |= {
        each.port.key: f"cabled to {_few([seen.name or seen.mac for seen in each.seen])}"
        for each in cabling.loose
        if each.seen
    }
    given = proposal.addresses.get(node, {}) if proposal else {}
    rows: list[Row] = []
    for port in ports_of(node, survey):
        rows += _rows(
            port, rails.get(port.key), ends.get(port.key), {name: str(each.ip) for name, each in given.items()}
        )
    return [Row((title,), style="bold"), *(rows or [Row(("no cable",))])]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{', '.join(names[:2])}{more}"


def _rows(port: Port, rail: str | None, end: str | None, given: Mapping[str, str]) -> Iterator[Row]:
    """``end`` is what is at the other end of a port that is on no rail."""
    if not port.cabled:
        yield Row((f"{port.name} no cable",))
        return
    for twin in port.twins:
        now = twin.addresses[0].partition("/")[0] if twin.addresses else ""
        fields = (
            port.name,
            twin.name,
            given.get(twin.name, now),
            "",
            _state(twin, now, given.get(twin.name)),
            *rate(twin),
        )
        yield Row(fields, rail=rail)
    if rail is None:
        yield Row((f"{port.name} {end}" if end else f"{port.name}: nothing answers",))


def _state(twin: Interface, now: str, given: str | None) -> str:
    if not twin.carrier:
        return "down"
    if given is None:
        return "" if now else "no address"
    return "" if now == given else "new"
