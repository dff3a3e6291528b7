"""``sparkcluster logs``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import streams
from sparkcluster.cli.common import at_least, inventory_argument, load_spec, querying
from sparkcluster.cli.output import coded, data, emit_json, log_colours, message, paint

if TYPE_CHECKING:
    from sparkcluster.inspect.merging import LogLine

# Of a node's name, in the order of the inventory; red is for errors.
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_LINES, _LINES_SEARCHED = 200, 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``logs``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument("node", metavar="NODE", nargs="?", help="only this node (default: all, merged by time)")
    parser.add_argument("--json-lines", action="store_true", help="print each line as a JSON document")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until Ctrl-C")
    parser.add_argument(
        "-n",
        "--tail",
        metavar="N",
        type=at_least(0),
        help=f"read the last N lines of each node (default: {_LINES}; with --since or --grep {_LINES_SEARCHED})",
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=_moment,
        help="only lines since TIME: 90s, 10m, 2h or 1d ago, or a date and time as 2026-11-26T04:10:00Z",
    )
    parser.add_argument(
        "--grep",
        metavar="PATTERN",
        type=_pattern,
        help="only lines with a match for PATTERN: a Python regular expression, found anywhere in the line without its"
        " colours; (?i) at its start ignores case",
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="print the log that was kept of the rank that failed last, and the line that says why",
    )


def _moment(text: str) -> float:
    import time

    from sparkcluster.inspect.logs import moment

    try:
        return moment(text, time.time())
    except (ValueError, OverflowError) as error:
        future = str(error) if "future" in str(error) else f"must be as 10m or 2026-11-26T04:10:00Z, is {text}"
        raise argparse.ArgumentTypeError(future) from None


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from None


def run(args: argparse.Namespace) -> int:
    """Print the log of one or all nodes by time, each line after its node's name."""
    from sparkcluster.errors import UsageError
    from sparkcluster.exit_codes import INTERRUPTED

    if args.json and args.follow:
        raise UsageError("--json and --follow cannot be combined", hint="use --json-lines instead of --json")
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

        try:
            code = follow(
                fleet,
                spec,
                show,
                node=args.node,
                tail=tail,
                go_on=args.follow,
                since_s=args.since,
                pattern=args.grep,
            )
        except KeyboardInterrupt:
            if not args.follow:
                raise
            return INTERRUPTED  # the normal end of following
    if args.json:
        emit_json({"cluster": spec.inventory.cluster, "lines": printer.lines})
    printer.tell_none()
    return code


def _run_failed(args: argparse.Namespace) -> int:
    """Print what was kept of the last launch that failed; no node is contacted."""
    import dataclasses
    import shlex
    import time

    from sparkcluster.errors import UsageError
    from sparkcluster.inspect.logs import last_failed, succeeded_since

    for flag, given in (("--follow", args.follow), ("--since", args.since is not None)):
        if given:
            raise UsageError(f"--failed and {flag} cannot be combined", hint="--failed shows a log that has ended")
    spec = load_spec(args)
    failed, node, lines = last_failed(spec, args.node)
    quiet = args.json or args.json_lines
    if not quiet:
        ago = failed.ago(time.time())
        message(f"the last launch of {spec.inventory.cluster} that failed, {ago}: {failed.message}")
        succeeded = succeeded_since(spec.inventory.cluster, failed.at_s)
        if succeeded:
            message(f"`{succeeded}` from this machine has succeeded since")
    printer = _Printer(args, [node])
    reason = failed.reason if failed.reason and failed.reason.node == node else None
    for number, text in _asked_for(args, lines):
        printer.show(node, text, None, marked=reason is not None and reason.number == number)
    if args.json:
        about: dict[str, Any] = {
            "at": _iso(failed.at_s),
            "message": failed.message,
            "hint": failed.hint,
            "node": failed.node,
        }
        about["reason"] = dataclasses.asdict(failed.reason) if failed.reason else None
        emit_json({"cluster": spec.inventory.cluster, "lines": printer.lines, "failed": about})
    elif not quiet:
        if failed.reason:
            message(f"{failed.reason.place}: ", paint(failed.reason.line, "bold bad"))
        if failed.hint:
            message(failed.hint.replace("INVENTORY", shlex.quote(str(args.inventory))), kind="hint")
        printer.tell_none()
    return 0


def _asked_for(args: argparse.Namespace, lines: Sequence[str]) -> list[tuple[int, str]]:
    """The lines that --tail and --grep leave, with their numbers in the log."""
    from sparkcluster.printable import COLOURS

    numbered = list(enumerate(lines, 1))[0 if args.tail is None else max(0, len(lines) - args.tail) :]
    return [(at, text) for at, text in numbered if args.grep is None or args.grep.search(COLOURS.sub("", text))]


class _Printer:
    """Writes log lines of ``nodes`` as the flags say; with --json they are collected in ``lines``."""

    def __init__(self, args: argparse.Namespace, nodes: list[str]) -> None:
        self._args = args
        self._width = max(map(len, nodes))
        self._colours = {node: _COLOURS[at % len(_COLOURS)] for at, node in enumerate(nodes)}
        self._none = True
        self.lines: list[dict[str, Any]] = []

    def tell_none(self) -> None:
        """Say that --grep found no line of a rank; not with JSON, nor where a log is followed."""
        if self._none and self._args.grep and not (self._args.follow or self._args.json or self._args.json_lines):
            message("no line matches")

    def show(self, node: str, text: str, at_s: float | None, *, marked: bool = False, own: bool = False) -> None:
        """Write one line; ``marked`` in red. One of ``own`` is a message of this program."""
        self._none = self._none and own
        if self._args.json or self._args.json_lines:
            document = {"node": node, "line": text, "at": None if at_s is None else _iso(at_s)}
            if self._args.json:
                self.lines.append(document)
            else:
                emit_json(document, line=True)
            return
        name = coded(f"{node:<{self._width}} | ", self._colours.get(node, "36"))
        data(name, *([paint(text, "bold bad")] if marked else log_colours(text)))


def _iso(at_s: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
