"""``sparkcluster status``."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import Any

from sparkcluster.cli.common import emitted, inventory_argument, querying
from sparkcluster.cli.output import say, table, typed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``status``."""
    inventory_argument(parser, playbook=False)


def run(args: argparse.Namespace) -> int:
    """Show what runs where; exit 0 only if every group answers."""
    from sparkcluster.inspect.status import status

    with querying(args) as (fleet, spec, _):
        document = status(fleet, spec)
    if not emitted(args, document):
        show(document, args.inventory)
    return 0 if document["state"] == "serving" else 1


def show(document: dict[str, Any], inventory: object) -> None:
    """The status as text."""
    from sparkcluster.facts.model import LeaseFact

    nodes: list[dict[str, Any]] = document["nodes"]
    release = f", release {document['release']}" if document["release"] else ""
    unasked = all(node["why"] for node in nodes)
    state = "unknown, no node could be reached" if unasked else document["state"]
    say(f"{document['cluster']}: {state}{release}")
    shown = set()
    for kind in ("lease", "staging"):
        who = document[kind] and (document[kind]["operator"], document[kind]["operation"])
        if who and who not in shown:  # an up has both
            shown.add(who)
            attached = document[kind].get("attached", True)
            lease = LeaseFact.model_validate({**document[kind], "held": attached, "at_work": True})
            say(lease.describe(document["cluster"], time.time()))
    switch = document["switch"]
    if switch and not document["lease"]:
        say(f"  {switch['operator']} left a switch from release {switch['source']} unfinished")
        say(f"  to end it: sparkcluster upgrade {shlex.quote(str(inventory))} --resume")
    for group in document["groups"]:
        why = f" ({typed(group['why'].replace('INVENTORY', shlex.quote(str(inventory))))})" if group["why"] else ""
        say(f"  {group['name']}: {group['state']}  {group['endpoint']}{why}")
    if document["image"]:
        digest = f"  {document['digest']}" if document["digest"] else ""
        say(f"  image: {document['image']}{digest}")
    _show_guards(document)
    rows = []
    for node in nodes:
        cells = (node["role"], "unreachable" if node["why"] else node["state"], node["ray"], node["container"])
        rows.append((node["name"], *(str(cell) if cell else "-" for cell in cells)))
    table(("NODE", "ROLE", "STATE", "RAY", "CONTAINER"), rows)
    for node in nodes:
        if node["why"]:
            say(f"  {node['name']}: {node['why']}")


def _show_guards(document: dict[str, Any]) -> None:
    """Whether the cluster comes back after a reboot, and why not."""
    if document["enabled"] or document["guards"]:
        say(f"  enabled: {'yes' if document['enabled'] else 'not on every node'}")
    for name, trouble in document["guards"].items():
        say(f"  guard on {name}: {trouble}")
