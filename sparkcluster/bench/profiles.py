"""Profiles: which cells a run measures, in which order, and what their results say about the next one."""

from __future__ import annotations

import itertools
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparkcluster.bench.record import Measured

TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
"""Cells and figures, as rows; its comments say what its columns mean."""


class Cell(NamedTuple):
    """What is measured in one go.

    Attributes:
        prompt: tokens of the prompt.
        answer: tokens generated.
        depth: tokens of context before the prompt.
        concurrency: requests at once.
        caching: whether the context is sent first, and then the prompt after it (``--enable-prefix-caching``); never
            without a context.
    """

    prompt: int
    answer: int
    depth: int = 0
    concurrency: int = 1
    caching: bool = False


def cells(profile: str, context: int | None, requests: int | None) -> list[Cell]:
    """The cells of a profile that fit, in the order to measure them.

    Args:
        profile: ``sweep``, or one of the table ``cells``.
        context: of the model in tokens; None where it is not known: ``guide`` then fits, and little of the rest.
        requests: that the engine runs at once; None where it is not known. ``sweep`` alone heeds it: of more the engine
            lets some wait, which ``arena`` measures as well.
    """
    most, depths = min(requests or 64, 64), [0, *(4**step for step in range(6, 32))]
    sweep = [(2048, 128, depth, 2**step) for depth in depths for step in range(most.bit_length())]
    found = [Cell(*row) for row in {**TABLES["cells"], "sweep": sweep}[profile]]
    return [cell for cell in found if cell.depth + cell.prompt + cell.answer <= (context or 8192)]


def skip(cell: Cell, measured: Sequence[Measured]) -> bool:
    """Whether ``cell`` of a sweep need not be measured: in its row the aggregate decode hardly grew, twice.

    A row are the cells of one depth; ``measured`` are those that were measured.
    """
    return [grew for depth, _, grew in _steps(measured) if depth == cell.depth].count(False) >= 2


def knee(measured: Sequence[Measured]) -> dict[int, int]:
    """By depth, the last concurrency that still made the aggregate decode 5 % faster."""
    return {each.depth: 1 for each in measured} | {depth: at_once for depth, at_once, grew in _steps(measured) if grew}


def _steps(measured: Sequence[Measured]) -> list[tuple[int, int, bool]]:
    """Depth and concurrency of each cell but the first of a row, and whether it is 5 % faster than the last."""
    speeds = [(each, each.figures.get("decode") or each.figures.get("texts", [0.0])) for each in measured]
    ordered = sorted((each.depth, each.concurrency, statistics.median(speed)) for each, speed in speeds)
    pairs = itertools.pairwise(ordered)
    return [(depth, b, speed >= 1.05 * last) for (above, _, last), (depth, b, speed) in pairs if depth == above]


def expected_s(cells: Sequence[Cell], runs: int, first: Measured) -> float:
    """Seconds that cells of a sweep take, each of ``runs`` passes and one that warms up.

    ``first`` is the cell of one request without context: several at once share its prefill, and are taken to decode as
    fast as it, each.
    """
    prefill, decode = (statistics.median(first.figures.get(name, [float("inf")])) for name in ("prefill", "decode"))
    read = sum((cell.depth + cell.prompt) * cell.concurrency for cell in cells)
    return (runs + 1) * (read / prefill + sum(cell.answer for cell in cells) / decode)
