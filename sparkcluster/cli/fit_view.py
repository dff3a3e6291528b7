"""The answer of ``sparkcluster fit`` for people, within 80 columns and without colour."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from sparkcluster.cli.output import data, message

COLUMNS = 80
WIDTH = COLUMNS - 2


def show(forecast: Mapping[str, Any]) -> None:
    """Figures to stdout, what is to be known of them to stderr."""
    data(f"{forecast['playbook']}: {forecast['model']}")
    if forecast["verdict"] == "not recorded":
        data("not recorded: its memory is unknown until its config.json is read")
    else:
        _figures(forecast)
    if forecast.get("measured"):
        for line in measured(forecast["measured"]):
            data(line)
    for line in forecast["not_counted"]:
        message(line)
    for problem in forecast["problems"]:
        message(problem, kind="does not fit")
    doubtful = "not recorded" if forecast["verdict"] == "not recorded" else "too close to say whether it fits"
    for doubt in forecast["doubts"]:
        message(doubt, kind=doubtful)
    for advice in forecast["advice"]:
        message(advice, kind="hint")


def measured(found: Mapping[str, Any]) -> list[str]:
    """What was measured on this cluster, as lines."""
    sizes = (("weights", "load_gib"), ("KV cache", "kv_gib"), ("CUDA graphs", "graphs_gib"))
    parts = [f"{found['kv_tokens']:,.0f} tokens of KV cache"] if "kv_tokens" in found else []
    parts += [f"{what} {found[key]:.2f} GiB" for what, key in sizes if key in found]
    where = "on one Spark" if found["nodes"] == 1 else f"on each of {found['nodes']} Sparks"
    args = [f"{key} {value}" for key, value in found["args"].items()]
    text = f"measured here in release {found['release']}: {', '.join(parts)}; {', '.join([where, *args])}"
    return textwrap.wrap(text, COLUMNS, subsequent_indent=" " * 13, break_on_hyphens=False)


def _figures(forecast: Mapping[str, Any]) -> None:
    nodes, cache = forecast["nodes"], forecast["kv_cache"]
    smallest, safe = forecast["smallest_gpu_memory_utilization"], forecast["safe_gpu_memory_utilization"]
    auto = " (auto)" if forecast["gpu_memory_utilization_is_auto"] else ""
    on = "one Spark" if nodes == 1 else f"each of {nodes} Sparks"
    data(f"on {on}, gpu-memory-utilization {forecast['gpu_memory_utilization']:.2f}{auto}")
    data()
    for line in bar(forecast):
        data(line)
    data()
    context = f"{forecast['context']:,} tokens"
    data(f"KV cache     {cache['tokens']:,} tokens: {cache['concurrency']:.2f} requests of {context} at once")
    if cache["tokens_least"] != cache["tokens_most"]:
        between = f"{cache['tokens_least']:,} and {cache['tokens_most']:,}"
        data(f"             between {between} tokens, by what a step really takes")
    data(f"one request  {_gb(cache['bytes_per_request'])} of {context}")
    needed = f"gpu-memory-utilization {safe:.2f}" if safe <= 1 else "more than the node has"
    data(f"needs        {needed} for {_requests(forecast['concurrency_wanted'])} at once")
    if smallest < safe and smallest <= 1:
        data(f"             {smallest:.2f} by the estimate, without a margin")


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
