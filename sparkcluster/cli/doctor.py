"""``sparkcluster doctor``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster import hints
from sparkcluster.cli.common import emitted, inventory_argument, number, option, reporting
from sparkcluster.cli.output import data, message, paint

if TYPE_CHECKING:
    from sparkcluster.inspect.doctor import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``doctor``."""
    inventory_argument(parser, "--verbose", "--json-lines", one="--bundle")
    option(parser, "--bundle FILE", "write all data read, without secrets, to a .tar.gz", Path)
    option(parser, "--timeout S", "limit in seconds; a healthy cluster needs 5 (default: 30)", number(5), default=30.0)


def run(args: argparse.Namespace) -> int:
    """Show what is wrong with the cluster; exit 1 unless it serves without errors."""
    from sparkcluster import output_file
    from sparkcluster.inspect import bundle
    from sparkcluster.inspect.doctor import doctor

    if args.bundle:
        output_file.check_path(args.bundle, "--bundle", "bundle.tar.gz")
    with reporting(args) as (fleet, spec, report):
        found = doctor(fleet, spec, args.timeout, report)
        if args.bundle:
            bundle.write(args.bundle, found, bundle.gather(fleet, found.view, report, containers=False))
            report.note(f"wrote {args.bundle}; its README.txt lists what is in it and what was removed")
    if not emitted(args, found.as_json() | {"next": hints.command_line(found.next)}):
        show(found, verbose=args.verbose)
        message(found.next, kind="next")
    return 0 if found.ok else 1


def show(found: Diagnosis, *, verbose: bool) -> None:
    """The diagnosis for people: findings by node on stdout, then the verdict."""
    from sparkcluster.cli import findings_view

    nodes = [node.label for node in found.view.spec.inventory.nodes]
    findings_view.show(found.findings, nodes, verbose=verbose)
    if any(verbose or finding.severity != "info" for finding in found.findings):
        data()
    answer, comma, more = found.verdict().partition(", ")
    data(paint(answer, "bold good" if found.ok else "bold bad"), comma, more)
