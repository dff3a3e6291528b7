"""``sparkcluster disable``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import emitted, inventory_argument, reporting
from sparkcluster.cli.output import data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``disable``."""
    inventory_argument(parser, "--json-lines", playbook=False)


def run(args: argparse.Namespace) -> int:
    """Let nothing start by itself any more; what serves goes on."""
    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release.enabled import disable

        nodes = disable(fleet, spec, report)
    document = {"cluster": spec.inventory.cluster, "enabled": False, "nodes": nodes}
    if not emitted(args, document):
        data("disabled: nothing starts by itself" if nodes else "it was not enabled")
    return 0
