"""``sparkcluster fit``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.common import at_least, json_argument
from sparkcluster.cli.output import emit_json, note, say

if TYPE_CHECKING:
    from sparkcluster.engines.vllm.memory import Planned
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
    from sparkcluster.cli.progress import Waiting
    from sparkcluster.engines.vllm.fit import spark
    from sparkcluster.engines.vllm.memory import of_playbook
    from sparkcluster.staging.model_headers import from_hub, from_path

    playbook, nodes = _what(args)
    if args.config is not None:
        model = from_path(args.config)
    elif playbook.model.id is not None:
        with Waiting(f"asking the hub for {playbook.model.id}"):
            model = from_hub(playbook.model.id, playbook.model.revision)
    else:
        model = from_path(Path(str(playbook.model.path)).expanduser())
    planned = of_playbook(
        playbook,
        model,
        spark(args.memory_gb),
        nodes=nodes,
        context=args.context,
        wanted=args.concurrency or 1,
    )
    if args.json:
        emit_json(document(planned))
    else:
        show(planned)
    return 0 if planned.fit.fits else 1


def _what(args: argparse.Namespace) -> tuple[Playbook, int]:
    """The playbook, and how many nodes share it."""
    from sparkcluster.engines.vllm.memory import nodes_of
    from sparkcluster.spec.load import load, load_named

    if args.inventory is None:
        found = load_named(args.playbook)
        return found, args.nodes or nodes_of(found)
    spec = load(args.inventory, args.playbook)
    groups = spec.inventory.groups
    size = max((len(group.nodes) for group in groups), default=0) if groups else len(spec.inventory.nodes)
    return spec.playbook, args.nodes or max(1, size)


def document(planned: Planned) -> dict[str, Any]:
    """The answer as JSON; all sizes in bytes, of one node."""
    from sparkcluster.engines.vllm.versions import dotted

    fit, config = planned.fit, planned.config
    return {
        "playbook": planned.playbook,
        "model": config.name,
        "architecture": config.architecture,
        "quantization": config.quantization.kind,
        "fits": fit.fits,
        "problems": list(fit.problems),
        "advice": list(fit.advice),
        "not_counted": list(planned.left_out),
        "nodes": fit.engine.ranks * fit.engine.stages,
        "tensor_parallel": fit.engine.ranks,
        "pipeline_parallel": fit.engine.stages,
        "vllm_version": dotted(fit.engine.version[:2]),
        "vllm_version_is_known": planned.versions.exact is not None,
        "context": fit.engine.context,
        "concurrency_wanted": fit.wanted,
        "gpu_memory_utilization": fit.utilization,
        "gpu_memory_utilization_is_auto": planned.auto,
        "smallest_gpu_memory_utilization": fit.smallest,
        "kv_cache": {
            "tokens": fit.tokens,
            "tokens_most": planned.best.tokens,
            "concurrency": round(fit.concurrency, 2),
            "bytes": max(0, fit.pool_bytes),
            "bytes_per_request": fit.layout.request_bytes,
            "bytes_per_token": round(fit.layout.token_bytes, 1),
            "block_bytes": fit.layout.block_bytes,
            "groups": [
                {"kind": page.kind, "layers": count, "block_tokens": page.block, "page_bytes": page.size_bytes}
                for page, count in fit.layout.groups
            ],
        },
        "memory": {
            "installed_bytes": fit.machine.installed_bytes,
            "visible_bytes": fit.machine.visible_bytes,
            "budget_bytes": fit.budget_bytes,
            "weights_bytes": fit.weights.rank_bytes,
            "weights_counted": fit.weights.measured,
            "checkpoint_bytes": fit.weights.total_bytes,
            "runtime_bytes": fit.runtime_bytes,
            "engine_host_bytes": planned.fit.host_bytes,
            "left_for_system_bytes": fit.left_bytes,
            "system_needs_bytes": fit.machine.system_bytes,
        },
    }


def show(planned: Planned) -> None:
    """The answer for people, within 80 columns and without colour."""
    fit, config = planned.fit, planned.config
    ranks = fit.engine.ranks * fit.engine.stages
    on = "one Spark" if ranks == 1 else f"each of {ranks} Sparks"
    say(f"{planned.playbook}: {config.name}")
    say(f"on {on}, gpu-memory-utilization {fit.utilization:.2f}{' (auto)' if planned.auto else ''}")
    say()
    for line in bar(planned):
        say(line)
    say()
    context = fit.engine.context
    say(f"KV cache     {fit.tokens:,} tokens: {fit.concurrency:.2f} requests of {context:,} tokens at once")
    say(f"one request  {_gb(fit.layout.request_bytes)} of {context:,} tokens")
    needed = f"gpu-memory-utilization {fit.smallest:.2f}" if fit.smallest <= 1 else "more than the node has"
    say(f"needs        {needed} for {_requests(fit.wanted)} at once")
    for line in planned.left_out:
        note(line)
    for problem in fit.problems:
        note(f"does not fit: {problem}")
    for advice in fit.advice:
        note(f"hint: {advice}")


def bar(planned: Planned) -> list[str]:
    """The node's memory as a bar, and what each part of it is."""
    parts = [part for part in planned.parts() if part[2] > 0]
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
