"""``sparkcluster status --watch``: a live view on a terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from sparkcluster.cli.common import connect_fleet, load_spec
from sparkcluster.cli.output import message, moves
from sparkcluster.cli.status import pasted

# Between two readings of every node, and between two requests of a token from every group.
TICK_S, ASK_S = 2.0, 15.0
READ_S = 4.0


def run(args: argparse.Namespace) -> int:
    """Show the cluster until Ctrl-C; what it is in is asked every ``ASK_S`` as ``status`` does.

    Raises:
        UsageError: stdout is no terminal, or ``--json`` was given.
    """
    from sparkcluster.errors import UsageError

    if args.json or not moves(sys.stdout):
        raise UsageError("--watch needs a terminal", hint="sparkcluster status INVENTORY --json")
    spec = load_spec(args)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from sparkcluster.cli.status_view import lines
    from sparkcluster.hosts.fleet import Calls, values
    from sparkcluster.inspect.live import History
    from sparkcluster.inspect.observing import begin_observing, observed
    from sparkcluster.inspect.status import Document, Found, asked, look

    console, history = Console(highlight=False), History()
    message(f"asking {spec.inventory.cluster}, Ctrl-C ends this view and nothing else")

    def draw(document: dict[str, Any]) -> Text:
        return Text(
            "\n".join(lines(pasted(document, args.inventory), history, width=console.width, encoding=console.encoding)),
            no_wrap=True,
        )

    with contextlib.suppress(KeyboardInterrupt), connect_fleet(spec.inventory) as fleet:

        def ask(_: None) -> tuple[Found, Document]:
            found = look(fleet, spec)
            return found, asked(fleet, found)

        found, document = ask(None)
        with Live(console=console, auto_refresh=False) as live:
            last, calls = time.monotonic(), None
            while True:
                began = time.monotonic()
                seen = observed(begin_observing(fleet, spec, found.facts, READ_S, interval_s=1.0, brief=True), READ_S)
                history.add(seen, found.present)
                live.update(draw(document), refresh=True)
                if calls is None and began - last >= ASK_S:
                    calls = Calls(ask, {"status": None})
                if calls is not None and not calls.pending():
                    found, document = values(calls.wait(0)).get("status", (found, document))
                    last, calls = time.monotonic(), None
                time.sleep(max(0.0, began + TICK_S - time.monotonic()))
    return 0
