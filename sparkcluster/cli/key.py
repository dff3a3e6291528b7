"""``sparkcluster key``."""

from __future__ import annotations

import argparse
import os

from sparkcluster.cli.common import emitted, inventory_argument, option
from sparkcluster.cli.output import data, message, typed

_SAID = {"created": "made a key in", "rotated": "made a new key in", "kept": "kept the key in"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``key``."""
    inventory_argument(parser, playbook=False, model=False)
    option(parser, "--rotate", "make a new key, also where there is one")
    option(parser, "--file FILE", "file for the key, which the inventory then names in place of another source")


def run(args: argparse.Namespace) -> int:
    """Make the API key, or say where it is; print the command that uses it, never the key."""
    from sparkcluster.endpoint.connection import curl
    from sparkcluster.inspect.connect import connection
    from sparkcluster.setup.api_key import make

    file = args.file
    if file is not None and not file.startswith("~"):
        file = os.path.abspath(file)  # noqa: PTH100 - as it was typed, links and all
    made = make(args.inventory, file, rotate=args.rotate)
    found = connection(made.spec)
    document = made.as_json() | {"curl": curl(found)}
    if emitted(args, document):
        return 0
    data(f"{_SAID[made.key]} {made.file}")
    for line in made.difference:
        data(f"  {line}")
    data(f"  try      {document['curl']}")
    data("  clients  ", typed("sparkcluster connect INVENTORY"))
    if made.key != "kept":
        message("sparkcluster restart INVENTORY   until then what serves has its old key, or none", kind="next")
    return 0
