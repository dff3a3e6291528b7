"""``sparkcluster plan``."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from sparkcluster.cli.common import emitted, inventory_argument, querying
from sparkcluster.cli.output import data, message, write
from sparkcluster.printable import LINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``plan``."""
    inventory_argument(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show every variable and command, to be pasted")


def run(args: argparse.Namespace) -> int:
    """Show what ``up`` would do; exit 1 where a finding would stop it."""
    from sparkcluster.cli import plan_view
    from sparkcluster.findings import has_errors
    from sparkcluster.inspect.cluster import view_cluster
    from sparkcluster.release.serving import rotated_secrets
    from sparkcluster.release.states import differences, group_states

    with querying(args) as (fleet, spec, _):
        view = view_cluster(fleet, spec)
    plan = view.plan or view.draft
    if plan is None:
        view.stop_on_errors()
        return 1
    states = {
        name: dataclasses.replace(group, rotated=rotated_secrets(view, group))
        for name, group in group_states(view).items()
    }
    differing = [each for group in states.values() for each in differences(view, group)]
    document = {
        **plan.as_json(),
        "provisional": view.plan is None,
        "findings": [finding.as_json() for finding in view.findings],
        "differences": [each.as_json() for each in differing],
        "after_ready": spec.inventory.after_ready,
    }
    if not emitted(args, document):
        if args.verbose:
            for line in plan_view.whole(document):
                write(sys.stdout, line, keep=LINES)
        else:
            for line in plan_view.brief(document):
                data(line)
            message("every variable and command: -v")
        for finding in view.findings:
            message(finding.headline, kind=finding.severity)
        if view.plan is None:
            message(f"provisional: final once every node has {plan.image} (sparkcluster stage brings it)")
        for name, group in states.items():
            message(f"{name} {plan_view.NOW[group.state.value]}")
        for line in plan_view.beside(spec, differing):
            message(line)
    return 1 if has_errors(view.findings) else 0
