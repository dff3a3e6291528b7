"""``sparkcluster down``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import connect_fleet, emitted, inventory_argument, reporting
from sparkcluster.report import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``down``."""
    inventory_argument(parser, "--json-lines", playbook=False)


def run(args: argparse.Namespace) -> int:
    """Stop and remove what ``up`` made."""
    from sparkcluster.release.down import down

    with reporting(args) as (fleet, spec, report):
        removed = down(
            fleet,
            spec,
            report,
            reach=lambda nodes: connect_fleet(spec.inventory.model_copy(update={"nodes": nodes})),
        )
    if not emitted(args, {"cluster": spec.inventory.cluster, "state": "down", "removed": removed}):
        number = sum(map(len, removed.values()))
        outcome = f"{count(number, 'rank')} removed" if number else "nothing was running"
        print(f"{spec.inventory.cluster} is down ({outcome})")
    return 0
