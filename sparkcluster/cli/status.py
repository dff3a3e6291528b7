"""``sparkcluster status``."""

from __future__ import annotations

import argparse

from sparkcluster import hints
from sparkcluster.cli.common import emitted, inventory_argument, option, querying
from sparkcluster.cli.output import message
from sparkcluster.cli.status_view import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``status``."""
    inventory_argument(parser, playbook=False)
    option(parser, "-v --verbose", "also show the image's digest, Ray, and the containers")
    option(parser, "--watch", "show all models and nodes live on a terminal until q or Ctrl-C")
    option(parser, "--follow", "with --json: print all models and nodes every 5 s, one document per line, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Show what runs where; exit 0 only if every group answers or is on demand."""
    if args.watch or args.follow:
        from sparkcluster.cli import status_watch

        return status_watch.run(args) if args.watch else status_watch.follow(args)
    from sparkcluster.inspect.cluster import see
    from sparkcluster.inspect.status import status

    with querying(args, "waiting for a token from every group") as (fleet, spec, _):
        document = hints.command_line.throughout(status(fleet, see(fleet, spec)))
    if not emitted(args, document):
        show(document, verbose=args.verbose)
        message(document["next"], kind="next")
    return 0 if document["state"] in {"serving", "on demand"} else 1
