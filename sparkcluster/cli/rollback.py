"""``sparkcluster rollback``."""

from __future__ import annotations

import argparse

from sparkcluster.cli import change
from sparkcluster.cli.common import at_least, common_flags, inventory_argument, option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``rollback``."""
    inventory_argument(parser, "--json-lines", "--yes", playbook=False, model="required if it has several")
    option(parser, "release RELEASE?", "number (default: newest that differs from the running release)", at_least(1))
    option(parser, "--save", "afterwards write its playbook, image and settings into the inventory")
    common_flags(parser, "--timeout", "--wait")


def run(args: argparse.Namespace) -> int:
    """Roll back to an earlier release."""
    from sparkcluster.release.upgrade import rollback

    return change.run(
        args, lambda fleet, spec, report: rollback(fleet, spec, args.release, change.options(args), report)
    )
