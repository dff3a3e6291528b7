"""Draws the cluster as text: nodes as boxes, rails as double lines, findings as codes at their place."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.facts.model import Facts
    from sparkcluster.facts.network import Interface
    from sparkcluster.findings import Finding
    from sparkcluster.spec import Spec
    from sparkcluster.topology.model import Group, Link, Member, Topology

MARKS = {"error": "✗", "warning": "!"}
# For encodings without box-drawing characters.
_PLAIN = str.maketrans("─│┌┐└┘├┤═║╔╚╠╬╡╪✗…○·", "-|++++++=|++++|+x~o-") | {ord("→"): "->"}
_KINDS = {
    "direct": "a direct cable",
    "switch": "a switch",
    "ring": "a ring of three",
    "management": "no interconnect",
    "single": "one node",
}


Position = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of a node: its fields, its rail, and the codes of its findings.

    Attributes:
        fields: seven, or a single text.
        names: interface, address and HCA that a single text is about; in other rows they are fields.
    """

    fields: tuple[str, ...]
    rail: str | None = None
    marks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """One node."""

    title: str
    rows: tuple[Row, ...]
    marks: tuple[str, ...] = ()


def draw(
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology | None,
    findings: Sequence[Finding],
    *,
    width: int = 80,
) -> list[str]:
    """Lines of the drawing, at most ``width`` columns wide if the names allow it.

    Errors and warnings among ``findings`` are shown by code at the twin that they name, else at the node.
    """
    groups = {group.name: group for group in topology.groups} if topology else {}
    written = [(group.name, group.nodes) for group in spec.inventory.groups]
    written = written or [("default", [node.label for node in spec.inventory.nodes])]
    lines: list[str] = []
    for name, nodes in written:
        group = groups.get(name)
        boxes = [_box(spec, node, facts.get(node), group, findings) for node in nodes]
        lines += ([""] if lines else []) + [_heading(name, nodes, group, many=len(written) > 1)]
        lines += stack(boxes, width)
    return [line.rstrip() for line in lines]


def plain(lines: Sequence[str]) -> list[str]:
    """``lines`` in ASCII."""
    return [line.translate(_PLAIN).encode("ascii", "replace").decode() for line in lines]


def _heading(name: str, nodes: Sequence[str], group: Group | None, *, many: bool) -> str:
    count = f"{len(nodes)} nodes, " if len(nodes) > 1 else ""
    joined = _KINDS[group.kind] if group else "topology unknown"
    if group and group.kind in {"direct", "switch", "ring"} and not any(member.hcas for member in group.members):
        joined += ", without RDMA"
    return f"{f'group {name}: ' if many else ''}{count}{joined}"


def _box(spec: Spec, node: str, facts: Facts | None, group: Group | None, findings: Sequence[Finding]) -> Box:
    host = next(entry.host for entry in spec.inventory.nodes if entry.label == node)
    member = next((member for member in group.members if member.name == node), None) if group else None
    if facts is None or member is None:
        role = "did not answer" if facts is None else "not placed"
    else:
        role = f"rank {member.rank}" if member.rank else "head"
    rows = [] if facts is None else list(_rows(facts, member, group))
    of_node = [finding for finding in findings if finding.node == node and finding.severity in MARKS]
    of_rows = [(finding, _rows_of(finding, rows)) for finding in of_node]
    marked = [
        dataclasses.replace(row, marks=_marks([finding for finding, named in of_rows if row in named])) for row in rows
    ]
    elsewhere = _marks([finding for finding, named in of_rows if not named])
    return Box(" ─ ".join([node, role, *([host] if host != node else [])]), tuple(marked), elsewhere)


