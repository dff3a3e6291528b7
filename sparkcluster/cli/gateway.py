"""What commands do with the gateway of an inventory, beside what they do with each of its models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkcluster.cli import common
from sparkcluster.cli.output import data, message, paint, table
from sparkcluster.cli.progress import reporter
from sparkcluster.report import duration, size

if TYPE_CHECKING:
    from sparkcluster.cli.progress import Shown
    from sparkcluster.hosts.fleet import Fleet
    from sparkcluster.report import Report
    from sparkcluster.spec import Spec

Turn = Callable[[argparse.Namespace, Sequence["Spec"], Collection[str]], int]
"""With arguments, specs of all models, and the names of those that the command did well; its exit code."""
NAME = "gateway"
STARTS = ("up", "upgrade", "rollback", "restart")


def turn(name: str, args: argparse.Namespace, specs: Sequence[Spec]) -> Turn | None:
    """What the command ``name`` does with the gateway of ``specs``; None for nothing."""
    if not specs[0].gateway_node or vars(args).get("dry_run"):
        return None
    return {**dict.fromkeys(STARTS, ensure), "down": remove, "status": status, "preflight": preflight}.get(name)


def room(name: str, specs: Sequence[Spec], model: str) -> dict[str, Any]:
    """What a command that starts ``model`` is given to make room for it."""
    if name not in STARTS or not specs[0].gateway_node or model == NAME:
        return {}

    def make_room(report: Report) -> bool:
        from sparkcluster.inspect.gateway import of_inventory
        from sparkcluster.release.gateway import make_room

        with common.fleet_of(of_inventory(specs).inventory) as fleet:
            return make_room(fleet, specs, model, report)

    return {"make_room": make_room}


@contextmanager
def reached(args: argparse.Namespace, specs: Sequence[Spec]) -> Iterator[tuple[Fleet, Spec, Shown]]:
    """All nodes that serve a model, and the spec of the gateway."""
    from sparkcluster.inspect.gateway import of_inventory
    from sparkcluster.spec import consent

    spec = of_inventory(specs)
    with reporter(as_json=args.json, json_lines=args.json_lines) as report:
        consent.accept_inventory(specs[0], report, yes=vars(args).get("yes"))
        with common.fleet_of(spec.inventory) as fleet:
            yield fleet, spec, report


def ensure(args: argparse.Namespace, specs: Sequence[Spec], models: Collection[str]) -> int:
    """Let the gateway serve ``models`` as they are now; nothing where none came up."""
    if not models:
        if not common.emitted(args, {"node": specs[0].gateway_node, "endpoint": None}):
            message("unchanged, as no model came up", kind="note")
        return 1
    with reached(args, specs) as (fleet, spec, report):
        from sparkcluster.release.gateway import ensure

        url = ensure(fleet, specs, models, report)
    if not common.emitted(args, {"node": spec.gateway_node, "endpoint": url}):
        data(paint("one address for all models", "bold good"), "   ", paint(url, "bold"))
    return 0


def remove(args: argparse.Namespace, specs: Sequence[Spec], _: Collection[str]) -> int:
    """Stop it."""
    with reached(args, specs) as (fleet, spec, report):
        from sparkcluster.release.stopping import remove_gateway

        remove_gateway(fleet, spec, report)
    if not common.emitted(args, {"node": spec.gateway_node, "endpoint": None}):
        data("the gateway is down")
    return 0


def preflight(args: argparse.Namespace, specs: Sequence[Spec], _: Collection[str]) -> int:
    """Look whether its image can run it."""
    with reached(args, specs) as (fleet, spec, _report):
        from sparkcluster.inspect.gateway import with_packages

        with_packages(fleet, spec, specs, staged=False)
    if not common.emitted(args, {"node": spec.gateway_node, "endpoint": None}):
        data(f"on {spec.gateway_node}, by {spec.image or 'the Python of the engine'}")
    return 0


def status(args: argparse.Namespace, specs: Sequence[Spec], _: Collection[str]) -> int:
    """Show it; exit code 1 where it does not answer."""
    with reached(args, specs) as (fleet, _spec, _report):
        from sparkcluster.inspect.gateway import document

        found = document(fleet, specs)
    if not common.emitted(args, found):
        show(found)
    return 1 if found["why"] else 0


def show(found: dict[str, Any]) -> None:
    """The gateway as text: its address, and a line for each model."""
    state = paint("● down", "bold") if found["why"] else paint("● serving", "bold good")
    data(state, "   ", paint(found["endpoint"] or "address unknown", "bold"), f" on {found['node']}")
    if found["why"]:
        message(found["why"], kind="warning")
    names = ("MODEL", "STATE", "WAITING", "LAST USED", "UNLOADED IN", "MEMORY")
    table(names, [_row(each) for each in found["models"]])
    for each in found["models"]:
        if each["why"]:
            data(f"{each['name']}: {each['why']}", indent="  ")


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    used, left, planned = model["last_used_s"], model["idle_s_left"], model["planned_bytes"]
    memory = size(planned) if planned else "unknown"
    return (
        model["name"],
        f"{model['state']} {model['progress']}".rstrip(),
        str(model["waiting"]),
        "-" if used is None else f"{duration(used)} ago",
        "-" if left is None else duration(left),
        f"{memory}, measured {size(model['measured_bytes'])}" if model["measured_bytes"] else memory,
    )
