"""Shows transfers between nodes: rates, table rows, lines, JSON. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.output import rich_text
from sparkcluster.report import Transfer, duration, share, size

if TYPE_CHECKING:
    from rich.table import Table

RATE_S, LEAST_S = 10.0, 0.5
"""Seconds over which a rate is measured, and the minimum."""
_SURE_S, _SURE_BYTES = 5.0, 1 << 16  # less may be a new connection

OUTSIDE = {"download": "downloaded", "controller": "from this machine", "build": "built", None: ""}
_OVER = {"rail": "", "wire": " over the management network", "wifi": " over WiFi", "tunnel": " over a tunnel"}


class Rates:
    """Bytes per second, by artifact and node."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[str, str], deque[tuple[float, int]]] = defaultdict(deque)

    def add(self, transfer: Transfer, now: float) -> float | None:
        """The rate over the last ``RATE_S`` at ``now`` (seconds, ``time.monotonic``); None at the start."""
        seen = self._seen[transfer.what, transfer.node]
        if seen and transfer.bytes < seen[-1][1]:
            seen.clear()  # a corrupt file starts over
        seen.append((now, transfer.bytes))
        while len(seen) > 1 and now - seen[1][0] >= RATE_S:
            seen.popleft()
        took, moved = now - seen[0][0], seen[-1][1] - seen[0][1]
        return moved / took if took >= _SURE_S or (took >= LEAST_S and moved >= _SURE_BYTES) else None


def as_json(transfer: Transfer, rate: float | None) -> dict[str, Any]:
    """The event of ``--json-lines``, without its time."""
    left = _remaining_s(transfer, rate) if transfer.state == "copying" else None
    return {
        "event": "transfer",
        **transfer._asdict(),
        "rate_bytes_s": None if rate is None else round(rate),
        "remaining_s": None if left is None else round(left, 1),
        "medium": None if transfer.source in OUTSIDE else transfer.medium,
    }


def line(transfer: Transfer, rate: float | None) -> str:
    """``weights 12.3 of 63.4 GB from a, 1.21 GB/s, 42 s left``."""
    amount, pace, left, origin = _cells(transfer, rate)
    return ", ".join(filter(None, [f"{transfer.what} {amount} {origin}".rstrip(), pace, left]))


def table(transfers: Iterable[tuple[Transfer, float | None]]) -> Table:
    """A row for each transfer with its rate; the source is cut if there is too little room."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "right"):
        grid.add_column(no_wrap=True, justify=justify)
    grid.add_column()
    for transfer, rate in transfers:
        bar = ProgressBar(transfer.total or None, transfer.bytes, 8, style="dim", complete_style="green")
        *cells, origin = map(rich_text, _cells(transfer, rate))
        origin.style, origin.no_wrap, origin.overflow = "dim", True, "ellipsis"
        grid.add_row(rich_text(f"  {transfer.node}"), bar, *cells, origin)
    return grid


def _cells(transfer: Transfer, rate: float | None) -> tuple[str, str, str, str]:
    amount, left = share(transfer.bytes, transfer.total and max(transfer.total, transfer.bytes)), None
    pace = transfer.state if transfer.state != "copying" else "" if rate is None else f"{size(rate)}/s"
    if transfer.state == "copying":
        left = _remaining_s(transfer, rate)
        pace = "stalled" if rate == 0 else pace
    origin = OUTSIDE.get(transfer.source, f"from {transfer.source}{_OVER[transfer.medium]}")
    origin += ", encrypted" if transfer.encrypted and transfer.source not in OUTSIDE else ""
    return amount, pace, "" if left is None else f"{duration(left)} left", origin


def _remaining_s(transfer: Transfer, rate: float | None) -> float | None:
    """Seconds until it is complete; None if it is stalled or its size is unknown."""
    return max(0, transfer.total - transfer.bytes) / rate if rate and transfer.total else None
