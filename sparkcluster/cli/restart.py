"""``sparkcluster restart``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import common_flags, inventory_argument, reporting
from sparkcluster.cli.upgrade import finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``restart``."""
    inventory_argument(parser, "--json-lines", playbook=False)
    common_flags(parser, "--timeout", "--trust", "--wait")


def run(args: argparse.Namespace) -> int:
    """Start what serves anew, with the API key of today."""
    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release import after_ready
        from sparkcluster.release.deploy import Options
        from sparkcluster.release.upgrade import restart

        options = Options(timeout_s=args.timeout, trust=args.trust, min_speed=0, wait_s=args.wait)
        done = restart(fleet, spec, options, report)
        ran = after_ready.run(spec, done, report)
    return finish(args, spec, done, ran, restored=done.restored)
