"""The table of ``stage --dry-run``: which node would get what, from where, over what, and about how long. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.transfers import cut
from sparkcluster.report import size

if TYPE_CHECKING:
    from sparkcluster.staging.expected import Expected
    from sparkcluster.staging.plan import Staging
    from sparkcluster.staging.run import StageReport

WIDTH = 78
"""Of each line: `upgrade --dry-run` indents them by two."""

_COLUMNS = ("NODE", "FROM", "SIZE", "TIME", "OVER")
_WIDEST = 20
_INDENT = "  "


NO_STAGING = "this runtime needs no staging"


def planned(done: StageReport, given: Path | None = None) -> list[str]:
    """Each artifact with a line for each node that lacks it; what it lacks is below, unless that is all of it."""
    widths, out = _widths(done), []
    for staging in done.stagings:
        if given and staging.sources:
            out.append(unused(staging, given))
        if not staging.missing:
            out.append(complete(staging))
            continue
        out.append(f"{staging.what}  {staging.name}")
        lacks = dict(staging.missing)
        for node, cells in _rows(done, staging):
            out += _line(cells, widths)
            why = lacks.pop(node, "missing")
            out += [f"{_INDENT * 2}{part}" for part in _wrapped(why, WIDTH - 4)] if why != "missing" else []
    if any(staging.missing for staging in done.stagings):
        out = [*_line(_COLUMNS, widths), *out]
    return out or [NO_STAGING]


def complete(staging: Staging) -> str:
    """That every node has it."""
    return f"{staging.what}  {staging.name}: nothing is missing"


def unused(staging: Staging, given: Path) -> str:
    """That a node has what was given on this machine."""
    return f"{staging.what}  {staging.name}: {staging.sources[0]} has it, {given} was not used"


def _rows(done: StageReport, staging: Staging) -> Iterator[tuple[str, tuple[str, ...]]]:
    from sparkcluster.staging.notes import duration

    found = done.expected.get(staging.name, ())
    for node, _ in staging.missing:
        for each in [each for each in found if each.node == node]:
            amount = "unknown" if each.bytes is None else size(each.bytes)
            time = "unknown" if each.seconds is None else f"about {duration(each.seconds)}"
            yield node, (node, each.source, amount, time, _over(each))
        if not any(each.node == node for each in found):
            yield node, (node, "unknown", "unknown", "unknown", "no network that reaches a node that has it")


def _over(each: Expected) -> str:
    return f"{each.over}, encrypted" if each.encrypted and each.medium != "download" else each.over


def _widths(done: StageReport) -> list[int]:
    rows = [_COLUMNS, *(cells for staging in done.stagings for _, cells in _rows(done, staging))]
    return [min(_WIDEST, max(map(len, column))) for column in zip(*(row[:-1] for row in rows), strict=True)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row, whose last cell goes on below itself."""
    fixed = [cut(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=False)]
    begin = _INDENT + "  ".join(fixed) + "  "
    first, *more = _wrapped(cells[-1], max(20, WIDTH - len(begin)))
    return [f"{begin}{first}".rstrip(), *(f"{' ' * len(begin)}{part}" for part in more)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
