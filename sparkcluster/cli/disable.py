"""``sparkcluster disable``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import emitted, inventory_argument, reporting
from sparkcluster.cli.output import data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``disable``."""
    inventory_argument(parser, "--json-lines", playbook=False)


def run(args: argparse.Namespace) -> int:
    """Turn off automatic restart; a running model keeps running."""
    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release.enabled import disable

        nodes = disable(fleet, spec, report)
    document = {"cluster": spec.inventory.cluster, "enabled": False, "nodes": nodes}
    if not emitted(args, document):
        data("automatic restart is off" if nodes else "automatic restart was already off")
    return 0
