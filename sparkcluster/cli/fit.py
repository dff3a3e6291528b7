"""``sparkcluster fit``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.common import assigned, at_least, common_flags, set_flag
from sparkcluster.cli.output import emit_json, note, say

if TYPE_CHECKING:
    from sparkcluster.spec.playbook import Playbook

WIDTH = 78
LEAST_GB, MOST_GB = 1.0, 65536.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``fit``."""
    parser.add_argument("playbook", metavar="PLAYBOOK", help="name or path of a playbook, optionally with +OVERLAY")
    parser.add_argument("--inventory", metavar="INV", type=Path, help="inventory to take the number of nodes from")
    parser.add_argument(
        "--config", metavar="PATH", type=Path, help="directory of the model, or its config.json (default: from the hub)"
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
    parser.add_argument("--nodes", metavar="N", type=at_least(1), help="nodes that share the model (default: 1)")
    set_flag(parser)
    common_flags(parser, "--json")


def _memory(text: str) -> float:
    value = float(text)
    if not LEAST_GB <= value <= MOST_GB:
        raise argparse.ArgumentTypeError(f"must be from {LEAST_GB:.0f} to {MOST_GB:.0f}, is {text[:20]}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show how much memory a playbook needs; exit 1 where it does not fit, 0 where it does or is too close to say."""
    from sparkcluster import engines
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.errors import SparkclusterError, UsageError
    from sparkcluster.models.source import Source, spark
    from sparkcluster.staging.model_headers import from_hub, from_path

    playbook, nodes = _what(args)
    beside: dict[str, Source] = {}
    if args.config is not None:
        model = from_path(args.config)
    elif playbook.model.id is not None:
        with Waiting(f"reading the headers of {playbook.model.id}"):
            model = from_hub(playbook.model.id, playbook.model.revision)
            for each in playbook.companions:
                with contextlib.suppress(SparkclusterError):  # the answer says what is not counted
                    beside[each.label] = from_hub(each.label, each.revision, whole=False)
    else:
        model = from_path(Path(str(playbook.model.path)).expanduser())
    forecast = engines.engine(playbook.engine).forecast(
        playbook,
        model,
        spark(args.memory_gb),
        nodes=nodes,
        context=args.context,
        requests=args.concurrency or 1,
        beside=beside,
    )
    if forecast is None:
        raise UsageError(f"the memory that {playbook.engine} needs is unknown", hint="start it, and read its log")
    if args.json:
        emit_json(forecast)
    else:
        show(forecast)
    return 1 if forecast["fits"] is False else 0


def _what(args: argparse.Namespace) -> tuple[Playbook, int]:
    """The playbook, and how many nodes share it."""
    from sparkcluster.spec.load import load, load_named

    if args.inventory is None:
        found = load_named(args.playbook, assigned(args))
        tensor = 1 if found.tensor_parallel == "auto" else found.tensor_parallel
        nodes = args.nodes or max(found.nodes.min, tensor * found.pipeline_parallel)
        return load_named(args.playbook, assigned(args), nodes), nodes
    spec = load(args.inventory, args.playbook, set_=assigned(args), nodes=args.nodes)
    groups = spec.inventory.groups
    size = max((len(group.nodes) for group in groups), default=0) if groups else len(spec.inventory.nodes)
    return spec.playbook, args.nodes or max(1, size)


def show(forecast: Mapping[str, Any]) -> None:
    """The answer for people, within 80 columns and without colour."""
    nodes, cache, smallest = forecast["nodes"], forecast["kv_cache"], forecast["smallest_gpu_memory_utilization"]
    auto = " (auto)" if forecast["gpu_memory_utilization_is_auto"] else ""
    say(f"{forecast['playbook']}: {forecast['model']}")
    on = "one Spark" if nodes == 1 else f"each of {nodes} Sparks"
    say(f"on {on}, gpu-memory-utilization {forecast['gpu_memory_utilization']:.2f}{auto}")
    say()
    for line in bar(forecast):
        say(line)
    say()
    context = f"{forecast['context']:,} tokens"
    say(f"KV cache     {cache['tokens']:,} tokens: {cache['concurrency']:.2f} requests of {context} at once")
    if cache["tokens_least"] != cache["tokens_most"]:
        between = f"{cache['tokens_least']:,} and {cache['tokens_most']:,}"
        say(f"             between {between} tokens, by what a step really takes")
    say(f"one request  {_gb(cache['bytes_per_request'])} of {context}")
    needed = f"gpu-memory-utilization {smallest:.2f}" if smallest <= 1 else "more than the node has"
    say(f"needs        {needed} for {_requests(forecast['concurrency_wanted'])} at once")
    for line in forecast["not_counted"]:
        note(line)
    for problem in forecast["problems"]:
        note(f"does not fit: {problem}")
    for doubt in forecast["doubts"]:
        note(f"too close to say whether it fits: {doubt}")
    for advice in forecast["advice"]:
        note(f"hint: {advice}")


def bar(forecast: Mapping[str, Any]) -> list[str]:
    """The node's memory as a bar, and what each part of it is; together they are what is installed."""
    memory, cache = forecast["memory"], forecast["kv_cache"]["bytes"]
    left = max(0, memory["left_for_system_bytes"])
    system = min(left, memory["system_needs_bytes"])
    parts = [
        ("W", "weights" if memory["weights_counted"] else "weights, estimated", memory["weights_bytes"]),
        ("r", "a step, driver, CUDA graphs (estimate)", memory["runtime_bytes"]),
    ]
    if cache:
        parts += [
            ("K", "KV cache", cache),
            ("h", "the engine's processes (estimate)", memory["engine_host_bytes"]),
            ("s", "system", system),
            (".", "free", left - system),
            ("x", "reserved by firmware", memory["installed_bytes"] - memory["visible_bytes"]),
        ]
    parts = [part for part in parts if part[2] > 0]
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
