"""Profiles: which cells a run measures and in which order; for a sweep, which cells to skip."""

from __future__ import annotations

import itertools
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparkcluster.bench.record import Measured

TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
"""Cells and figures as rows; comments in the file explain the columns."""


class Cell(NamedTuple):
    """One measurement.

    Attributes:
        prompt: tokens of the prompt.
        answer: tokens to generate.
        depth: tokens of context before the prompt.
        concurrency: concurrent requests.
        caching: whether the context is sent alone first, then followed by the prompt (``--enable-prefix-caching``);
            only with a context.
    """

    prompt: int
    answer: int
    depth: int = 0
    concurrency: int = 1
    caching: bool = False


def cells(profile: str, context: int | None, requests: int | None) -> list[Cell]:
    """The cells of a profile that fit, in the order to measure them.

    Args:
        profile: ``sweep``, or a row of the table ``cells``.
        context: the model's context in tokens; if None (unknown), ``guide`` fits, and little else.
        requests: the engine's maximum of concurrent requests; None if unknown. Only limits ``sweep``: above it requests
            queue, which ``arena`` measures on purpose.
    """
    most, depths = min(requests or 64, 64), [0, *(4**step for step in range(6, 32))]
    sweep = [(2048, 128, depth, 2**step) for depth in depths for step in range(most.bit_length())]
    found = [Cell(*row) for row in {**TABLES["cells"], "sweep": sweep}[profile]]
    return [cell for cell in found if cell.depth + cell.prompt + cell.answer <= (context or 8192)]


def skip(cell: Cell, measured: Sequence[Measured]) -> bool:
    """Whether to skip ``cell`` of a sweep because aggregate decode hardly grew twice in its row.

    A row has the cells of one depth; ``measured`` are the cells so far.
    """
    return [grew for depth, _, grew in _steps(measured) if depth == cell.depth].count(False) >= 2


def knee(measured: Sequence[Measured]) -> dict[int, int]:
    """By depth, the last concurrency that still made aggregate decode 5 % faster."""
    return {each.depth: 1 for each in measured} | {depth: at_once for depth, at_once, grew in _steps(measured) if grew}


def _steps(measured: Sequence[Measured]) -> list[tuple[int, int, bool]]:
    """Depth and concurrency of each cell but the first of a row, and whether it is 5 % faster than the previous one."""
    speeds = [(each, each.figures.get("decode") or each.figures.get("texts", [0.0])) for each in measured]
    ordered = sorted((each.depth, each.concurrency, statistics.median(speed)) for each, speed in speeds)
    pairs = itertools.pairwise(ordered)
    return [(depth, b, speed >= 1.05 * last) for (above, _, last), (depth, b, speed) in pairs if depth == above]


def expected_s(cells: Sequence[Cell], runs: int, first: Measured) -> float:
    """Estimated seconds for cells of a sweep, each with ``runs`` passes and a warm-up pass.

    ``first`` is the cell of one request without context; concurrent requests are assumed to share its prefill speed and
    to decode at its speed each.
    """
    prefill, decode = (statistics.median(first.figures.get(name, [float("inf")])) for name in ("prefill", "decode"))
    read = sum((cell.depth + cell.prompt) * cell.concurrency for cell in cells)
    return (runs + 1) * (read / prefill + sum(cell.answer for cell in cells) / decode)
