"""What is shown of transfers from node to node: rates, rows of a table, the chain, lines, JSON, the last line. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkcluster.printable import clean
from sparkcluster.report import Transfer, count, in_unit_of, share, size

RATE_S = 10.0
LEAST_S = 0.5
"""Seconds over which a rate is measured, and over which at least."""
_SURE_S, _SURE_BYTES = 5.0, 1 << 16  # less may be a connection that has just been made

_LINKS = {"rail": "═", "wire": "┄", "wifi": "┄", "tunnel": "┄"}
_PLAIN = str.maketrans("═┄✗…", "=~x~") | {ord("→"): "->"}
_NAME = 16
_MORE = "    "

Transfers = Mapping[tuple[str, str], Transfer]
"""The latest of each artifact and node."""


class Rates:
    """Bytes per second of every artifact and node."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def add(self, transfer: Transfer, now: float) -> float | None:
        """Take what was reported at ``now`` (seconds, ``time.monotonic``); the rate then."""
        seen = self._seen.setdefault((transfer.what, transfer.node), deque())
        if seen and transfer.bytes < seen[-1][1]:
            seen.clear()  # a file that was wrong starts over
        seen.append((now, transfer.bytes))
        return self.rate(transfer, now)

    def rate(self, transfer: Transfer, now: float) -> float | None:
        """Over the last ``RATE_S``; 0 once nothing has arrived in that time, None at the begin."""
        seen = self._seen.get((transfer.what, transfer.node), deque())
        while len(seen) > 1 and now - seen[1][0] >= RATE_S:
            seen.popleft()
        took, moved = (now - seen[0][0], seen[-1][1] - seen[0][1]) if seen else (0.0, 0)
        if took < LEAST_S or (took < _SURE_S and moved < _SURE_BYTES):
            return None
        return moved / took


def remaining_s(transfer: Transfer, rate: float | None) -> float | None:
    """Seconds until it is complete; None where nothing arrives, or its size is unknown."""
    return max(0, transfer.total - transfer.bytes) / rate if rate and transfer.total else None


def as_json(transfer: Transfer, rate: float | None) -> dict[str, Any]:
    """The event of ``--json-lines``, without its time."""
    left = remaining_s(transfer, rate) if transfer.state == "copying" else None
    return {
        "event": "transfer",
        "what": transfer.what,
        "node": transfer.node,
        "state": transfer.state,
        "bytes": transfer.bytes,
        "total": transfer.total,
        "rate_bytes_s": None if rate is None else round(rate),
        "remaining_s": None if left is None else round(left, 1),
        "source": transfer.source,
        "medium": transfer.medium if _between_nodes(transfer) else None,
        "encrypted": transfer.encrypted,
    }


def line(transfer: Transfer, rate: float | None) -> str:
    """``b: weights 12.3 of 63.4 GB from a, 1.21 GB/s, 42 s left``."""
    head = f"{transfer.node}: {transfer.what}"
    if transfer.state == "complete":
        return f"{head} complete, {size(transfer.bytes)}"
    if transfer.state == "left out":
        return f"{head} left out at {_progress(transfer)}"
    parts = [f"{head} {_progress(transfer)}{_origin(transfer)}", *_pace(transfer, rate)]
    return ", ".join(part for part in parts if part)


def rows(transfers: Transfers, rates: Mapping[tuple[str, str], float | None], *, width: int) -> list[str]:
    """One row for each artifact and node, the columns aligned, none longer than ``width``.

    From whom it comes is left out where that does not fit: the chain says it.
    """
    found = [_row(transfer, rates.get(key)) for key, transfer in transfers.items()]
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        widths[-1:] = [0]
    lines = []
    for node, *cells in found:
        columns = [
            node.ljust(widths[0]),
            *(cell.rjust(size) for cell, size in zip(cells[:-1], widths[1:-1], strict=True)),
        ]
        origin = cells[-1] if widths[-1] else ""
        lines.append(cut("  ".join([*columns, origin]).rstrip(), width))
    return lines


def chain(transfers: Transfers, *, width: int) -> list[str]:
    """For each artifact who gets it from whom, as ``weights: a ═ b ═ c ┄ d   ✗ e``, in lines of at most ``width``.

    ``═`` is a rail, ``┄`` the management network, ``→`` a download or the controller; ``✗`` a node that is left out.
    A second receiver of a node begins a new row; where all get something from each other, the row ends as it began.
    """
    lines = []
    for what in dict.fromkeys(transfer.what for transfer in transfers.values()):
        chosen = {each.node: each for each in transfers.values() if each.what == what}
        moving = {node: each for node, each in chosen.items() if each.source is not None and each.state != "left out"}
        parts = [*_walks(moving), *(["✗", node] for node, each in chosen.items() if each.state == "left out")]
        head = f"{what}{', encrypted' if moving and all(each.encrypted for each in moving.values()) else ''}: "
        lines += _wrapped(head, [[_short(word) for word in part] for part in parts], width) if parts else []
    return lines


