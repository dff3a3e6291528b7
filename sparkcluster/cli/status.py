"""``sparkcluster status``."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import Any

from sparkcluster.cli.common import emitted, inventory_argument, querying
from sparkcluster.cli.output import data, message, program, table, typed

_GB = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``status``."""
    inventory_argument(parser, playbook=False)
    parser.add_argument("--watch", action="store_true", help="show it live on a terminal until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Show what runs where; exit 0 only if every group answers."""
    if args.watch:
        from sparkcluster.cli import status_watch

        return status_watch.run(args)
    from sparkcluster.inspect.status import status

    early: list[dict[str, Any]] = []
    with querying(args) as (fleet, spec, waiting):

        def quick(document: dict[str, Any]) -> None:
            early.append(document)
            with waiting.paused():
                show(pasted(document, args.inventory))
            waiting.text = f"waiting for a token of {', '.join(document['waiting'])}"

        document = status(fleet, spec, None if args.json else quick)
    document = pasted(document, args.inventory)
    if not emitted(args, document):
        if early:
            data(headline(document))
            _show_groups(document)
        else:
            show(document)
        message(document["next"], kind="next")
    return 0 if document["state"] == "serving" else 1


def pasted(document: dict[str, Any], inventory: object) -> dict[str, Any]:
    """``document`` with the path of the inventory in what is to be typed."""
    path = shlex.quote(str(inventory))
    groups = [
        group | {key: group[key] and typed(group[key].replace("INVENTORY", path)) for key in ("why", "warning")}
        for group in document["groups"]
    ]
    return {**document, "groups": groups, "next": document["next"].replace("INVENTORY", path)}


def show(document: dict[str, Any]) -> None:
    """The status as text, on stdout."""
    from sparkcluster.facts.model import LeaseFact

    nodes: list[dict[str, Any]] = document["nodes"]
    data(headline(document))
    shown = set()
    for kind in ("lease", "staging"):
        who = document[kind] and (document[kind]["operator"], document[kind]["operation"])
        if who and who not in shown:  # an up has both
            shown.add(who)
            attached = document[kind].get("attached", True)
            lease = LeaseFact.model_validate({**document[kind], "held": attached, "at_work": True})
            data(lease.describe(document["cluster"], time.time()))
    switch = document["switch"]
    if switch and not document["lease"]:
        data(f"  {switch['operator']} left a switch from release {switch['source']} unfinished")
    _show_groups(document)
    if document["model"]:
        data(f"  model: {document['model']}")
    if document["image"]:
        data(f"  image: {document['image']}")
        if document["digest"]:
            data(f"  digest: {document['digest']}")
    _show_guards(document)
    rows = []
    for node in nodes:
        cells = (node["role"], "unreachable" if node["why"] else node["state"], node["ray"], memory(node))
        rows.append((node["name"], *(str(cell) if cell else "-" for cell in (*cells, node["container"]))))
    table(("NODE", "ROLE", "STATE", "RAY", "MEMORY", "CONTAINER"), rows)
    for node in nodes:
        if node["why"]:
            data(f"{node['name']}: {node['why']}", indent="  ")


def headline(document: dict[str, Any]) -> str:
    """The state of the cluster in one line."""
    release = f", release {document['release']}" if document["release"] else ""
    word = document["state"]
    if word == "unknown":
        word = "unknown, no node could be reached"
    elif document.get("waiting"):
        word = f"no token of {', '.join(document['waiting'])} yet"
    return f"{document['cluster']}: {word}{release}"


def _show_groups(document: dict[str, Any]) -> None:
    for group in document["groups"]:
        endpoint = f"  {group['endpoint']}" if group["endpoint"] else ""
        why = f" ({group['why']})" if group["why"] else ""
        state = "waiting for a token" if group["name"] in document.get("waiting", ()) else group["state"]
        data(f"{group['name']}: {state}{endpoint}{why}", indent="  ")
        facts = [f"up {duration(group['uptime_s'])}"] if group["uptime_s"] is not None else []
        facts += load(group["load"]) if group["load"] else []
        if facts:
            data(f"    {'; '.join(facts)}")
        if group["warning"]:
            what, colon, command = group["warning"].partition(f": {program()} ")
            data(what, kind="warning", indent="    ")
            data(f"{colon[2:]}{command}", kind="hint", indent="    ")


def load(load: dict[str, Any]) -> list[str]:
    """What an engine does now, in parts of a line; what it does not count is left out."""
    queues = [f"{load[key]:.0f} {key}" for key in ("running", "waiting") if load[key] is not None]
    parts = [f"requests: {', '.join(queues)}"] if queues else []
    parts += [f"{load['tokens_per_s']:.1f} tokens/s"] if load["tokens_per_s"] is not None else []
    parts += [f"KV cache {load['kv_cache'] * 100:.0f} %"] if load["kv_cache"] is not None else []
    return parts


def memory(node: dict[str, Any]) -> str | None:
    """Memory of a node in use, of all of it, in GB."""
    found = node["memory"]
    if found is None:
        return None
    return f"{(found['total_bytes'] - found['available_bytes']) / _GB:.0f}/{found['total_bytes'] / _GB:.0f} GB"


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min``, ``5 d 2 h``."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def _show_guards(document: dict[str, Any]) -> None:
    """Whether the cluster comes back after a reboot, and why not."""
    if document["enabled"] or document["guards"]:
        data(f"  enabled: {'yes' if document['enabled'] else 'not on every node'}")
    for name, trouble in document["guards"].items():
        data(f"guard on {name}: {trouble}", indent="  ")
