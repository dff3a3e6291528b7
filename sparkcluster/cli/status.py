"""``sparkcluster status``."""

from __future__ import annotations

import argparse

from sparkcluster.cli.common import connect_fleet, inventory_argument, load_spec
from sparkcluster.cli.output import emit_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``status``."""
    inventory_argument(parser, playbook=False)


def run(args: argparse.Namespace) -> int:
    """Tell what runs where; exit 0 only when every group answers."""
    from sparkcluster.release.serving import status

    spec = load_spec(args)
    with connect_fleet(spec) as fleet:
        found = status(fleet, spec)
    if args.json:
        emit_json(found.document)
    else:
        show(found.document)
    return 0 if found.serving else 1


def show(document: dict[str, object]) -> None:
    """The status for people, on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    release = f", release {document['release']}" if document["release"] else ""
    console.print(Text(f"{document['cluster']}: {document['state']}{release}", style="bold"))
    if document["lease"]:
        console.print(Text(f"being changed by {document['lease']['operator']}"))  # type: ignore[index]
    for group in document["groups"]:  # type: ignore[attr-defined]
        why = f" ({group['why']})" if group["why"] else ""
        console.print(Text(f"  {group['name']}: {group['state']}  {group['endpoint']}{why}"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("NODE", "ROLE", "STATE", "RAY", "CONTAINER"):
        table.add_column(heading, no_wrap=heading != "CONTAINER", overflow="fold")
    for node in document["nodes"]:  # type: ignore[attr-defined]
        cells = (node["name"], node["role"], node["state"], node["ray"], node["container"])
        table.add_row(*(Text(str(cell)) if cell else Text("-") for cell in cells))
    console.print(table)
    for node in document["nodes"]:  # type: ignore[attr-defined]
        if node["why"]:
            console.print(Text(f"  {node['name']}: {node['why']}"))
