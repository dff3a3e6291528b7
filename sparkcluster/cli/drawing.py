"""The cluster as a drawing in text: nodes as boxes, rails as double lines, and the codes of findings where they are."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkcluster.facts.model import Facts, Interface
    from sparkcluster.findings import Finding
    from sparkcluster.spec import Spec
    from sparkcluster.topology.model import Group, Link, Member, Topology

MARKS = {"error": "✗", "warning": "!"}
# For terminals and files whose encoding has no lines to draw with.
_PLAIN = str.maketrans("─│┌┐└┘├┤═║╔╚╠╬╡╪✗…○·", "-|++++++=|++++|+x~o-")
_KINDS = {
    "direct": "a direct cable",
    "switch": "a switch",
    "ring": "a ring of three",
    "management": "no interconnect",
    "single": "one node",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of a node: its fields, the rail that it hangs on, the codes found there.

    Attributes:
        fields: seven, or one that is a sentence.
        names: interface, address and HCA of a sentence; of other rows they are fields.
    """

    fields: tuple[str, ...]
    rail: str | None = None
    marks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """One node."""

    title: tuple[str, ...]
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
    """Lines of the drawing, none wider than ``width`` as far as names allow.

    Args:
        spec: names the nodes and groups.
        facts: of the nodes that answered, by name.
        topology: who sits where, None where nobody could be seated.
        findings: errors and warnings are marked by code on the twin that they speak of, else on the node.
        width: columns.
    """
    groups = {group.name: group for group in topology.groups} if topology else {}
    written = [(group.name, group.nodes) for group in spec.inventory.groups]
    written = written or [("default", [node.label for node in spec.inventory.nodes])]
    lines: list[str] = []
    for name, nodes in written:
        group = groups.get(name)
        boxes = [_box(spec, node, facts.get(node), group, findings) for node in nodes]
        lines += ([""] if lines else []) + [_heading(name, nodes, group, many=len(written) > 1)]
        lines += _stack(boxes, width)
    return [line.rstrip() for line in lines]


def plain(lines: Sequence[str]) -> list[str]:
    """``lines`` in ASCII."""
    return [line.translate(_PLAIN).encode("ascii", "replace").decode() for line in lines]


def _heading(name: str, nodes: Sequence[str], group: Group | None, *, many: bool) -> str:
    count = f"{len(nodes)} nodes, " if len(nodes) > 1 else ""
    joined = _KINDS[group.kind] if group else "not examined together"
    if group and group.kind in {"direct", "switch", "ring"} and not any(member.hcas for member in group.members):
        joined += ", without RDMA"
    return f"{f'group {name}: ' if many else ''}{count}{joined}"


def _box(spec: Spec, node: str, facts: Facts | None, group: Group | None, findings: Sequence[Finding]) -> Box:
    host = next(entry.host for entry in spec.inventory.nodes if entry.label == node)
    member = next((member for member in group.members if member.name == node), None) if group else None
    own = [finding for finding in findings if finding.node == node and finding.severity in MARKS]
    role = "did not answer" if facts is None else "not seated" if member is None else _role(member)
    rows = [] if facts is None else list(_rows(facts, member, group))
    placed: dict[int, list[Finding]] = {}
    rest = []
    for finding in own:
        at = _places(finding, rows)
        for place in at:
            placed.setdefault(place, []).append(finding)
        if not at:
            rest.append(finding)
    marked = tuple(dataclasses.replace(row, marks=_marks(placed.get(place, []))) for place, row in enumerate(rows))
    return Box((node, role, *([host] if host != node else [])), marked, _marks(rest))


def _role(member: Member) -> str:
    return "head" if member.rank == 0 else f"rank {member.rank}"


