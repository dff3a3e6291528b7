"""Output of ``fit`` for several models: the verdict, and for each Spark a bar with the memory of each model."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from sparkcluster.cli.output import Painted, data, message, paint
from sparkcluster.fit.source import FREE_BYTES
from sparkcluster.report import size

if TYPE_CHECKING:
    from sparkcluster.fit.budget import Budget, Part

_WIDTH = 76
_MARKS = string.ascii_uppercase
_STYLES = ("type", "good", "warn", "bad")


def show(found: Budget, *, estimate: bool = False) -> None:
    """The verdict, the reasons and a hint; then a bar for each Spark, and which models may run together.

    ``estimate``: measurements of the nodes could not be read.
    """
    names = {part.model: part.kind for parts in found.sparks.values() for part in parts}
    unsure = "unknown whether it fits" if {"unknown", "at most"}.intersection(names.values()) else "may not fit"
    fits = "fits by estimate" if estimate else "fits"
    verdict, style = {True: (fits, "good"), False: ("does not fit", "bad"), None: (unsure, "warn")}[found.fits]
    data(paint(verdict, f"bold {style}"), f": {', '.join(names)}")
    for line in (*found.problems, *found.doubts):
        data(line, indent="  ")
    if found.problems:
        message(found.hint, kind="hint")
    for node, parts in found.sparks.items():
        data()
        _bar(found, node, parts)


def _bar(found: Budget, node: str, parts: tuple[Part, ...]) -> None:
    """A node's memory: a letter per model, s for the system, - for the reserve, blanks for the rest."""
    free = found.free_bytes(node)
    on_demand = [part for part in parts if part.on_demand]
    parts = tuple(part for part in parts if not part.on_demand)
    rows = [(_MARKS[at % 26], part.model, part.bytes, _of(part)) for at, part in enumerate(parts)]
    rows += [("s", "system", found.machine.system_bytes, ""), ("-", "reserve", FREE_BYTES, "")]
    whole = max(found.machine.visible_bytes, sum(row[2] for row in rows))
    ends = [round(_WIDTH * sum(row[2] for row in rows[: at + 1]) / whole) for at in range(len(rows))]
    cells: list[str] = []
    for at, ((mark, *_), begin, end) in enumerate(zip(rows, [0, *ends], ends, strict=False)):
        cells.append(_painted(mark * (end - begin), at, len(parts)))
    data(paint(node, "bold"), f" {size(found.machine.visible_bytes)}")
    data("[", *cells, " " * (_WIDTH - ends[-1]), "]")
    for at, (mark, name, amount, more) in enumerate(rows):
        data(_painted(mark, at, len(parts)), f" {name:<28}{size(amount) if amount else 'unknown':>9}  {more}".rstrip())
    data(f"  {'unused' if free >= 0 else 'too much':<28}{size(abs(free)):>9}")
    for part in on_demand:
        taken = size(part.bytes) if part.bytes else "unknown"
        data(f"  {part.model:<28}{taken:>9}  {', '.join(filter(None, ['on demand', _of(part)]))}")
    if sets := found.together.get(node):
        pairs = [" + ".join(names) for names in sets if len(names) > 1]
        data(f"may run together: {'; '.join(pairs) or 'no two of them'}")


def _painted(text: str, at: int, models: int) -> Painted:
    return paint(text, _STYLES[at % len(_STYLES)] if at < models else "dim")


def _of(part: Part) -> str:
    """The largest components of a part."""
    if part.kind not in {"computed", "measured"}:
        return part.kind if part.bytes else ""
    logged = " (measured)" if part.kind == "measured" else ""
    return f"weights {size(part.weights_bytes)}{logged}, KV {size(part.kv_cache_bytes)}"
