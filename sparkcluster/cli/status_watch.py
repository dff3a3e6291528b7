"""``sparkcluster status --watch``, a live view on a terminal; and ``--follow``, the same as JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import common, streams
from sparkcluster.cli.output import emit_json, in_colour, moves, paint, rich_table, rich_text
from sparkcluster.cli.status_view import dot

if TYPE_CHECKING:
    from rich.console import Group

TICK_S, CHECK_S = 2.0, 30.0
MOST = 5
"""Maximum number of findings shown."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_OF_MODEL = ("MODEL", "STATE", "REQUESTS", "TOKENS/S", "", "KV", "")
_OF_NODE = ("NODE", "MEMORY", "", "GPU", "", "RDMA", "")
_FIXED = 53
"""Width of the table of nodes without its three sparklines, with 14 columns for names."""

Series = Sequence[float | None]


def follow(args: argparse.Namespace) -> int:
    """Print a document at each tick until Ctrl-C or until the pipe is closed.

    Raises:
        UsageError: without ``--json``.
    """
    from sparkcluster.errors import UsageError
    from sparkcluster.exit_codes import INTERRUPTED

    if not args.json:
        raise UsageError("--follow needs --json", hint="sparkcluster status INVENTORY --watch   on a terminal")
    with common.live(args) as live:
        number = 0
        try:
            while number := live.wait(number, 60.0):
                emit_json(live.document, line=True)
                sys.stdout.flush()
                streams.check_reader()
        except KeyboardInterrupt:
            pass  # the normal end of following
    return INTERRUPTED


