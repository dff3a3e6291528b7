"""``sparkcluster enable``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import emitted, inventory_argument, reporting
from sparkcluster.cli.output import data, message, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``enable``."""
    inventory_argument(parser, "--json-lines", playbook=False)


def run(args: argparse.Namespace) -> int:
    """Let the release that serves come back after a reboot."""
    import shlex

    with reporting(args) as (fleet, spec, report):
        from sparkcluster.release.enabled import enable

        done = enable(fleet, spec, report)
    nodes = {name: {"unit": each.unit, "command": list(each.command)} for name, each in done.nodes.items()}
    document = {"cluster": spec.inventory.cluster, "enabled": True, "release": done.release, "nodes": nodes}
    if emitted(args, document):
        return 0
    comes = f"release {done.release} comes back after a reboot"
    if any(each.unit is None for each in done.nodes.values()):
        comes += "; where there is no systemd, once the command below runs at every boot"
    data(f"{spec.inventory.cluster} is enabled: {comes}")
    table(("NODE", "UNIT"), [(name, each.unit or "-") for name, each in done.nodes.items()])
    for name, each in done.nodes.items():
        if each.unit is None:
            message(f"warning: {name} has no systemd; run this at every boot: {shlex.join(each.command)}")
    return 0
