"""``sparkcluster plan``."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from typing import Any

from sparkcluster.cli.common import emitted, inventory_argument, querying
from sparkcluster.cli.output import note, say, write
from sparkcluster.printable import LINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``plan``."""
    inventory_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Show what ``up`` would do; exit 1 where a finding would stop it."""
    from sparkcluster.findings import has_errors
    from sparkcluster.inspect.cluster import view_cluster
    from sparkcluster.release.serving import rotated_secrets
    from sparkcluster.release.states import differences, group_states
    from sparkcluster.spec import library, powers

    with querying(args) as (fleet, spec, _):
        view = view_cluster(fleet, spec)
    plan = view.plan or view.draft
    if plan is None:
        view.stop_on_errors()
        return 1
    states = {
        name: dataclasses.replace(group, rotated=rotated_secrets(view, group))
        for name, group in group_states(view).items()
    }
    differing = [each for group in states.values() for each in differences(view, group)]
    document = {
        **plan.as_json(),
        "provisional": view.plan is None,
        "findings": [finding.as_json() for finding in view.findings],
        "differences": [each.as_json() for each in differing],
        "after_ready": spec.inventory.after_ready,
    }
    if not emitted(args, document):
        show(document)
        for finding in view.findings:
            note(f"{finding.severity}: {finding.code} {finding.node or ''}: {finding.summary}")
        if view.plan is None:
            note(f"provisional: final once every node has {plan.image} (sparkcluster stage brings it)")
        note(f"state now: {', '.join(f'{name} {group.state.value}' for name, group in states.items())}")
        if differing:
            note("it differs from what runs:")
        for line in (line for each in differing for line in each.shown()):
            note(f"  {line}")
        for command in spec.inventory.after_ready:
            note(f"after it is ready, on this machine: {shlex.join(command)}")
        for line in library.shadowing(spec) + powers.lines(spec.playbook, spec.inventory):
            note(line)
    return 1 if has_errors(view.findings) else 0


def show(document: dict[str, Any]) -> None:
    """The plan as text: complete commands that can be pasted."""
    say(f"cluster {document['cluster']}  plan {document['hash'][:12]}  model {document['model']}")
    for name, node in document["nodes"].items():
        say()
        say(f"{name}  rank {node['rank']} ({node['role']} of {node['group']})")
        for variable, value in sorted(node["env"].items()):
            write(sys.stdout, f"  {variable}={value}", keep=LINES)
        for variable in node["secrets"]:
            say(f"  {variable}=(secret)")
        for container in node["containers"]:
            write(sys.stdout, f"  $ {shlex.join(container['argv'])}", keep=LINES)
            launcher = container["launcher"]
            ray = (launcher.get("ray") or {}).get("start")
            if ray:
                say(f"    inside: {shlex.join(ray)}")
            for line in launcher.get("setup", []):
                write(sys.stdout, f"    inside: {line}", keep=LINES)
            if launcher.get("engine"):
                write(sys.stdout, f"    inside: {shlex.join(launcher['engine'])}", keep=LINES)
