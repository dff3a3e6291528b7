"""``sparkcluster connect``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import common
from sparkcluster.cli.common import emitted, inventory_argument, load_spec, option
from sparkcluster.cli.output import data, message, paint, table, write

if TYPE_CHECKING:
    from sparkcluster.spec import Spec


ALL_MODELS = True
"""Covers all models in one run: ``cli.each`` does not run it once per model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``connect``."""
    inventory_argument(parser, model="default: all; with --client, the main model", one="--group")
    option(parser, "--client NAME", "print the settings for this client (default: list clients)")
    option(parser, "--group G", "group to connect to (default: the first)")
    option(parser, "--show-key", "print the API key itself, not where it is stored")


def run(args: argparse.Namespace) -> int:
    """Print the settings for a client to stdout, and notes about them to stderr."""
    from sparkcluster.endpoint.clients import CLIENTS
    from sparkcluster.errors import UsageError
    from sparkcluster.suggest import did_you_mean

    if args.client is not None and args.client not in CLIENTS:
        hint = did_you_mean(args.client, CLIENTS, f"one of {', '.join(CLIENTS)}")
        raise UsageError(f"unknown client: {args.client[:60]}", hint=hint)
    from sparkcluster.inspect.connect import connection, document, serving, together
    from sparkcluster.runtime.secrets import api_key

    specs, releases, notes, key = _specs(args), list[int | None](), list[str](), None
    watches = args.client is not None and CLIENTS[args.client].watches
    for at, spec in enumerate(specs):
        release, said = None, list[str]()
        as_written = spec.selected == spec.inventory.selected and not watches
        if args.show_key or as_written:
            with common.asking(spec) as (fleet, _):
                key = api_key(spec) if args.show_key else None
                if as_written:
                    specs[at], release, said = serving(fleet, spec, args.group)
        releases.append(release)
        notes += said
    connections = [connection(spec, args.group, key=key) for spec in specs]
    found = document(connections, together(specs, connections), args.client, releases)
    if not emitted(args, found):
        for text in notes:
            message(text, kind="note")
        show(found, watches=watches)
    return 0


def _specs(args: argparse.Namespace) -> list[Spec]:
    """The spec of ``--model``, else the specs of all models of the inventory."""
    if args.model:
        return [load_spec(args)]
    from sparkcluster.cli.each import for_one
    from sparkcluster.spec.load import load_all

    specs = load_all(args.inventory)
    chosen = next((flag for flag in ("group", "playbook", "set") if getattr(args, flag)), None)
    if chosen and len(specs) > 1:
        raise for_one(f"--{chosen}", [spec.model for spec in specs])
    return [load_spec(args)] if chosen else specs


def show(found: dict[str, Any], *, watches: bool = False) -> None:
    """The settings for a client, or the list of clients; ``watches``: the client is a monitor and uses no API."""
    client, models = found["client"], found.get("models", [found])
    if client is None:
        for each in models:
            key, kind = each["key"], each.get("kind", "chat")
            where = "none" if key is None else key.get("value") or (f"${key['env']}" if key["env"] else key["file"])
            endpoint = paint(each["endpoint"] or "address unknown", "bold")
            what = "model" if kind == "chat" else f"{kind} model"
            data(endpoint, *(f"  {url}" for url in each["others"]), f"  {what} {each['model']}  key {where}")
        table(("CLIENT", "PROGRAM", "DESCRIPTION"), [tuple(each.values()) for each in found["clients"]])
        message("sparkcluster connect INVENTORY --client NAME", kind="next")
    else:
        message(f"{client['title']}: paste into {client['where']}")
        write(sys.stdout, client["block"], keep="\n")
        for kind in ("warning", "note"):
            for text in client[f"{kind}s"]:
                message(text, kind="" if text.startswith("  ") else kind)
        message(client["source"], kind="docs")
    if watches:
        return
    if any(each["tunnel"] for each in models):
        message("this machine reaches the API only through SSH; keep this tunnel open:", kind="note")
        for tunnel in dict.fromkeys(filter(None, (each["tunnel"] for each in models))):
            message(f"  {tunnel}")
    if any(each["endpoint"] is None for each in models):
        message("the address is known once it serves: sparkcluster status INVENTORY", kind="note")
