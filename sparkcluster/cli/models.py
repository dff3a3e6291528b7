"""``sparkcluster models``."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from sparkcluster.cli.common import emitted, inventory_argument, option, reporting
from sparkcluster.cli.output import data, message, table
from sparkcluster.report import size

if TYPE_CHECKING:
    from sparkcluster.inspect.models import Found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``models``."""
    inventory_argument(parser, "--json-lines", playbook=False, model="")
    about = "count the models of this playbook (name or path) as used"
    option(parser, "--playbook P*", about, dest="playbooks")
    option(parser, "--prune", "remove, after asking, staged models that no playbook, release or cluster uses")
    option(parser, "--yes", "remove them without asking")


def run(args: argparse.Namespace) -> int:
    """List the models on every node, and remove unused ones."""
    from sparkcluster.inspect.models import models
    from sparkcluster.spec.load import load, load_all

    own = load_all(args.inventory, starts=False)
    others = [*own, *(load(args.inventory, each, starts=False) for each in args.playbooks)]
    removed: dict[str, dict[str, int]] = {}
    with reporting(args) as (fleet, spec, report):
        look = partial(models, fleet, spec, others)
        found = look()
        if args.prune:
            from sparkcluster.release.prune import prune

            removed = prune(fleet, spec, look, report, others=own, yes=args.yes)
    cluster = spec.inventory.cluster
    if emitted(args, {"cluster": cluster, **found.as_json(), "removed": removed}):
        return 1 if found.errors else 0
    for name, why in found.errors.items():
        message(f"{name}: {why.removeprefix(f'{name}: ')}", kind="warning")
    if args.prune:
        lines = [f"{name}: removed {size(removed[name][node])} on {node}" for name in removed for node in removed[name]]
        for line in lines or ["nothing to remove"]:
            data(line)
    elif not any(found.nodes.values()):
        data(f"no models on the nodes of {cluster}")
    else:
        table(("MODEL", "SIZE", "STAGED", "NODES", "USED BY"), rows(found))
    return 1 if found.errors else 0


def rows(found: Found) -> list[tuple[str, ...]]:
    """A row for each model and size, with its nodes."""
    out: list[tuple[str, ...]] = []
    for model in found.as_json()["models"]:
        users = {f"release of {name}" for each in model["nodes"].values() for name in each["used_by"]}
        users |= {f"playbook {model['playbook']}"} if model["playbook"] else set()
        alike: dict[tuple[str, str], list[str]] = {}
        for node, each in model["nodes"].items():
            staged = "all" if each["staged_bytes"] == each["bytes"] else size(each["staged_bytes"])
            alike.setdefault((size(each["bytes"]), staged if each["staged_bytes"] else "-"), []).append(node)
        for amounts, nodes in alike.items():
            out.append((model["name"], *amounts, ", ".join(nodes), ", ".join(sorted(users)) or "-"))
    return out
