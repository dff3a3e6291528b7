"""``sparkcluster logs``."""

from __future__ import annotations

import argparse
import json

from sparkcluster.cli.common import at_least, connect_fleet, inventory_argument, load_spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``logs``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument("node", metavar="NODE", nargs="?", help="one node; default: all")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("-n", "--tail", metavar="N", type=at_least(0), default=200, help="last N lines; default 200")


def run(args: argparse.Namespace) -> int:
    """Print the log of one or all nodes, each line after its node's name."""
    from sparkcluster.release.logs import follow

    spec = load_spec(args)
    width = max(len(node.label) for node in spec.inventory.nodes)

    def show(node: str, lines: tuple[str, ...]) -> None:
        for line in lines:
            if args.json:
                print(json.dumps({"node": node, "line": line}), flush=True)
            else:
                print(f"{node:<{width}} | {line}", flush=True)

    with connect_fleet(spec) as fleet:
        return follow(fleet, spec, show, node=args.node, tail=args.tail, go_on=args.follow)
