"""``sparkcluster key``."""

from __future__ import annotations

import argparse
import os

from sparkcluster.cli.common import emitted, inventory_argument, option
from sparkcluster.cli.output import data, message, typed

_SAID = {"created": "created a key in", "rotated": "created a new key in", "kept": "kept the key in"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``key``."""
    inventory_argument(parser, playbook=False, model="")
    option(parser, "--rotate", "create a new key even if there is one")
    option(parser, "--file FILE", "file for the key; it replaces the key source in the inventory")


def run(args: argparse.Namespace) -> int:
    """Create the API key, or say where it is stored; prints the command that uses it, never the key."""
    import dataclasses

    from sparkcluster.endpoint.connection import Key, curl
    from sparkcluster.inspect.connect import connection
    from sparkcluster.setup.api_key import make
    from sparkcluster.spec.load import load_all

    file = args.file
    if file is not None and not file.startswith("~"):
        home, file = os.path.expanduser("~/"), os.path.abspath(file)  # noqa: PTH100, PTH111 - as typed, links and all
        file = f"~/{file.removeprefix(home)}" if file.startswith(home) else file
    found = connection(load_all(args.inventory, starts=False)[0])  # may fail, so before anything is written
    made = make(args.inventory, file, rotate=args.rotate)
    document = made.as_json() | {"curl": curl(dataclasses.replace(found, key=Key(file=made.file)))}
    if emitted(args, document):
        return 0
    data(f"{_SAID[made.key]} {made.file}{'; --rotate makes a new one' * (made.key == 'kept')}")
    for line in made.difference:
        data(f"  {line}")
    data(f"  try      {document['curl']}")
    data("  clients  ", typed("sparkcluster connect INVENTORY"))
    if made.key == "created":
        message("sparkcluster up INVENTORY", kind="next")
        message("sparkcluster restart INVENTORY   if it already runs", kind="or")
    elif made.key == "rotated":
        message("sparkcluster restart INVENTORY   until then the old key stays valid", kind="next")
    return 0
