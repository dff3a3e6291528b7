"""``sparkcluster fit``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster.cli.common import asking, assigned, at_least, common_flags, emitted, number, option
from sparkcluster.cli.output import data, message, paint
from sparkcluster.report import count, size

if TYPE_CHECKING:
    from sparkcluster.fit.budget import Part
    from sparkcluster.spec import Spec
    from sparkcluster.spec.playbook import Playbook


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``fit``."""
    about = "playbook (name, path or model, also with +OVERLAY); or several, or an inventory (queries its nodes)"
    option(parser, "playbooks PLAYBOOK+", about)
    about = "inventory whose nodes and measurements to use"
    option(parser, "--inventory INV", about, Path)
    option(parser, "--config PATH", "directory of the model, or its config.json (default: from the hub)", Path)
    option(parser, "--context N", "context length in tokens (default: from the playbook)", at_least(1))
    option(parser, "--concurrency N", "concurrent requests of full context (default: 1)", at_least(1), default=1)
    option(parser, "--memory-gb GB", "nominal memory of a node (default: 128)", number(1, 65536), default=128.0)
    option(parser, "--nodes N", "nodes that share the model (default: from the inventory, or the fewest)", at_least(1))
    option(parser, "-v --verbose", "also show the sources, and the KV cache size that the engine will log")
    common_flags(parser, "--set", "--json")


def run(args: argparse.Namespace) -> int:
    """Show how much memory one or several playbooks need; exit 1 if it does not fit, 0 if it may."""
    from sparkcluster import engines
    from sparkcluster.cli.progress import awaiting
    from sparkcluster.errors import NotRecorded, UsageError
    from sparkcluster.fit.headers import from_path
    from sparkcluster.fit.known import known, not_recorded
    from sparkcluster.fit.source import spark
    from sparkcluster.spec.check import group_sizes

    if len(args.playbooks) > 1 or _is_inventory(args.playbooks[0]):
        return _together(args)
    playbook, nodes, spec = _what(args)
    try:
        with awaiting(f"reading the headers of {playbook.model.label}"):
            model = from_path(args.config) if args.config else known(playbook.model, playbook.companions)
    except NotRecorded as error:
        found = not_recorded(playbook, error) | {"nodes": nodes, "recorded": []}
    else:
        options = {"nodes": nodes, "context": args.context, "requests": args.concurrency, "beside": model.beside}
        forecast = engines.engine(playbook.engine).forecast
        found = forecast(playbook, model, spark(args.memory_gb), **options) or {}
        if not found:
            raise UsageError(f"the memory that {playbook.engine} needs is unknown", hint="start it and read its log")
        found["not_counted"] = [*filter(None, [model.note]), *found["not_counted"]]
        found["recorded"] = list(model.recorded)
    if not playbook.serves_on(nodes):
        found["doubts"].append(f"the playbook is for {group_sizes(playbook, nodes)}, so up refuses {nodes}")
    if spec is not None:
        found["measured"] = next(iter(_measured([spec], nodes)), None)
    if not emitted(args, found):
        _show(found, verbose=args.verbose)
    return 1 if found["fits"] is False else 0


def _is_inventory(word: str) -> bool:
    from sparkcluster.spec import kinds
    from sparkcluster.spec.load import read

    return word.endswith((".yaml", ".yml")) and Path(word).is_file() and kinds.is_inventory(read(Path(word)))


def _together(args: argparse.Namespace) -> int:
    """Show the memory of several models on each Spark, and which may run together."""
    from sparkcluster.cli import budget_view
    from sparkcluster.engines import engine
    from sparkcluster.errors import UsageError
    from sparkcluster.fit.budget import add_up
    from sparkcluster.fit.source import spark
    from sparkcluster.inspect.budget import budget, name_of, part
    from sparkcluster.spec.load import load_all

    flags = ("inventory", "config", "context", "nodes")
    given = [f"--{flag}" for flag in flags if getattr(args, flag)] + ["--concurrency"] * (args.concurrency > 1)
    if given:
        raise UsageError(f"{given[0]} is for one playbook", hint="remove it, or name only one playbook")
    machine, estimate = spark(args.memory_gb), False
    if len(args.playbooks) == 1:
        specs = load_all(Path(args.playbooks[0]), set_=assigned(args))
        measured = dict(zip(map(name_of, specs), _measured(specs), strict=False))
        estimate = len(measured) < len(specs)
        found = budget(specs, machine, measured)
    else:
        sparks: dict[str, list[Part]] = {}
        for playbook, nodes in [_playbook(args, word) for word in args.playbooks]:
            taken = part(playbook.name, engine(playbook.engine).beside_others(playbook), nodes, machine)
            for number in range(1, nodes + 1):
                sparks.setdefault(f"spark-{number}", []).append(taken)
        found = add_up(sparks, machine)
    if not emitted(args, found.as_json()):
        budget_view.show(found, estimate=estimate)
    return 1 if found.fits is False else 0


