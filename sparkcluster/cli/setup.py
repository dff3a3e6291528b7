"""``sparkcluster setup``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparkcluster.cli.common import common_flags, connect_fleet, inventory_argument, load_spec, option
from sparkcluster.cli.output import emit_json
from sparkcluster.report import count

if TYPE_CHECKING:
    from sparkcluster.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``setup``."""
    inventory_argument(parser, playbook=False, model=False)
    option(parser, "--only STEP*", "do (or undo) only this step; again for another")
    option(parser, "--with STEP*", "also do this step, which is done on request only: headless, hold", dest="options")
    option(parser, "--node NAME*", "change only this node, and ask for no password of another; again for another")
    what = parser.add_mutually_exclusive_group()
    option(what, "--dry-run", "show what would be changed, and with -v by which script")
    option(what, "--undo", "take back what setup changed")
    option(what, "--show", "show what setup changed, when, and by whose order")
    option(parser, "--yes", "change (or undo) without being asked")
    common_flags(parser, "--verbose")


def run(args: argparse.Namespace) -> int:
    """Set up every node of the inventory, undo that, or show it."""
    from sparkcluster.errors import UsageError
    from sparkcluster.setup.steps import selected

    selected(args.only, args.options)
    if args.options and (args.undo or args.show):
        raise UsageError("--with is for what is to be done", hint="--undo takes back all steps, or those of --only")
    return on_nodes(load_spec(args), args)


def on_nodes(spec: Spec, args: argparse.Namespace) -> int:
    """Do what the flags of ``setup`` say; the exit code. For ``preflight --fix`` as well."""
    from sparkcluster.cli.progress import reporter
    from sparkcluster.cli.prompts import Terminal
    from sparkcluster.cli.setup_view import as_json
    from sparkcluster.cli.setup_work import Work

    with (
        reporter(as_json=args.json, json_lines=False) as report,
        Terminal(report.paused, silent=args.json, nodes=args.node) as terminal,
        connect_fleet(spec, report, terminal, yes=args.yes) as fleet,
    ):
        report.step("look", f"at {', '.join(args.node) or count(len(spec.inventory.nodes), 'node')}")
        work = Work(args, spec.inventory, fleet, report, terminal)
        ok, found, nodes, show = work.undo() if args.undo or args.show else work.set_up()
        if not ok:
            report.failed()
    if args.json:
        emit_json(as_json(spec.inventory.cluster, nodes, found))
    else:
        show()
    return 0 if ok else 1
