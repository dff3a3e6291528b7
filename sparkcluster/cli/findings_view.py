"""Findings as text: by node, the most severe first, each with what was seen and what to type; a summary last."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sparkcluster.cli.output import coded, data, paint, show_finding
from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.findings import Finding

_WIDEST = 100
_COLOUR_OF_MARK = {"✗": "1;31", "!": "33"}


def width() -> int:
    """Columns to write in: the terminal's, at most 100; 80 in a pipe."""
    return max(30, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def draws() -> bool:
    """Whether stdout's encoding has box-drawing characters."""
    try:
        "┌═✗".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show(findings: Sequence[Finding], nodes: Iterable[str], *, inventory: str, verbose: bool) -> None:
    """Write findings to stdout by node in the order of ``nodes``, those of the whole cluster first.

    Notes, and why each finding matters, are shown if ``verbose``. ``inventory`` is the path that the user typed, which
    replaces INVENTORY in remedies.
    """
    shown = [finding for finding in findings if verbose or finding.severity != "info"]
    places = dict.fromkeys([None, *nodes, *(finding.node for finding in shown)])
    for place in places:
        of_place = [finding for finding in shown if finding.node == place]
        if of_place:
            data()
            data(paint(place or "cluster", "bold"))
        for finding in of_place:
            headline = f"{finding.code} {finding.place}{finding.summary}"
            show_finding(finding, inventory, stream=sys.stdout, headline=headline, why=verbose)


def marked(line: str) -> list[str]:
    """The parts of a line of the drawing, codes in the colours of their severities."""
    parts = re.split(r"([✗!] [A-Z][A-Z0-9]{0,9}-\d{3})", line)
    return [coded(part, _COLOUR_OF_MARK[part[0]]) if at % 2 else part for at, part in enumerate(parts)]


def verdict(findings: Sequence[Finding], nodes: int, checks: int, seconds: float, *, verbose: bool = False) -> str:
    """One line: whether ``up`` can start, and if not, how many errors are where."""
    severities = Counter(finding.severity for finding in findings)
    parts = []
    if severities["warning"]:
        parts.append(count(severities["warning"], "warning"))
    if severities["info"]:
        parts.append(count(severities["info"], "note") + ("" if verbose else " (shown with -v)"))
    wrong = Counter(finding.node for finding in findings if finding.severity == "error")
    if not wrong:
        return ", ".join([f"ready: {count(nodes, 'node')}", count(checks, "check"), *parts, f"{seconds:.1f} s"])
    places = list(wrong.items())
    shown = [_errors(number, node, first=at == 0) for at, (node, number) in enumerate(places[:3])]
    if len(places) > 3:
        others = sum(number for _, number in places[3:])
        shown.append(f"{others} on {count(len(places) - 3, 'other node')}")
    return f"not ready: {', '.join([*shown, *parts])}"


def _errors(number: int, node: str | None, *, first: bool) -> str:
    what = count(number, "error") if first else str(number)
    return f"{what} on {node}" if node else f"{what} about the cluster"