def _marks(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{MARKS[finding.severity]} {finding.code}" for finding in findings))


def _places(finding: Finding, rows: Sequence[Row]) -> list[int]:
    """Rows whose interface, HCA or address the finding names, in what it says or else in what it saw."""
    for text in (finding.summary, finding.seen):
        words = set(re.findall(r"[\w.:-]*\w", text))
        at = [place for place, row in enumerate(rows) if words & _named(row)]
        if at:
            return at
    return []


def _named(row: Row) -> set[str]:
    """Interface, address and HCA of a row."""
    return {name for name in (row.names or row.fields[1:4]) if name}


def _rows(facts: Facts, member: Member | None, group: Group | None) -> Iterator[Row]:
    """The twins in use, then what else has an HCA; a node that meets the others elsewhere says where."""
    links = list(member.links) if member else []
    interfaces = {
        interface.name: interface for interface in (facts.interfaces if isinstance(facts.interfaces, tuple) else ())
    }
    for link in links:
        yield _used(link, interfaces.get(link.interface), facts)
    used = {link.interface for link in links}
    ports: dict[str, list[Interface]] = {}
    for interface in interfaces.values():
        if interface.name not in used and facts.hca_of(interface.name) is not None:
            ports.setdefault(port(interface.name, interface), []).append(interface)
    for label, twins in sorted(ports.items()):
        if not any(interface.carrier for interface in twins) and not any(
            port(link.interface, None) == label for link in links
        ):
            yield Row((f"{label} no cable".strip(),))
            continue
        for interface in twins:
            hca = facts.hca_of(interface.name)
            address = interface.addresses[0].partition("/")[0] if interface.addresses else ""
            why = "no cable" if not interface.carrier else "no address" if not address else "not in use"
            yield Row(
                (
                    label,
                    interface.name,
                    address,
                    hca.name if hca else "",
                    why,
                    _speed(interface.speed_mbps),
                    f"MTU {interface.mtu}",
                )
            )
    if member and group and group.kind in {"ring", "management"}:
        where = (member.interface, member.address)
        yield Row((f"{' '.join(where)}: where it meets the others",), names=where)


def _used(link: Link, interface: Interface | None, facts: Facts) -> Row:
    hca = next((hca for hca in facts.hcas if hca.name == link.hca), None) if isinstance(facts.hcas, tuple) else None
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
        _speed(link.speed_mbps),
        f"MTU {link.mtu}",
    )
    return Row(fields, rail=link.subnet)


def port(name: str, interface: Interface | None) -> str:
    """Physical port of a twin, as its driver or its name tells; empty where neither does."""
    if interface is not None and interface.phys_port_name:
        return interface.phys_port_name
    found = re.search(r"f([01])(?:np\d)?$", name)
    return f"p{found[1]}" if found else ""


def _speed(mbps: int | None) -> str:
    return f"{mbps / 1000:g}G" if mbps and mbps > 0 else ""


def _stack(boxes: Sequence[Box], width: int) -> list[str]:
    """The boxes one upon another, with the rails to their left."""
    gutter = Gutter(boxes)
    inner = width - gutter.width - 4
    columns = _columns(boxes, inner)
    wanted = [len(_joined(box.title)) + 3 for box in boxes]
    bodies = [[(row, line) for row in box.rows for line in _lines(row, columns, inner)] for box in boxes]
    wanted += [len(line) for body in bodies for _, line in body] + [len(" ".join(box.marks)) for box in boxes]
    inner = min(inner, max(wanted, default=0))
    lines = []
    for place, box in enumerate(boxes):
        corner, end = ("┌", "┐") if place == 0 else ("├", "┤")
        title = _cut(_joined(box.title), inner - 1)
        lines.append(f"{gutter.begin(place)}{corner}─ {title} {'─' * (inner - len(title) - 1)}{end}")
        beside = gutter.along(place)
        lines += [f"{beside}│ {text.ljust(inner)} │" for text in _wrapped("  ".join(box.marks), inner)]
        drawn: set[int] = set()
        for row, line in bodies[place]:
            attached = row.rail is not None and id(row) not in drawn
            drawn.add(id(row))
            left = gutter.attach(place, row) + "╡" if attached else gutter.along(place) + "│"
            lines.append(f"{left} {_cut(line, inner).ljust(inner)} │")
    lines.append(f"{' ' * gutter.width}└{'─' * (inner + 2)}┘")
    return lines + gutter.legend(width)


