"""``sparkcluster fit``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.common import assigned, at_least, common_flags, set_flag
from sparkcluster.cli.output import emit_json, message

if TYPE_CHECKING:
    from sparkcluster.spec import Spec
    from sparkcluster.spec.playbook import Playbook

LEAST_GB, MOST_GB = 1.0, 65536.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``fit``."""
    parser.add_argument("playbook", metavar="PLAYBOOK", help="name, path or model of a playbook, also with +OVERLAY")
    parser.add_argument(
        "--inventory",
        metavar="INV",
        type=Path,
        help="inventory to take the number of nodes from; its nodes are asked what was measured there",
    )
    parser.add_argument(
        "--config",
        metavar="PATH",
        type=Path,
        help="directory of the model, or its config.json (default: from the hub, or as recorded)",
    )
    parser.add_argument(
        "--context", metavar="N", type=at_least(1), help="context length in tokens (default: max-model-len)"
    )
    parser.add_argument(
        "--concurrency", metavar="N", type=at_least(1), help="concurrent requests of full context (default: 1)"
    )
    parser.add_argument(
        "--memory-gb", metavar="GB", type=_memory, default=128.0, help="nominal memory of a node (default: 128)"
    )
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=at_least(1),
        help="nodes that share the model (default: those of the inventory, else the fewest that the playbook allows)",
    )
    set_flag(parser)
    common_flags(parser, "--json")


def _memory(text: str) -> float:
    value = float(text)
    if not LEAST_GB <= value <= MOST_GB:
        raise argparse.ArgumentTypeError(f"must be from {LEAST_GB:.0f} to {MOST_GB:.0f}, is {text[:20]}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show how much memory a playbook needs; exit 1 where it does not fit, 0 where it does or that is not known."""
    from sparkcluster import engines
    from sparkcluster.cli.fit_view import show
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.errors import UsageError
    from sparkcluster.models.source import spark
    from sparkcluster.staging.known_models import Known, known, not_recorded
    from sparkcluster.staging.model_headers import from_path

    playbook, nodes, spec = _what(args)
    if args.config is not None:
        found = Known(from_path(args.config))
    else:
        with Waiting(f"reading the headers of {playbook.model.label}"):
            found = known(playbook.model, playbook.companions)
    if found.model is None:
        forecast: dict[str, Any] | None = not_recorded(playbook, found)
    else:
        forecast = engines.engine(playbook.engine).forecast(
            playbook,
            found.model,
            spark(args.memory_gb),
            nodes=nodes,
            context=args.context,
            requests=args.concurrency or 1,
            beside=found.beside,
        )
    if forecast is None:
        raise UsageError(f"the memory that {playbook.engine} needs is unknown", hint="start it, and read its log")
    if found.model is not None and found.note:
        forecast["not_counted"] = [found.note, *forecast["not_counted"]]
    forecast["recorded"] = list(found.recorded)
    if spec is not None:
        forecast["measured"] = _measured(spec, nodes)
    if args.json:
        emit_json(forecast)
    else:
        show(forecast)
    return 1 if forecast["fits"] is False else 0


def _what(args: argparse.Namespace) -> tuple[Playbook, int, Spec | None]:
    """The playbook, how many nodes share it, and the spec where an inventory is given."""
    from sparkcluster.spec.load import load, named, read_playbook

    if args.inventory is None:
        path, overlays = named(args.playbook)
        found, _ = read_playbook(path, overlays, assigned(args))
        tensor = 1 if found.tensor_parallel == "auto" else found.tensor_parallel
        nodes = args.nodes or max(found.nodes.min, tensor * found.pipeline_parallel)
        return read_playbook(path, overlays, assigned(args), nodes)[0], nodes, None
    spec = load(args.inventory, args.playbook, set_=assigned(args), nodes=args.nodes)
    groups = spec.inventory.groups
    size = max((len(group.nodes) for group in groups), default=0) if groups else len(spec.inventory.nodes)
    return spec.playbook, args.nodes or max(1, size), spec


def _measured(spec: Spec, nodes: int) -> dict[str, Any] | None:
    """What was measured on the nodes of the inventory; None where nothing was, or none of them answers."""
    from sparkcluster.cli.common import connect_fleet
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.inspect.history import measured

    text = f"asking {spec.inventory.cluster} what was measured there"
    try:
        with connect_fleet(spec.inventory) as fleet, Waiting(text):
            return measured(fleet, spec, nodes)
    except SparkclusterError as error:
        message(f"what was measured on {spec.inventory.cluster} is unknown: {error.message}")
        return None
