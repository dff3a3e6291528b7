"""``sparkcluster connect``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sparkcluster.cli import common
from sparkcluster.cli.common import emitted, inventory_argument, load_spec, option
from sparkcluster.cli.output import data, message, paint, table, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``connect``."""
    inventory_argument(parser)
    option(parser, "--client NAME", "print what to paste for this client (default: list them)")
    option(parser, "--group G", "group to connect to (default: the first)")
    option(parser, "--show-key", "print the API key itself, not where it is")


def run(args: argparse.Namespace) -> int:
    """Print what to paste into a client to stdout, and what to know about it to stderr."""
    from sparkcluster.endpoint.clients import CLIENTS
    from sparkcluster.errors import UsageError
    from sparkcluster.suggest import did_you_mean

    if args.client is not None and args.client not in CLIENTS:
        hint = did_you_mean(args.client, CLIENTS, f"one of {', '.join(CLIENTS)}")
        raise UsageError(f"unknown client: {args.client[:60]}", hint=hint)
    spec = load_spec(args)
    from sparkcluster.inspect.connect import connection, document, serving
    from sparkcluster.runtime.secrets import api_key

    key, release, notes = None, None, list[str]()
    as_written = spec.selected == spec.inventory.selected
    if args.show_key or as_written:
        with common.asking(spec) as (fleet, _):
            key = api_key(spec) if args.show_key else None
            spec, release, notes = serving(fleet, spec, args.group) if as_written else (spec, None, [])
    found = document(connection(spec, args.group, key=key), args.client, release)
    if not emitted(args, found):
        for text in notes:
            message(text, kind="note")
        show(found)
    return 0


def show(found: dict[str, Any]) -> None:
    """The block of a client, or the list of clients."""
    client = found["client"]
    if client is None:
        key = found["key"]
        where = "none" if key is None else f"${key['env']}" if key["env"] else key["file"]
        endpoint = paint(found["endpoint"] or "address unknown", "bold")
        data(endpoint, *(f"  {url}" for url in found["others"]), f"  model {found['model']}  key {where}")
        table(("CLIENT", "PROGRAM", "WHAT IT IS"), [tuple(each.values()) for each in found["clients"]])
        message("sparkcluster connect INVENTORY --client NAME", kind="next")
    else:
        message(f"{client['title']}: paste into {client['where']}")
        write(sys.stdout, client["block"], keep="\n")
        for kind in ("warning", "note"):
            for text in client[f"{kind}s"]:
                message(text, kind="" if text.startswith("  ") else kind)
        message(client["source"], kind="docs")
    if found["tunnel"]:
        message("this machine reaches the API through SSH alone; while it is used, keep running:", kind="note")
        message(f"  {found['tunnel']}")
    if found["endpoint"] is None:
        message("the address is known once it serves: sparkcluster status INVENTORY", kind="note")
