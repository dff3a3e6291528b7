"""``sparkcluster restart``."""

from __future__ import annotations

import argparse

from sparkcluster.cli import change
from sparkcluster.cli.common import common_flags, inventory_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``restart``."""
    inventory_argument(parser, "--json-lines", "--yes", playbook=False)
    common_flags(parser, "--timeout", "--wait")


def run(args: argparse.Namespace) -> int:
    """Restart the running model, with the current API key."""
    from sparkcluster.release.upgrade import restart

    return change.run(args, lambda fleet, spec, report: restart(fleet, spec, change.options(args), report))