def _joined(words: Sequence[str]) -> str:
    return " ─ ".join(words)


def _columns(boxes: Sequence[Box], inner: int) -> list[int] | None:
    """Widths of the fields where all of them fit beside each other."""
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

    # "GID 3", "MTU 9000" and "✗ NET-006" each stay together
    held = re.sub(r"(?<=\b(?:GID|MTU)) |(?<=✗) |(?<=!) ", "\0", text)
    lines = textwrap.wrap(held, max(width, 12), subsequent_indent=indent, drop_whitespace=True)
    start = re.match(r" *", text)
    found = [line.replace("\0", " ") for line in lines]
    return [
        (start[0] if start and at == 0 and not line.startswith(" ") else "") + line for at, line in enumerate(found)
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


class Gutter:
    """The rails to the left of the boxes: one column each, used again where a rail has ended."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._spans: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
        self._ids: dict[int, tuple[int, int]] = {}
        for place, box in enumerate(boxes):
            for at, row in enumerate(box.rows):
                self._ids[id(row)] = (place, at)
                if row.rail is not None:
                    first, _ = self._spans.get(row.rail, ((place, at), (place, at)))
                    self._spans[row.rail] = (first, (place, at))
        self._columns: dict[str, int] = {}
        ends: list[tuple[int, int]] = []
        for rail, (first, last) in self._spans.items():
            free = next((at for at, end in enumerate(ends) if end[0] < first[0]), len(ends))
            ends[free : free + 1] = [last]
            self._columns[rail] = free
        self._at = (-1, -1)
        self._count = len(ends)

    @property
    def width(self) -> int:
        """Characters to the left of the boxes."""
        return 2 * self._count + 1 if self._count else 0

    def _letter(self, rail: str) -> str:
        return string.ascii_uppercase[list(self._spans).index(rail) % 26]

    def _running(self, at: tuple[int, int]) -> dict[int, str]:
        """Rails that pass ``at``, by column."""
        return {self._columns[rail]: rail for rail, (first, last) in self._spans.items() if first < at < last}

    def begin(self, place: int) -> str:
        """Beside the title of box ``place``: the letters of the rails that begin in it."""
        self._at = (place, -1)
        cells = dict.fromkeys(self._running(self._at), "║")
        cells |= {
            self._columns[rail]: self._letter(rail) for rail, (first, _) in self._spans.items() if first[0] == place
        }
        return self._row(cells)

    def along(self, place: int) -> str:
        """Beside any line that no rail is attached to."""
        del place
        at = (self._at[0], self._at[1])
        cells = {self._columns[rail]: "║" for rail, (first, last) in self._spans.items() if first <= at < last}
        return self._row(cells)

    def attach(self, place: int, row: Row) -> str:
        """Beside the line of a twin: its rail, drawn to the box."""
        self._at = self._ids[id(row)]
        rail = row.rail or ""
        first, last = self._spans[rail]
        own = self._columns[rail]
        cells: dict[int, str] = dict.fromkeys(self._running(self._at), "║")
        crossed = set(cells) - {own}
        cells[own] = "○" if first == last else "╔" if self._at == first else "╚" if self._at == last else "╠"
        text = " " if self._count else ""
        for column in range(self._count):
            if column < own:
                text += cells.get(column, " ") + " "
            elif column == own:
                text += cells[own] + "═"
            else:
                text += ("╬" if column in crossed else "═") + "═"
        del place
        return text

    def _row(self, cells: Mapping[int, str]) -> str:
        return (" " if self._count else "") + "".join(f"{cells.get(at, ' ')} " for at in range(self._count))

    def legend(self, width: int) -> list[str]:
        """Which letter is which subnet."""
        return (
            _wrapped("  ".join(f"{self._letter(rail)}\0{rail}" for rail in self._spans), width) if self._spans else []
        )
