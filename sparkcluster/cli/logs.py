"""``sparkcluster logs``."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import streams
from sparkcluster.cli.common import at_least, emitted, inventory_argument, load_spec, option, querying
from sparkcluster.cli.output import coded, data, emit_json, log_colours, message, paint

if TYPE_CHECKING:
    from sparkcluster.inspect.logs import LogLine

# Colours of node names, in the order of the inventory; red is kept for errors.
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_LINES, _LINES_SEARCHED = 200, 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``logs``."""
    inventory_argument(parser, playbook=False, one="--follow, --failed, --json-lines")
    option(parser, "node NODE?", "only this node (default: all, merged by time)")
    option(parser, "--json-lines", "print each line as a JSON document")
    option(parser, "-f --follow", "keep printing new lines until Ctrl-C")
    about = f"last N lines of each node (default: {_LINES}; with --since or --grep {_LINES_SEARCHED})"
    option(parser, "-n --tail N", about, at_least(0))
    about = "only lines since TIME: 90s, 10m, 2h or 1d ago, or a time such as 2026-11-26T04:10:00Z"
    option(parser, "--since TIME", about, _moment)
    about = "only lines with a match for a Python regular expression; (?i) at its start ignores case"
    option(parser, "--grep PATTERN", about, re.compile)
    option(parser, "--failed", "print the kept log of the last failed launch, and the line that says why")


def _moment(text: str) -> float:
    from sparkcluster.inspect.logs import moment

    return moment(text, time.time())


def run(args: argparse.Namespace) -> int:
    """Print the log of one or all nodes by time; each line begins with its node's name."""
    from sparkcluster.errors import UsageError
    from sparkcluster.exit_codes import INTERRUPTED

    for one, other in (("json", "follow"), ("failed", "follow"), ("failed", "since")):
        if getattr(args, one) and getattr(args, other):
            hint = "use --json-lines instead of --json" if one == "json" else f"remove --{other}"
            raise UsageError(f"--{one} and --{other} cannot be combined", hint=hint)
    if args.failed:
        return _run_failed(args)
    from sparkcluster.inspect.logs import follow

    searched = args.since is not None or args.grep is not None
    tail = args.tail if args.tail is not None else _LINES_SEARCHED if searched else _LINES
    with querying(args) as (fleet, spec, waiting):
        printer = _Printer(args, list(fleet.hosts))

        def show(line: LogLine) -> None:
            waiting.end()
            printer.show(line.node, line.text, line.at_s, own=line.own)
            sys.stdout.flush()
            if args.follow:
                streams.check_reader()

        chosen = {"node": args.node, "tail": tail, "since_s": args.since, "pattern": args.grep}
        try:
            code = follow(fleet, spec, show, go_on=args.follow, **chosen)
        except KeyboardInterrupt:
            if not args.follow:
                raise
            return INTERRUPTED  # the normal end of following
    printer.end(spec.inventory.cluster)
    return code


def _run_failed(args: argparse.Namespace) -> int:
    """Print the kept log of the last failed launch; contacts no node."""
    from sparkcluster.inspect.logs import last_failed
    from sparkcluster.printable import COLOURS

    spec = load_spec(args)
    cluster, (failed, node, lines) = spec.inventory.cluster, last_failed(spec, args.node)
    message(f"last failed launch of {cluster}, {failed.ago(time.time())}: {failed.message}")
    printer, reason = _Printer(args, [node]), failed.reason
    for text in lines if args.tail is None else lines[max(0, len(lines) - args.tail) :]:
        if args.grep is None or args.grep.search(COLOURS.sub("", text)):
            printer.show(node, text, None)
    about = {"at": _iso(failed.at_s), "message": failed.message, "hint": failed.hint, "node": failed.node}
    printer.end(cluster, failed={**about, "reason": reason._asdict() if reason else None})
    if reason:
        message(f"{reason.place}: ", paint(reason.line, "bold bad"))
    if failed.hint:
        message(failed.hint, kind="hint")
    return 0


class _Printer:
    """Writes log lines of ``nodes`` as the flags say; --json collects them."""

    def __init__(self, args: argparse.Namespace, nodes: list[str]) -> None:
        self._args = args
        self._width = max(map(len, nodes))
        self._colours = {node: _COLOURS[at % len(_COLOURS)] for at, node in enumerate(nodes)}
        self._none = True
        self._lines: list[dict[str, Any]] = []

    def show(self, node: str, text: str, at_s: float | None, *, own: bool = False) -> None:
        """Write one line; ``own`` marks a message of sparkcluster itself."""
        self._none = self._none and own
        document = {"node": node, "line": text, "at": None if at_s is None else _iso(at_s)}
        if self._args.json:
            self._lines.append(document)
        elif self._args.json_lines:
            emit_json(document, line=True)
        else:
            name = coded(f"{node:<{self._width}} | ", self._colours.get(node, "36"))
            data(name, *log_colours(text))

    def end(self, cluster: str, **more: Any) -> None:
        """Write the document of --json, extended by ``more``; else report that --grep found no log line."""
        if self._args.json:
            emitted(self._args, {"cluster": cluster, "lines": self._lines, **more})
        elif self._none and self._args.grep and not (self._args.follow or self._args.json_lines):
            message("no line matches")


def _iso(at_s: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
