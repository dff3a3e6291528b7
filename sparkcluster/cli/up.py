"""``sparkcluster up``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparkcluster.cli import change
from sparkcluster.cli.common import accepted, begin_probe, common_flags, inventory_argument, number, option

if TYPE_CHECKING:
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.release.rollout import Rollout
    from sparkcluster.report import Report
    from sparkcluster.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``up``."""
    inventory_argument(parser, "--json-lines", "--yes")
    option(parser, "--dry-run", "show what would be done and change nothing")
    option(parser, "--replace", "also replace running groups with another plan or secret, or with wrong answers")
    common_flags(parser, "--no-rollback", "--timeout", "--wait")
    option(parser, "--min-speed R", "roll back below R times the old speed (default: off)", number(0, 1), default=0.0)
    parser.set_defaults(verbose=False)  # verbose: of plan, for --dry-run
    option(parser, "--clear-caches", "delete compile caches before the start")


def run(args: argparse.Namespace) -> int:
    """Start the cluster, or report that it already serves."""
    if args.dry_run:
        from sparkcluster.cli import plan

        return plan.run(args)

    def start(fleet: Fleet, spec: Spec, report: Report) -> Rollout:
        spec = accepted(args, spec, report)
        probes = begin_probe(fleet, spec)
        from sparkcluster.release.states import Desired
        from sparkcluster.release.up import up

        return up(fleet, Desired(spec, change.options(args)), report, probes)

    return change.run(args, start)
