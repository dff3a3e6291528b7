"""``sparkcluster logs``."""

from __future__ import annotations

import argparse
import sys

from sparkcluster.cli import streams
from sparkcluster.cli.common import at_least, inventory_argument, querying
from sparkcluster.cli.output import coloured, emit_json, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``logs``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument("node", metavar="NODE", nargs="?", help="only this node (default: all)")
    parser.add_argument("--json-lines", action="store_true", help="print each line as a JSON document")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until Ctrl-C")
    parser.add_argument("-n", "--tail", metavar="N", type=at_least(0), default=200, help="last N lines (default: 200)")


def run(args: argparse.Namespace) -> int:
    """Print the log of one or all nodes, each line after its node's name."""
    from sparkcluster.errors import UsageError
    from sparkcluster.exit_codes import INTERRUPTED
    from sparkcluster.inspect.logs import follow

    if args.json and args.follow:
        raise UsageError("--json and --follow cannot be combined", hint="use --json-lines instead of --json")
    lines_seen: list[dict[str, str]] = []

    def show(node: str, lines: tuple[str, ...]) -> None:
        waiting.end()
        for line in lines:
            if args.json_lines:
                emit_json({"node": node, "line": line}, line=True)
            elif args.json:
                lines_seen.append({"node": node, "line": line})
            else:
                say(f"{node:<{width}} | ", *coloured(line))
        sys.stdout.flush()
        if args.follow:
            streams.check_reader()

    with querying(args) as (fleet, spec, waiting):
        width = max(map(len, fleet.hosts))
        try:
            code = follow(fleet, spec, show, node=args.node, tail=args.tail, go_on=args.follow)
        except KeyboardInterrupt:
            if not args.follow:
                raise
            return INTERRUPTED  # the normal end of following
    if args.json:
        emit_json({"cluster": spec.inventory.cluster, "lines": lines_seen})
    return code