def _marks(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{MARKS[finding.severity]} {finding.code}" for finding in findings))


def _rows_of(finding: Finding, rows: Sequence[Row]) -> list[Row]:
    """Rows whose interface, HCA or address is in the summary of the finding, or else in what it saw."""
    for text in (finding.summary, finding.seen):
        words = {word.rstrip(".:-") for word in re.findall(r"[\w.:-]+", text)}
        named = [row for row in rows if words & _named(row)]
        if named:
            return named
    return []


def _named(row: Row) -> set[str]:
    """Interface, address and HCA of a row."""
    return {name for name in (row.names or row.fields[1:4]) if name}


def _rows(facts: Facts, member: Member | None, group: Group | None) -> Iterator[Row]:
    """The twins in use, the other interfaces with an HCA, and the address of the rendezvous if it is on neither."""
    links = list(member.links) if member else []
    for link in links:
        yield _used(link, facts)
    used = {link.interface for link in links}
    ports: dict[str, list[tuple[Interface, str]]] = {}
    for interface in facts.interfaces if isinstance(facts.interfaces, tuple) else ():
        hca = facts.hca_of(interface.name)
        if interface.name not in used and hca is not None:
            ports.setdefault(port(interface.name, interface), []).append((interface, hca.name))
    for label, twins in sorted(ports.items()):
        if not (any(twin.carrier for twin, _ in twins) or any(port(name, None) == label for name in used)):
            yield Row((f"{label} no cable".strip(),))
            continue
        for twin, hca_name in twins:
            address = twin.addresses[0].partition("/")[0] if twin.addresses else ""
            why = "no cable" if not twin.carrier else "no address" if not address else "not in use"
            yield Row((label, twin.name, address, hca_name, why, speed(twin.speed_mbps), f"MTU {twin.mtu}"))
    if member and group and group.kind in {"ring", "management"}:
        rendezvous = (member.interface, member.address)
        yield Row((f"{' '.join(rendezvous)}: rendezvous of the ranks",), names=rendezvous)


def _used(link: Link, facts: Facts) -> Row:
    interface, hca = facts.interface(link.interface), facts.hca(link.hca or "")
    if interface is not None and not interface.carrier:
        state = "no cable"
    elif interface is not None and interface.operstate.lower() not in {"up", "unknown"}:
        state = "down"
    elif link.hca is None:
        state = ""
    elif hca is not None and not hca.active:
        state = hca.state
    else:
        state = "no GID" if link.gid_index is None else f"GID {link.gid_index}"
    fields = (
        port(link.interface, interface),
        link.interface,
        link.address,
        link.hca or "no HCA",
        state,
        speed(link.speed_mbps),
        f"MTU {link.mtu}",
    )
    return Row(fields, rail=link.subnet)


def port(name: str, interface: Interface | None) -> str:
    """Physical port of a twin; empty if unknown."""
    from sparkcluster.facts.network import port_of

    return interface.port if interface is not None else port_of(name)


def speed(mbps: int | None) -> str:
    """Speed of a link, such as 200G; empty if unknown."""
    return f"{mbps / 1000:g}G" if mbps and mbps > 0 else ""


def stack(boxes: Sequence[Box], width: int) -> list[str]:
    """Lines of the boxes below each other, with the rails to their left."""
    gutter = Gutter(boxes)
    inner = width - gutter.width - 4
    columns = _columns(boxes, inner)
    bodies = [[list(_lines(row, columns, inner)) for row in box.rows] for box in boxes]
    widths = [len(box.title) + 3 for box in boxes] + [len(" ".join(box.marks)) for box in boxes]
    widths += [len(line) for body in bodies for lines in body for line in lines]
    inner = min(inner, max(widths, default=0))
    drawn = []
    for number, (box, body) in enumerate(zip(boxes, bodies, strict=True)):
        corner, end = ("┌", "┐") if number == 0 else ("├", "┤")
        title = _cut(box.title, inner - 1)
        drawn.append(f"{gutter.begin(number)}{corner}─ {title} {'─' * (inner - len(title) - 1)}{end}")
        beside = gutter.along((number, -1)) + "│"
        drawn += [f"{beside} {text.ljust(inner)} │" for text in _wrapped("  ".join(box.marks), inner)]
        for position, (row, lines) in enumerate(zip(box.rows, body, strict=True)):
            beside = gutter.along((number, position)) + "│"
            first = beside if row.rail is None else gutter.attach((number, position), row.rail) + "╡"
            for prefix, line in zip([first, *[beside] * len(lines)], lines, strict=False):
                drawn.append(f"{prefix} {_cut(line, inner).ljust(inner)} │")
    drawn.append(f"{' ' * gutter.width}└{'─' * (inner + 2)}┘")
    return drawn + gutter.legend(width)


def _columns(boxes: Sequence[Box], inner: int) -> list[int] | None:
    """Widths of the fields if they fit on one line."""
    rows = [row for box in boxes for row in box.rows if len(row.fields) > 1]
    widths = [max((len(row.fields[at]) for row in rows), default=0) for at in range(7)]
    return widths if sum(widths) + sum(1 for size in widths if size) - 1 <= inner else None


def _lines(row: Row, columns: list[int] | None, inner: int) -> Iterator[str]:
    if columns is not None and len(row.fields) > 1:
        yield " ".join(field.ljust(size) for field, size in zip(row.fields, columns, strict=True) if size).rstrip()
    else:
        yield from _wrapped(" ".join(field for field in row.fields if field), inner, "   ")
    if row.marks:
        yield from _wrapped(f"   {'  '.join(row.marks)}", inner, "   ")


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    import textwrap

    # Do not break "GID 3", "MTU 9000" and "✗ NET-006".
    joined = re.sub(r"(?<=\b(?:GID|MTU)) |(?<=✗) |(?<=!) ", "\0", text)
    lines = textwrap.wrap(joined, max(width, 12), subsequent_indent=indent)
    return [line.replace("\0", " ") for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


class Gutter:
    """The rails to the left of the boxes: one column each, used again after the end of a rail.

    Positions are those of rows: number of the box and of the row in it; row -1 is its title.
    """

    def __init__(self, boxes: Sequence[Box]) -> None:
        spans: dict[str, list[Position]] = {}
        for number, box in enumerate(boxes):
            for position, row in enumerate(box.rows):
                if row.rail is not None:
                    spans.setdefault(row.rail, []).append((number, position))
        self._spans = {rail: (positions[0], positions[-1]) for rail, positions in spans.items()}
        self._columns: dict[str, int] = {}
        ends: list[Position] = []
        for rail, (first, last) in self._spans.items():
            column = next((column for column, end in enumerate(ends) if end[0] < first[0]), len(ends))
            ends[column : column + 1] = [last]
            self._columns[rail] = column
        self._count = len(ends)

    @property
    def width(self) -> int:
        """Characters to the left of the boxes."""
        return 2 * self._count + 1 if self._count else 0

    def _letter(self, rail: str) -> str:
        return string.ascii_uppercase[list(self._spans).index(rail) % 26]

    def _cells(self, at: Position) -> dict[int, str]:
        """Rails that continue below ``at``, by column."""
        return {self._columns[rail]: "║" for rail, (first, last) in self._spans.items() if first <= at < last}

    def _line(self, cells: Mapping[int, str]) -> str:
        return (" " if self._count else "") + "".join(f"{cells.get(column, ' ')} " for column in range(self._count))

    def begin(self, number: int) -> str:
        """Beside the title of a box: the letters of the rails that begin in it."""
        letters = {
            self._columns[rail]: self._letter(rail) for rail, (first, _) in self._spans.items() if first[0] == number
        }
        return self._line(self._cells((number, -1)) | letters)

    def along(self, at: Position) -> str:
        """Beside a line without a rail, at or below ``at``."""
        return self._line(self._cells(at))

    def attach(self, at: Position, rail: str) -> str:
        """Beside the first line of the row ``at``: its rail, drawn to the box."""
        first, last = self._spans[rail]
        column = self._columns[rail]
        node = "○" if first == last else "╔" if at == first else "╚" if at == last else "╠"
        before = self._line(self._cells(at))[: 1 + 2 * column]
        passing = self._cells(at)
        right = "".join(("╬" if each in passing else "═") + "═" for each in range(column + 1, self._count))
        return f"{before}{node}═{right}"

    def legend(self, width: int) -> list[str]:
        """Which letter is which subnet."""
        subnets = "  ".join(f"{self._letter(rail)}\0{rail}" for rail in self._spans)
        return _wrapped(subnets, width) if subnets else []
