"""``sparkcluster down``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import connect_fleet, inventory_argument, json_lines_argument, load_spec
from sparkcluster.cli.output import emit_json
from sparkcluster.cli.progress import reporter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``down``."""
    inventory_argument(parser, playbook=False)
    json_lines_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Stop and remove what ``up`` made."""
    from sparkcluster.release.down import down

    spec = load_spec(args)
    with connect_fleet(spec.inventory) as fleet, reporter(as_json=args.json, json_lines=args.json_lines) as report:
        done = down(
            fleet,
            spec,
            report,
            reach=lambda nodes: connect_fleet(spec.inventory.model_copy(update={"nodes": nodes})),
        )
    if args.json or args.json_lines:
        emit_json(
            {
                "cluster": spec.inventory.cluster,
                "state": "down",
                "removed": {name: list(ranks) for name, ranks in done.removed.items()},
            },
            line=args.json_lines,
        )
        return 0
    count = sum(len(ranks) for ranks in done.removed.values())
    what = f"{count} rank{'' if count == 1 else 's'} removed" if count else "nothing was running"
    print(f"{spec.inventory.cluster} is down ({what})")
    return 0
