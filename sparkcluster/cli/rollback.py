"""``sparkcluster rollback``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import at_least, common_flags, inventory_argument, option, reporting
from sparkcluster.cli.upgrade import finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``rollback``."""
    inventory_argument(parser, "--json-lines", playbook=False)
    option(parser, "release RELEASE?", "number of the release; default: the one before", at_least(1))
    option(parser, "--save", "then write what was chosen for it into the inventory")
    common_flags(parser, "--timeout", "--trust", "--wait")


def run(args: argparse.Namespace) -> int:
    """Let a kept release serve again."""
    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release import after_ready
        from sparkcluster.release.deploy import Options
        from sparkcluster.release.upgrade import rollback

        options = Options(timeout_s=args.timeout, trust=args.trust, min_speed=0, wait_s=args.wait)
        done = rollback(fleet, spec, args.release, options, report)
        ran = after_ready.run(spec, done, report)
    return finish(args, spec, done, ran, restored=done.restored)
