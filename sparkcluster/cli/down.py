"""``sparkcluster down``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import emitted, fleet_of, inventory_argument, option, reporting
from sparkcluster.cli.output import data
from sparkcluster.report import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``down``."""
    inventory_argument(parser, "--json-lines", playbook=False)
    option(parser, "--also HOST*", "also stop ranks on this machine, though it is not in the inventory")


def run(args: argparse.Namespace) -> int:
    """Stop the ranks and remove their containers."""
    from sparkcluster.release.down import down, shown

    with reporting(args) as (fleet, spec, report):
        removed, left = down(
            fleet,
            spec,
            report,
            reach=lambda nodes: fleet_of(spec.inventory.model_copy(update={"nodes": nodes})),
            also=args.also,
        )
    document = {"cluster": spec.inventory.cluster, "state": "down", "removed": removed}
    named = [{"name": node.label, "host": node.host, "named_by": readers} for node, readers in left.items()]
    if not emitted(args, document | {"not_contacted": named}):
        number = sum(map(len, removed.values()))
        outcome = f"{count(number, 'rank')} removed" if number else "nothing was running"
        data(f"{spec.inventory.cluster} is down{' on every node of the inventory' if left else ''} ({outcome})")
        if left:
            data(f"not contacted: {', '.join(map(shown, left))}")
    return 0
