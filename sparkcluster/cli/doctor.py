"""``sparkcluster doctor``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import connect_fleet, inventory_argument, json_lines_argument, load_spec, verbose_argument
from sparkcluster.cli.output import emit_json, note, say, say_verdict
from sparkcluster.cli.progress import reporter

if TYPE_CHECKING:
    from sparkcluster.inspect.doctor import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``doctor``."""
    inventory_argument(parser)
    parser.add_argument(
        "--bundle", metavar="FILE", type=Path, help="write everything that was read, without secrets, to a .tar.gz"
    )
    parser.add_argument("--timeout", metavar="S", type=seconds, default=30.0, help="limit in seconds (default: 30)")
    verbose_argument(parser)
    json_lines_argument(parser)


def seconds(text: str) -> float:
    """A number of seconds, at least 5: a healthy cluster needs some."""
    value = float(text)
    if not 5 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 5 seconds or more, is {text}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show what is wrong with the cluster; exit 1 unless it serves without errors."""
    from sparkcluster import output_file
    from sparkcluster.inspect import bundle
    from sparkcluster.inspect.doctor import doctor

    spec = load_spec(args)
    if args.bundle:
        output_file.check_path(args.bundle, "--bundle", "bundle.tar.gz")
    with connect_fleet(spec.inventory) as fleet, reporter(as_json=args.json, json_lines=args.json_lines) as report:
        found = doctor(fleet, spec, args.timeout, report)
    if args.bundle:
        bundle.write(args.bundle, found)
    if args.json or args.json_lines:
        emit_json(found.as_json(), line=args.json_lines)
    else:
        show(found, inventory=shlex.quote(str(args.inventory)), verbose=args.verbose)
    if args.bundle:
        note(f"wrote {args.bundle}; its README.txt lists what is in it and what was removed")
    return 0 if found.ok else 1


def show(found: Diagnosis, *, inventory: str, verbose: bool) -> None:
    """The diagnosis for people, on stdout: findings by node, and the verdict."""
    from sparkcluster.cli import findings_view

    nodes = [node.label for node in found.spec.inventory.nodes]
    findings_view.show(found.findings, nodes, inventory=inventory, verbose=verbose)
    if any(verbose or finding.severity != "info" for finding in found.findings):
        say()
    say_verdict(found.verdict(), ok=found.ok)