def _playbook(args: argparse.Namespace, word: str) -> tuple[Playbook, int]:
    """The playbook that ``word`` names, and the number of nodes that share it."""
    from sparkcluster.spec.load import named, read_playbook

    path, overlays = named(word)
    found, _ = read_playbook(path, overlays, assigned(args))
    nodes = args.nodes or max(found.nodes.min, found.ranks or found.parts)
    return read_playbook(path, overlays, assigned(args), nodes)[0], nodes


def _what(args: argparse.Namespace) -> tuple[Playbook, int, Spec | None]:
    """The playbook, the number of nodes that share it, and the spec if an inventory is given."""
    from sparkcluster.spec.load import load

    if args.inventory is None:
        return *_playbook(args, args.playbooks[0]), None
    spec = load(args.inventory, args.playbooks[0], set_=assigned(args), nodes=args.nodes)
    return spec.playbook, args.nodes or max(spec.inventory.group_sizes), spec


def _measured(specs: Sequence[Spec], nodes: int = 0) -> list[dict[str, Any] | None]:
    """Measurements of each spec on the inventory's nodes, None without any; only those before a node failed."""
    from sparkcluster.errors import SparkclusterError
    from sparkcluster.inspect.releases import measured

    found: list[dict[str, Any] | None] = []
    try:
        for spec in specs:
            with asking(spec) as (fleet, _):
                found.append(measured(fleet, spec, nodes or max(spec.inventory.group_sizes)))
    except SparkclusterError as error:
        message(f"cannot read measurements from {spec.inventory.cluster}: {error.message}")
        message(error.hint or "", kind="hint")
    return found


def _show(found: Mapping[str, Any], *, verbose: bool) -> None:
    """The verdict first; then hints, the memory of each part, and the sources."""
    verdicts = {True: ("fits", "good"), False: ("does not fit", "bad"), None: ("may not fit", "warn")}
    verdict, style = verdicts[found["fits"]]
    if "memory" not in found:
        verdict = "is not recorded: unknown whether it fits"
    elif found["fits"] and found["doubts"]:
        verdict, style = "would fit", "warn"
    on = "one Spark" if found["nodes"] == 1 else f"{found['nodes']} Sparks"
    data(paint(f"{found['playbook']} {verdict} on {on}", f"bold {style}"))
    for line in (*found["problems"], *found["doubts"]):
        data(line, indent="  ")
    for at, line in enumerate(found["advice"]):
        message(line, kind="or" if at and not found["fits"] else "hint")
    if "memory" in found:
        _figures(found, verbose=verbose)
    if measured := found.get("measured"):
        sizes = {"weights": "load_gib", "KV cache": "kv_gib", "CUDA graphs": "graphs_gib", "peak at start": "peak_gib"}
        parts = [f"{what} {size(measured[key] * 2**30)}" for what, key in sizes.items() if key in measured]
        parts += [f"{measured['kv_tokens']:,.0f} tokens of KV cache"] if "kv_tokens" in measured else []
        data(f"measured here in release {measured['release']}: {', '.join(parts)}")
    for line in found["not_counted"]:
        message(line)
    for line in found["recorded"] if verbose else ():
        message(line, kind="source")


def _figures(found: Mapping[str, Any], *, verbose: bool) -> None:
    memory, cache, safe = found["memory"], found["kv_cache"], found["safe_gpu_memory_utilization"]
    if found["fits"]:
        free = size(memory["left_for_system_bytes"] - memory["system_needs_bytes"])
        requests = count(int(cache["concurrency"]), "concurrent request")
        data(f"  {requests} of {found['context']:,} tokens, {free} stay free")
    data()
    if found["nodes"] > 1:
        data("on each Spark:")
    _parts(memory, cache["bytes"])
    data()
    # The argument may be in tokens, or a share of the free memory.
    now = f"sets a KV cache of {size(cache['bytes'])}" if safe is None else f"{found['gpu_memory_utilization']:.2f}"
    least = size(cache["bytes_wanted"]) if safe is None else f"{safe:.2f}"
    enough = f"; {least} is enough for {count(found['concurrency_wanted'], 'concurrent request')}"
    data(f"{cache['set_by']} {now}{enough if (safe or 0) <= 1 else ''}")
    if verbose:
        data(f"the engine will log a KV cache of {cache['tokens']:,} tokens")


def _parts(memory: Mapping[str, Any], cache: int) -> None:
    """What takes the node's memory; the parts add up to the installed memory."""
    left = max(0, memory["left_for_system_bytes"])
    system = min(left, memory["system_needs_bytes"])
    parts = [
        ("weights" if memory["weights_counted"] else "weights, estimated", memory["weights_bytes"]),
        ("activations, driver, graphs (estimate)", memory["runtime_bytes"]),
        ("KV cache", cache),
        ("the engine's processes (estimate)", memory["engine_host_bytes"]),
        ("system", system),
        ("free", left - system),
        ("reserved by firmware", memory["installed_bytes"] - memory["visible_bytes"]),
    ][: None if cache else 2]
    for name, amount in parts:
        if amount > 0:
            data(f"  {name:<40}{size(amount):>9}")
