"""``sparkcluster setup``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparkcluster.cli.common import connect_fleet, inventory_argument, load_spec, option
from sparkcluster.cli.output import emit_json
from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``setup``."""
    inventory_argument(parser, playbook=False, model="")
    option(parser, "--only STEP*", "do (or undo) only this step; repeatable")
    option(parser, "--with STEP*", "also do this optional step: headless or hold", dest="options")
    option(parser, "--node NAME*", "change only this node; repeatable")
    what = parser.add_mutually_exclusive_group()
    option(what, "--dry-run", "show what would change; with -v the scripts")
    option(what, "--undo", "undo what setup changed")
    option(what, "--show", "show what setup changed, when, and who ran it")
    option(parser, "--yes", "change (or undo) without asking")
    option(parser, "-v --verbose", "also show why each change is made; with --dry-run the scripts")


def run(args: argparse.Namespace) -> int:
    """Set up every node of the inventory, undo that, or show it."""
    from sparkcluster.errors import UsageError
    from sparkcluster.setup.steps import selected

    selected(args.only, args.options)
    if args.options and (args.undo or args.show):
        raise UsageError("--with cannot be combined with --undo or --show", hint="remove --with")
    return on_nodes(load_spec(args), args)


def on_nodes(spec: Spec, args: argparse.Namespace) -> int:
    """Run ``setup`` as its flags say, also for ``preflight --fix``; returns the exit code."""
    from sparkcluster.cli.progress import reporter
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.cli.setup_view import as_json
    from sparkcluster.cli.setup_work import Work

    with (
        reporter(as_json=args.json, json_lines=False) as report,
        Terminal(report.paused, silent=args.json, nodes=args.node) as terminal,
        connect_fleet(spec, report, terminal, yes=args.yes) as fleet,
    ):
        report.step("inspect", ", ".join(args.node) or count(len(spec.inventory.nodes), "node"))
        work = Work(args, spec.inventory, fleet, report, terminal)
        ok, found, nodes, show = work.undo() if args.undo or args.show else work.set_up()
        if not ok:
            report.failed()
    if args.json:
        emit_json(as_json(spec.inventory.cluster, nodes, found))
    else:
        show()
    return 0 if ok else 1
