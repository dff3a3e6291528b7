"""``sparkcluster fit``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sparkcluster.cli.common import at_least, json_argument
from sparkcluster.cli.output import emit_json, note, say

if TYPE_CHECKING:
    from sparkcluster.engines.base import Forecast
    from sparkcluster.spec.playbook import Playbook

WIDTH = 78
LEAST_GB, MOST_GB = 1.0, 65536.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``fit``."""
    parser.add_argument("playbook", metavar="PLAYBOOK", help="name or path of a playbook, with +OVERLAY behind it")
    parser.add_argument(
        "--inventory", metavar="INV", type=Path, help="cluster that it shall run on, for its number of nodes"
    )
    parser.add_argument(
        "--config", metavar="PATH", type=Path, help="directory of the model, or its config.json; default: ask the hub"
    )
    parser.add_argument(
        "--context", metavar="N", type=at_least(1), help="tokens of a request, in place of max-model-len"
    )
    parser.add_argument(
        "--concurrency", metavar="N", type=at_least(1), help="requests of full context at once; default 1"
    )
    parser.add_argument(
        "--memory-gb", metavar="GB", type=_memory, default=128.0, help="memory of a node as it is sold; default 128"
    )
    parser.add_argument("--nodes", metavar="N", type=at_least(1), help="nodes that share the model; default 1")
    json_argument(parser)


def _memory(text: str) -> float:
    value = float(text)
    if not LEAST_GB <= value <= MOST_GB:
        raise argparse.ArgumentTypeError(f"must be from {LEAST_GB:.0f} to {MOST_GB:.0f}, is {text[:20]}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show how much memory a playbook needs; exit 1 where it does not fit."""
    from sparkcluster import engines
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.errors import UsageError
    from sparkcluster.models.source import spark
    from sparkcluster.staging.model_headers import from_hub, from_path

    playbook, nodes = _what(args)
    if args.config is not None:
        model = from_path(args.config)
    elif playbook.model.id is not None:
        with Waiting(f"asking the hub for {playbook.model.id}"):
            model = from_hub(playbook.model.id, playbook.model.revision)
    else:
        model = from_path(Path(str(playbook.model.path)).expanduser())
    forecast = engines.engine(playbook.engine).forecast(
        playbook,
        model,
        spark(args.memory_gb),
        nodes=nodes,
        context=args.context,
        wanted=args.concurrency or 1,
    )
    if forecast is None:
        raise UsageError(f"the memory that {playbook.engine} needs is not known", hint="start it, and read its log")
    if args.json:
        emit_json(dict(forecast.document))
    else:
        show(playbook.name, forecast)
    return 1 if forecast.problems else 0


def _what(args: argparse.Namespace) -> tuple[Playbook, int]:
    """The playbook, and how many nodes share it."""
    from sparkcluster.spec.load import load, load_named

    if args.inventory is None:
        found = load_named(args.playbook)
        tensor = 1 if found.tensor_parallel == "auto" else found.tensor_parallel
        return found, args.nodes or tensor * found.pipeline_parallel
    spec = load(args.inventory, args.playbook)
    groups = spec.inventory.groups
    size = max((len(group.nodes) for group in groups), default=0) if groups else len(spec.inventory.nodes)
    return spec.playbook, args.nodes or max(1, size)


def show(playbook: str, forecast: Forecast) -> None:
    """The answer for people, within 80 columns and without colour."""
    on = "one Spark" if forecast.nodes == 1 else f"each of {forecast.nodes} Sparks"
    say(f"{playbook}: {forecast.model}")
    say(f"on {on}, {forecast.settings}")
    say()
    for line in bar(forecast):
        say(line)
    say()
    context = forecast.context
    say(f"KV cache     {forecast.tokens:,} tokens: {forecast.requests:.2f} requests of {context:,} tokens at once")
    say(f"one request  {_gb(forecast.request_bytes)} of {context:,} tokens")
    say(f"needs        {forecast.needed} for {_requests(forecast.wanted)} at once")
    for line in forecast.left_out:
        note(line)
    for problem in forecast.problems:
        note(f"does not fit: {problem}")
    for advice in forecast.advice:
        note(f"hint: {advice}")


def bar(forecast: Forecast) -> list[str]:
    """The node's memory as a bar, and what each part of it is."""
    parts = [part for part in forecast.parts if part[2] > 0]
    total = sum(size for _, _, size in parts)
    edges, sofar = [0], 0
    for _, _, size in parts:
        sofar += size
        edges.append(round(sofar / total * WIDTH))
    drawn = "".join(sign * (end - start) for (sign, _, _), start, end in zip(parts, edges, edges[1:], strict=False))
    lines = [f"|{drawn.ljust(WIDTH)}|"]
    lines += [f"  {sign}  {name:<40}{_gb(size):>22}" for sign, name, size in parts]
    return lines


def _gb(size: int) -> str:
    return f"{size / 10**9:.1f} GB ({size / 2**30:.1f} GiB)"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