def plain(text: str, encoding: str | None) -> str:
    """``text`` without the characters of the chain where ``encoding`` has none of them."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN)
    return text


def summary(received: Mapping[str, int], seconds: float) -> str | None:
    """The last line, of the bytes that each node received in ``seconds`` in all; None where none did.

    One by one is the sum of all bytes at the rate at which the most went to one node: about what ``rsync`` in turn
    takes at that rate.
    """
    received = {node: size for node, size in received.items() if size > 0}
    if not received or seconds <= 0:
        return None
    least, most = min(received.values()), max(received.values())
    who = next(iter(received)) if len(received) == 1 else count(len(received), "node")
    amount = size(most) if size(least) == size(most) else f"{in_unit_of(least, most)} to {size(most)}"
    text = f"{who} got {amount} in {duration(seconds)}: {size(most / seconds)}/s"
    if len(received) == 1:
        return text
    return f"{text} each; one by one about {duration(sum(received.values()) * seconds / most)}"


def duration(seconds: float) -> str:
    """``42 s``, ``2 min 41 s``, ``1 h 5 min``; below 10 s with a tenth."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _progress(transfer: Transfer) -> str:
    return share(transfer.bytes, transfer.total and max(transfer.total, transfer.bytes))


def _between_nodes(transfer: Transfer) -> bool:
    return transfer.source not in (None, "download", "controller")


def _origin(transfer: Transfer) -> str:
    if transfer.source is None:
        return ""
    if transfer.source == "download":
        return " downloaded"
    over = {"rail": "", "wire": " over the management network", "wifi": " over WiFi", "tunnel": " over a tunnel"}
    who = "this machine" if transfer.source == "controller" else transfer.source
    return f" from {who}{over[transfer.medium]}{', encrypted' if transfer.encrypted else ''}"


def _pace(transfer: Transfer, rate: float | None) -> tuple[str, str]:
    """The rate and the time that is left."""
    left = remaining_s(transfer, rate)
    if rate == 0:
        return "nothing arrives", ""
    return "" if rate is None else f"{size(rate)}/s", "" if left is None else f"{duration(left)} left"


def _row(transfer: Transfer, rate: float | None) -> tuple[str, ...]:
    pace, left = _pace(transfer, rate) if transfer.state == "copying" else (transfer.state, "")
    share = f"{100 * transfer.bytes // transfer.total} %" if transfer.total else ""
    origin = {"download": "downloaded", "controller": "from this machine", None: ""}.get(
        transfer.source, f"from {_short(transfer.source or '')}"
    )
    return _short(transfer.node), share, _progress(transfer), pace, left, origin


def _short(name: str) -> str:
    return cut(clean(name), _NAME)


def _walks(moving: Mapping[str, Transfer]) -> Iterator[list[str]]:
    """Nodes and links in turn: each row follows the first receiver of a node; another one begins a row of its own."""
    receivers: dict[str, list[str]] = {}
    for node, transfer in moving.items():
        receivers.setdefault(str(transfer.source), []).append(node)
    drawn: set[str] = set()
    while rest := [node for node in moving if node not in drawn]:
        sources = [str(moving[node].source) for node in rest]
        ready = (source for source in sources if source not in moving or source in drawn)
        # Where all get something from each other there is no first one.
        yield _walk(next(ready, rest[0] if rest[0] in receivers else sources[0]), receivers, moving, drawn)


def _walk(
    begin: str, receivers: Mapping[str, Sequence[str]], moving: Mapping[str, Transfer], drawn: set[str]
) -> list[str]:
    words, node = [begin], begin
    while following := next((each for each in receivers.get(node, ()) if each not in drawn), None):
        drawn.add(following)
        link = _LINKS[moving[following].medium] if _between_nodes(moving[following]) else "→"
        words += [link, following]
        node = following
    return words


def _wrapped(head: str, parts: Sequence[Sequence[str]], width: int) -> list[str]:
    """``parts`` behind ``head``, apart from each other by three blanks; a line that is full goes on before a link."""
    lines, text = [], head
    for part in parts:
        links = [part[:1], *(part[at : at + 2] for at in range(1, len(part), 2))]
        fits = len(_MORE) + len(" ".join(part)) <= width
        # a row that fits into a line, and the cross with its node, stay together
        for at, words in enumerate([part] if fits or part[0] == "✗" else links):
            word, gap = " ".join(words), " " if at else "" if text.endswith(": ") else "   "
            if len(text) + len(gap) + len(word) > width and text != head:
                lines.append(text)
                text, gap = _MORE, ""
            text += gap + word
    return [cut(each, width) for each in (*lines, text)]
