"""Draws the cluster as text: nodes, the rails of their ports, and the codes of findings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sparkcluster.cli.output import paint, style
from sparkcluster.facts.base import read
from sparkcluster.facts.network import port_of
from sparkcluster.topology.candidates import is_up

if TYPE_CHECKING:
    from sparkcluster.facts.model import Facts
    from sparkcluster.facts.network import Interface
    from sparkcluster.findings import Finding
    from sparkcluster.inspect.cluster import View
    from sparkcluster.topology.model import Group, Link

_MARKS = {"error": ("✗", "bold bad"), "warning": ("!", "warn")}
_KINDS = {
    "direct": "a direct cable",
    "switch": "a switch",
    "ring": "a ring of three",
    "management": "no interconnect",
    "single": "one node",
}


class Row(NamedTuple):
    """One line of a node: seven fields or a single text, and the rail that it is attached to."""

    fields: tuple[str, ...]
    rail: str | None = None
    style: str = ""


def draw(view: View, findings: Sequence[Finding], width: int) -> list[list[str]]:
    """Lines of the drawing, each in parts; at most ``width`` columns wide if the names allow it.

    Errors and warnings are shown by code below the interface that they name, else below the node.
    """
    groups = {group.name: group for group in view.topology.groups} if view.topology else {}
    written = [(group.name, group.nodes) for group in view.spec.inventory.groups]
    lines: list[list[str]] = []
    for name, nodes in written or [("default", [node.label for node in view.spec.inventory.nodes])]:
        group = groups.get(name)
        heading = f"group {name}: " if len(written) > 1 else ""
        heading += f"{len(nodes)} nodes, " if len(nodes) > 1 else ""
        heading += _KINDS[group.kind] if group else "topology unknown"
        lines += [[], [heading], *stack([_node(view, findings, node, group) for node in nodes], width)]
    return lines[1:]


def styled(view: View, findings: Sequence[Finding]) -> list[list[tuple[str, str]]]:
    """The drawing for the web page, 76 columns wide: each part with its style (bold, warn, bad or none)."""
    return [[(part, style(part)) for part in line] for line in draw(view, findings, 76)]


def _node(view: View, findings: Sequence[Finding], node: str, group: Group | None) -> list[Row]:
    """A node's name, role and address; then its links, with the findings about them."""
    facts = view.facts.get(node)
    host = next(entry.host for entry in view.spec.inventory.nodes if entry.label == node)
    member = next((member for member in group.members if member.name == node), None) if group else None
    role = f"rank {member.rank}" if member and member.rank else "head" if member else "not placed"
    rows = [Row((", ".join(dict.fromkeys([node, role if facts else "did not answer", host])),), style="bold")]
    if facts is not None:
        links = member.links if member else ()
        rows += [*_used(links, facts), *_unused({link.interface for link in links}, facts)]
    below: list[dict[Row, None]] = [{row: None} for row in rows]
    for finding in findings:
        if finding.node == node and finding.severity in _MARKS:
            mark, style = _MARKS[finding.severity]
            for at in _rows_of(finding, rows) or [0]:
                below[at][Row((f"  {mark} {finding.code}",), style=style)] = None
    return [row for marked in below for row in marked]


def _rows_of(finding: Finding, rows: Sequence[Row]) -> list[int]:
    """Rows whose interface, address or HCA is in the finding's summary or in what it saw."""
    words = {word.rstrip(".:-") for word in re.findall(r"[\w.:-]+", f"{finding.summary} {finding.seen}")}
    return [at for at, row in enumerate(rows) if words & {*row.fields[1:4]}]


def _used(links: Sequence[Link], facts: Facts) -> Iterator[Row]:
    for link in links:
        interface, hca = facts.interface(link.interface), facts.hca(link.hca or "")
        state = "no GID" if link.gid_index is None else f"GID {link.gid_index}"
        if interface is not None and not is_up(interface):
            state = "down" if interface.carrier else "no cable"
        elif hca is None or not hca.active:
            state = hca.state if hca else ""
        label = interface.port if interface else port_of(link.interface)
        yield Row((label, link.interface, link.address, link.hca or "no HCA", state, *rate(link)), link.subnet)


def _unused(used: set[str], facts: Facts) -> Iterator[Row]:
    """Unused interfaces with an HCA, by port."""
    twins = [each for each in read(facts.interfaces) or () if each.name not in used and facts.hca_of(each.name)]
    lines: dict[str, None] = {}
    for twin in sorted(twins, key=lambda twin: twin.port):
        alone = twin.carrier or twin.port in map(port_of, used)
        why = "no cable" if not twin.carrier else "not in use" if twin.addresses else "no address"
        lines[f"{twin.name if alone else twin.port or twin.name} {why}"] = None
    yield from (Row((line,)) for line in lines)


def rate(link: Link | Interface) -> tuple[str, str]:
    """Speed, such as 200G (empty if unknown), and MTU."""
    return (f"{link.speed_mbps / 1000:g}G" if link.speed_mbps and link.speed_mbps > 0 else "", f"MTU {link.mtu}")


def stack(nodes: Sequence[Sequence[Row]], width: int) -> list[list[str]]:
    """Lines of the nodes, one below the other: each row begins with the letter of its rail; a legend follows.

    The first row of a node is its title.
    """
    rows = [row for node in nodes for row in node]
    rails = list(dict.fromkeys(row.rail for row in rows if row.rail is not None))
    sizes = [max(map(len, column)) for column in zip(*(row.fields for row in rows if len(row.fields) > 1), strict=True)]
    lines = []
    for node in nodes:
        for row in node:
            cells = [field.ljust(size) for field, size in zip(row.fields, sizes, strict=False) if size]
            text = " ".join(cells if len(row.fields) > 1 else row.fields)
            letter = f"  {' ' if row.rail is None else chr(65 + rails.index(row.rail))} " if row != node[0] else ""
            first, *more = _wrapped(text, width - len(letter))
            lines += [[letter, paint(first, row.style) if row.style else first], *([f"    {line}"] for line in more)]
    legend = "  ".join(f"{chr(65 + at)}={rail}" for at, rail in enumerate(rails))
    return [*lines, *([line] for line in _wrapped(legend, width))]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text.rstrip(), max(width, 12), subsequent_indent="   ")
