"""The status of a cluster as text, for ``status`` and its live view."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sparkcluster import hints
from sparkcluster.cli.output import data, paint, table
from sparkcluster.report import duration, share

_STYLES = {"serving": "good", "on demand": "good", "degraded": "bad", "down": "bold"}  # all others: yellow
_SHARES = {"kv_cache", "hit_rate", "acceptance"}
# Shown even if 0; the others are hidden if 0. Percentiles are upper bounds of a histogram's buckets.
_ALWAYS = {"running", "waiting", "tokens_per_s", "kv_cache"}
_LOAD = {
    "running": "{:.0f} running",
    "waiting": "{:.0f} waiting",
    "tokens_per_s": "{:.1f} tokens/s",
    "kv_cache": "KV cache {:.0f} %",
    "prompt_tokens_per_s": "prefill {:.0f} tokens/s",
    "ttft_p95_s": "TTFT p95 ≤ {:g} s",
    "itl_p95_s": "ITL p95 ≤ {:g} s",
    "hit_rate": "prefix hits {:.0f} %",
    "acceptance": "drafts accepted {:.0f} %",
    "preemptions": "{:.0f} preemptions",
}


def show(document: dict[str, Any], *, verbose: bool = False) -> None:
    """The status as text, on stdout."""
    data(*headline(document))
    for line in _under_way(document):
        data(line, indent="  ")
    indent = "    " if len(document["groups"]) > 1 else "  "
    for group in document["groups"]:
        data(*group_line(document, group))
        if group["load"]:
            data(load(group["load"]), indent=indent)
        if group["why"] and group["why"] not in (document["why"] or ""):
            data(group["why"], indent=indent)
        if group["warning"]:
            data(group["warning"], kind="warning", indent=indent)
    _show_nodes(document, verbose=verbose)


def _show_nodes(document: dict[str, Any], *, verbose: bool) -> None:
    for key in ("image", "digest") if verbose else ("image",):
        if document[key]:
            data(f"  {key} {document[key]}")
    if document["enabled"] or document["guards"]:
        runs = "enabled, but not every guard runs" if document["guards"] else "enabled: comes back after a reboot"
        data(f"  {runs}" if document["enabled"] else "  not enabled on every node")
        for name, trouble in document["guards"].items():
            data(f"guard on {name}: {hints.command_line(trouble)}", indent="  ")
    rows = []
    for node in document["nodes"]:
        state, found = node["state"], node["memory"]
        used = share(found["total_bytes"] - found["available_bytes"], found["total_bytes"]) if found else "-"
        state = state if state in {"running", "empty"} else paint(state, "bad")
        more = (node["ray"] or "-", node["container"] or "-") if verbose else ()
        rows.append((node["name"], node["role"] or "-", state, used, *more))
    data()
    table(("NODE", "ROLE", "STATE", "MEMORY", *(("RAY", "CONTAINER") if verbose else ())), rows)
    for node in document["nodes"]:
        if node["why"]:
            data(hints.with_node(node["name"], node["why"]), indent="  ")


def headline(document: dict[str, Any]) -> list[str]:
    """The state of the cluster in one line, with the reason if it does not serve."""
    word = document["state"]
    why = f": {document['why']}" if document["why"] else ""
    state = dot(word)
    uptimes = [group["uptime_s"] for group in document["groups"] if group["uptime_s"] is not None]
    lasted = f" for {duration(min(uptimes))}" if uptimes and word == "serving" else ""
    release = f"   release {document['release']}{lasted}" if document["release"] else ""
    return [paint(document["cluster"], "bold"), "  ", state, why, release]


def dot(word: str) -> str:
    """A state in its colour."""
    return paint(f"● {word}", f"bold {_STYLES.get(word, 'warn')}")


def _under_way(document: dict[str, Any]) -> Iterator[str]:
    """The operation in progress, or an upgrade or rollback that was not finished."""
    from sparkcluster.facts.model import LeaseFact

    # an up has both
    leases = {(each["operator"], each["operation"]): each for key in ("staging", "lease") if (each := document[key])}
    for each in leases.values():
        lease = LeaseFact.model_validate({**each, "held": each.get("attached", True), "at_work": True})
        yield lease.describe(document["cluster"], time.time())
    left = document["interrupted"]
    if left and not document["lease"]:
        yield f"{left['operator']} left an upgrade or rollback from release {left['source']} unfinished"


def group_line(document: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """A group in one line: its name and state if there are several, then model and endpoint."""
    state = paint(group["state"], _STYLES.get(group["state"], "warn"))
    size = max(len(each["name"]) for each in document["groups"])
    several = [f"{group['name']:<{size}}  ", state, "  "] if len(document["groups"]) > 1 else []
    where = [" at ", paint(group["endpoint"], "bold")] if group["endpoint"] else []
    return ["  ", *several, document["model"] or f"release {group['release']}", *where]


def load(found: dict[str, Any]) -> str:
    """The load of an engine in one line, without the figures that it does not count."""
    known = {key: value for key, value in found.items() if value or (value is not None and key in _ALWAYS)}
    figures = {key: value * (100 if key in _SHARES else 1) for key, value in known.items()}
    return ", ".join(text.format(figures[key]) for key, text in _LOAD.items() if key in figures)
