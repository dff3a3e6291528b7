"""Findings as text: by node, most severe first, with what was seen and the remedies; then the verdict."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sparkcluster.cli.output import columns, data, paint, show_finding
from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.findings import Finding


def width() -> int:
    """Columns for drawings: the terminal's width, at most 100; 80 in a pipe."""
    return max(30, min(100, columns(sys.stdout) or 80))


def show(findings: Sequence[Finding], nodes: Iterable[str], *, verbose: bool) -> None:
    """Write findings to stdout by node: those of the whole cluster first, then in the order of ``nodes``.

    ``verbose`` also shows infos, and why each finding matters.
    """
    shown = [finding for finding in findings if verbose or finding.severity != "info"]
    for place in dict.fromkeys([None, *nodes, *(finding.node for finding in shown)]):
        of_place = [finding for finding in shown if finding.node == place]
        if of_place:
            data()
            data(paint(place or "cluster", "bold"))
        for finding in of_place:
            headline = f"{finding.code} {finding.place}{finding.summary}"
            show_finding(finding, stream=sys.stdout, headline=headline, why=verbose)


def counted(findings: Sequence[Finding], *, verbose: bool, cluster: str = "") -> list[str]:
    """Number of errors per node, or of the ``cluster``, and of warnings and infos."""
    wrong = Counter(finding.node or cluster for finding in findings if finding.severity == "error")
    shown = [count(number, "error") + (f" on {node}" if node else "") for node, number in wrong.items()]
    severities = Counter(finding.severity for finding in findings)
    if severities["warning"]:
        shown.append(count(severities["warning"], "warning"))
    if severities["info"]:
        shown.append(f"{severities['info']} info" + ("" if verbose else " (shown with -v)"))
    return shown