def run(args: argparse.Namespace) -> int:
    """Show all models and nodes until q or Ctrl-C.

    Raises:
        UsageError: stdout is not a terminal, or ``--json`` was given.
    """
    from sparkcluster.errors import UsageError

    if args.json or not (moves(sys.stdout) and os.isatty(0)):
        raise UsageError("--watch needs a terminal", hint="sparkcluster status INVENTORY --follow --json")
    from rich.console import Console
    from rich.live import Live as Screen

    console = Console(highlight=False, color_system="auto" if in_colour(sys.stdout) else None)
    paces = {"tick_s": TICK_S, "check_s": CHECK_S}
    with contextlib.suppress(KeyboardInterrupt), common.live(args, **paces) as live, _keys() as pressed_q:

        def draw() -> Group:
            return view(live.document, live.history, console.width, console.height)

        with Screen(get_renderable=draw, console=console, screen=True, refresh_per_second=2):
            while not pressed_q(0.1):
                live.wait(0, 0)  # raises the error that ended the reading
    return 0


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits for some seconds and returns whether q was pressed; disables echo meanwhile."""
    import select
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        yield lambda wait_s: bool(select.select([0], [], [], wait_s)[0]) and b"q" in os.read(0, 64).lower()
    finally:
        termios.tcsetattr(0, termios.TCSAFLUSH, before)


def view(document: Mapping[str, Any], history: Mapping[str, Any], width: int, height: int) -> Group:
    """``document`` and ``history`` of ``Live`` within this width and height: findings, models, nodes."""
    from rich.console import Group
    from rich.text import Text

    size = max(4, (width - _FIXED) // 3)
    models = [row for model in document["models"] for row in _model(model, history["groups"], size)]
    nodes = [(name, *_node(node, history["nodes"][name], size)) for name, node in document["nodes"].items()]
    looked = f"last check {document['checked_s']:.0f} s ago"
    lines = [[paint(document["inventory"], "bold"), "  ", dot(document["state"]), "   ", paint(looked, "dim")]]
    lines += _findings(document["models"], (height - len(models) - len(nodes) - 7) // 3)
    texts = [Text.assemble(*map(rich_text, line), no_wrap=True, overflow="ellipsis") for line in lines]
    tables = _cut(rich_table(_OF_MODEL, models)), _cut(rich_table(_OF_NODE, nodes))
    end = rich_text(paint("q quits this view; models keep running", "dim"))
    return Group(*texts, "", tables[0], "", tables[1], "", end)


def _cut(table: Any) -> Any:
    """``table`` without wrapping; its first column is cut if there is too little room."""
    for column in table.columns:
        column.overflow, column.no_wrap = "ellipsis", column is not table.columns[0]
    return table


def _findings(models: Sequence[Mapping[str, Any]], room: int) -> Iterator[list[str]]:
    """The most severe findings of ``models`` with their remedies, as many as there is ``room`` for."""
    found = sorted((each for model in models for each in model["findings"]), key=lambda each: each["severity"])
    for each in found[: max(1, min(MOST, room))]:
        node = f"{each['node']}: " if each["node"] and each["node"] not in each["summary"] else ""
        error = each["severity"] == "error"
        yield [
            paint(f"{each['severity']}:", "bold bad" if error else "warn"),
            f" {each['code']} {node}{each['summary']}",
        ]
        for text in each["remedy"][:2] or [each["why"]]:
            yield [paint("  hint:", "type"), f" {text}"]
    if (more := len(found) - max(1, min(MOST, room))) > 0:
        yield [paint(f"and {more} more", "dim")]


def _model(model: Mapping[str, Any], history: Mapping[str, Any], size: int) -> Iterator[tuple[str, ...]]:
    """A row for each group of a model, or one for a model without groups."""
    name = model["name"] or model["model"] or model["cluster"]
    for group in model["groups"] or [{**model, "load": None}]:
        load, past = group["load"] or {}, history.get(f"{model['cluster']}/{group['name']}", {})
        in_flight = [_figure("{:.0f}", load.get(key)) for key in ("running", "waiting")]
        yield (
            f"{name}/{group['name']}" if len(model["groups"]) > 1 else name,
            dot(group["state"]),
            " + ".join(in_flight) if load else "-",
            _figure("{:6.1f}", load.get("tokens_per_s")),
            sparkline(past.get("tokens_per_s", ()), size),
            _figure("{:3.0f} %", load.get("kv_cache"), 100),
            sparkline(past.get("kv_cache", ()), size, 1.0),
        )


def _node(node: Mapping[str, Any], past: Mapping[str, Series], size: int) -> tuple[str, ...]:
    if node["vitals"] is None:
        return (paint("lost", "bad"),)
    gpu, total = node["vitals"]["gpu"] or {}, node["vitals"]["total_bytes"]
    used = [None if each is None else 1 - each / total for each in past["available_bytes"]]
    drawn = [_figure("{:3.0f} %", gpu.get("utilization"), 100), _figure("{:3.0f} W", gpu.get("power_w"))]
    return (
        _figure("{:3.0f} %", 1 - node["vitals"]["available_bytes"] / total, 100),
        sparkline(used, size, 1.0),
        " ".join(drawn) if gpu else "-",
        sparkline(past["gpu_utilization"], size, 1.0),
        _figure("{:5.1f} Gb/s", past["rdma_per_s"][-1], 8e-9),
        sparkline(past["rdma_per_s"], size),
    )


def _figure(form: str, value: float | None, times: float = 1) -> str:
    return "-" if value is None else form.format(value * times)


def sparkline(values: Series, size: int, top: float | None = None) -> str:
    """``values`` as at most ``size`` blocks, the latest at the right, each the mean of several; None is a blank.

    The highest block is ``top``, by default the largest value.
    """
    each = max(1, -(-len(values) // size))
    cells = []
    for end in range(len(values), 0, -each):
        known = [value for value in values[max(0, end - each) : end] if value is not None]
        cells.append(sum(known) / len(known) if known else None)
    top = top or max((cell for cell in cells if cell is not None), default=0) or 1
    blocks = [" " if cell is None else _BLOCKS[min(7, int(max(0, cell) / top * 8))] for cell in reversed(cells)]
    return "".join(blocks).rjust(size)
