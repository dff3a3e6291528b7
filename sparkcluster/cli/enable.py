"""``sparkcluster enable``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import emitted, inventory_argument, reporting
from sparkcluster.cli.output import data, message, paint
from sparkcluster.report import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``enable``."""
    inventory_argument(parser, "--json-lines", "--yes", playbook=False)


def run(args: argparse.Namespace) -> int:
    """Turn on automatic restart of the release that serves."""
    import shlex

    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release.enabled import enable

        release, nodes = enable(fleet, spec, report, yes=args.yes)
    guards = {name: {"unit": each.unit, "command": list(each.command)} for name, each in nodes.items()}
    document = {"cluster": spec.inventory.cluster, "enabled": True, "release": release, "nodes": guards}
    if emitted(args, document):
        return 0
    without = [name for name, each in nodes.items() if each.unit is None]
    if not without:
        data(paint(f"enabled: release {release} comes back after a reboot", "bold good"))
        return 0
    where = ", ".join(without)
    reason = f"{where} {'has' if len(without) == 1 else 'have'} no systemd"
    enabled = len(nodes) - len(without)
    data(paint(f"enabled on {enabled} of {count(len(nodes), 'Spark')}: {reason}", "bold warn"))
    message(f"to bring release {release} back, run this at every boot, as the login user:")
    for name in without:
        message(f"on {name}: {shlex.join(nodes[name].command)}", indent="  ")
    return 0
