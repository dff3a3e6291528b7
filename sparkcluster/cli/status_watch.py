"""``sparkcluster status --watch``: a live view on a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import common
from sparkcluster.cli.output import in_colour, moves, paint, rich_table, rich_text
from sparkcluster.cli.status_view import group_line, headline, load, pasted
from sparkcluster.report import share

if TYPE_CHECKING:
    from rich.console import Group

    from sparkcluster.facts.base import Unread
    from sparkcluster.facts.running import Observation
    from sparkcluster.plan.release_record import ClusterRanks

# Between two readings of every node, and between two requests of a token from every group.
TICK_S, ASK_S = 2.0, 15.0
READ_S = 4.0


def run(args: argparse.Namespace) -> int:
    """Show the cluster until q or Ctrl-C; what it is in is asked every ``ASK_S`` as ``status`` does.

    Raises:
        UsageError: stdout is no terminal, or ``--json`` was given.
    """
    from sparkcluster.errors import UsageError

    if args.json or not (moves(sys.stdout) and os.isatty(0)):
        raise UsageError("--watch needs a terminal", hint="sparkcluster status INVENTORY --json")
    spec = common.load_spec(args)
    from rich.console import Console
    from rich.live import Live

    from sparkcluster.hosts.fleet import Calls, values
    from sparkcluster.inspect.cluster import see
    from sparkcluster.inspect.observing import begin_observing, observed
    from sparkcluster.inspect.status import status

    seen: dict[str, Any] = {}
    with contextlib.suppress(KeyboardInterrupt), common.asking(spec) as (fleet, waiting), _keys() as pressed_q:

        def ask(_: None = None) -> Any:
            found = see(fleet, spec)
            return found, status(fleet, found), time.monotonic()

        def read() -> Calls[Observation]:
            return begin_observing(fleet, spec, found.facts, READ_S, brief=True)

        found, document, asked_at = ask()
        waiting.end()

        def draw() -> Group:
            return view(pasted(document), seen, found.ranks, time.monotonic() - asked_at)

        console = Console(highlight=False, color_system="auto" if in_colour(sys.stdout) else None)
        with Live(get_renderable=draw, console=console, screen=True, refresh_per_second=4):
            asking, reading, began = None, read(), time.monotonic()
            while not pressed_q(0.1):
                now = time.monotonic()
                if now > began + (READ_S if reading.pending() else TICK_S):
                    seen, reading, began = observed(reading, 0), read(), now
                if asking is None and now >= asked_at + ASK_S:
                    asking = Calls(ask, {"status": None})
                if asking is not None and not asking.pending():
                    found, document, asked_at = values(asking.wait(0)).get("status", (found, document, now))
                    asking = None
    return 0


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits for some seconds, and says whether q was pressed; keys are not echoed meanwhile."""
    import select
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    try:
        yield lambda wait_s: bool(select.select([0], [], [], wait_s)[0]) and b"q" in os.read(0, 64).lower()
    finally:
        termios.tcsetattr(0, termios.TCSAFLUSH, before)


def view(
    document: dict[str, Any], seen: Mapping[str, Observation | Unread], present: ClusterRanks, later_s: float
) -> Group:
    """``document`` of ``status`` as it is ``later_s`` after it was asked, and what nodes were ``seen`` to do since."""
    from rich.console import Group
    from rich.text import Text

    from sparkcluster.inspect.observing import load_of

    groups = present.groups()
    lines: list[Sequence[str]] = [headline(document, later_s)]
    for group in document["groups"]:
        lines.append(group_line(document, group))
        if (now := load_of(groups.get(group["name"], ()), seen)) is not None:
            lines.append(["  ", load(now)])
    names = [node["name"] for node in document["nodes"]]
    rows = [(name, *(_cells(seen[name]) if name in seen else "-")) for name in names]
    texts = [Text.assemble(*map(rich_text, line), no_wrap=True, overflow="ellipsis") for line in lines]
    end = rich_text(paint("q ends this view, and nothing else", "dim"))
    return Group(*texts, "", rich_table(("NODE", "MEMORY", "GPU", "RDMA SENT", "SOCKETS"), rows), "", end)


def _cells(observation: Observation | Unread) -> list[str]:
    from sparkcluster.facts.base import Unread, read
    from sparkcluster.inspect.observing import gbps

    if isinstance(observation, Unread):
        return [paint(observation.unread, "bad")]
    memory, gpus = read(observation.memory), read(observation.gpus)
    used = "-" if memory is None else share(memory.total_bytes - memory.available_bytes, memory.total_bytes)
    kinds = {"utilization_percent": "{:3.0f} %", "power_w": "{:.0f} W"}
    figures = {key: getattr(gpus[-1], key) for key in kinds} if gpus else {}
    gpu = [kinds[key].format(figure) for key, figure in figures.items() if figure is not None]
    rates = (gbps(observation, "rdma_bytes"), gbps(observation, "socket_bytes"))
    return [used, " ".join(gpu) or "-", *("-" if rate is None else f"{rate:6.1f} Gb/s" for rate in rates)]
