"""``sparkcluster load``."""

from __future__ import annotations

import argparse

from sparkcluster import hints
from sparkcluster.cli.common import asking, emitted, inventory_argument, option
from sparkcluster.cli.output import data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``load``."""
    inventory_argument(parser, playbook=False, model="")
    option(parser, "name NAME?", "name of the model in the inventory, as for --model")


def run(args: argparse.Namespace, what: str = "load") -> int:
    """Ask the gateway to load or unload the model; ``what`` is the verb."""
    from sparkcluster.errors import UsageError
    from sparkcluster.inspect import gateway
    from sparkcluster.spec.load import load, load_all

    if args.name is None:
        raise UsageError("NAME is missing", hint="sparkcluster status INVENTORY lists the models")
    specs = load_all(args.inventory, starts=False)
    spec = load(args.inventory, starts=False, model=args.name) if specs[0].model else specs[0]
    if not spec.model and args.name not in {spec.playbook.name, spec.playbook.model_name}:
        raise UsageError(f"no model named {args.name[:60]}", hint=f"its only model is {spec.playbook.name}")
    if spec.idle_s is None:
        hint = hints.CommandLine(model=spec.model)(f"sparkcluster {'up' if what == 'load' else 'down'} INVENTORY")
        raise UsageError(f"{spec.model or spec.playbook.name} is always on, not on demand", hint=hint)
    behind = gateway.of_inventory(specs)
    with asking(behind, "asking the gateway") as (fleet, _):
        found = gateway.ask(fleet, behind, f"/{what}/{args.name}")
    if not emitted(args, {"cluster": spec.inventory.cluster, "model": args.name, "text": found["text"]}):
        data(found["text"])
    return 0
