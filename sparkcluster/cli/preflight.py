"""``sparkcluster preflight``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import connect_fleet, inventory_argument, load_spec
from sparkcluster.cli.output import emit_json
from sparkcluster.cli.progress import reporter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``preflight``."""
    inventory_argument(parser)
    parser.add_argument(
        "--ignore", metavar="CODE", action="append", default=[], help="count errors of this code as warnings"
    )
    parser.add_argument("--verbose", "-v", action="store_true", help="show why each finding matters, and notes")
    parser.add_argument("--json-lines", action="store_true", help="events as JSON lines on stdout, the result last")


def run(args: argparse.Namespace) -> int:
    """Look at every node; exit 1 where a finding would stop ``up``."""
    from sparkcluster.release.preflight import Options, check_codes, preflight

    spec = load_spec(args)
    options = Options(ignore=check_codes(args.ignore))
    with connect_fleet(spec) as fleet, reporter(as_json=args.json, json_lines=args.json_lines) as report:
        found = preflight(fleet, spec, options, report)
    if args.json or args.json_lines:
        emit_json(found.as_json(), line=args.json_lines)
    return 0 if found.ok else 1
