"""The lines of ``status --watch``: pure text within a width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkcluster.cli.status import duration, headline
from sparkcluster.inspect.live import History, NodeNow
from sparkcluster.printable import clean

_BLOCKS = "▁▂▃▄▅▆▇█"
_FULL, _EMPTY = "█", "░"
_PLAIN = str.maketrans({**dict(zip(_BLOCKS, "..::==##", strict=True)), _EMPTY: "-", "…": "."})
_GB = 1e9
_BAR = 10


def lines(document: dict[str, Any], history: History, *, width: int, encoding: str | None = "utf-8") -> list[str]:
    """What is shown of a cluster: ``document`` of ``status``, and what moved since; each at most ``width`` wide."""
    shown = [headline(document)]
    if document["model"]:
        shown.append(f"  {document['model']}")
    for group in document["groups"]:
        up = f", up {duration(group['uptime_s'])}" if group["uptime_s"] is not None else ""
        why = f" ({group['why']})" if group["why"] else ""
        shown.append(f"  {group['name']}: {group['state']}{up}{why}")
        shown += _load(history, group["name"])
    names = [node["name"] for node in document["nodes"]]
    space = max(6, *(len(name) for name in names)) if names else 6
    shown += ["", f"{'NODE':<{space}}  {'MEMORY':<23}  {'GPU':<11}  RDMA SENT"]
    shown += [f"{name:<{space}}  {_node(history, name)}" for name in names]
    shown += ["", f"next: {document['next']}"]
    return [_fitted(line, width, encoding) for line in shown]


def _load(history: History, name: str) -> list[str]:
    load = history.loads.get(name)
    if load is None:
        return []
    found = []
    if load["running"] is not None:
        waiting = f", {load['waiting']:.0f} waiting" if load["waiting"] is not None else ""
        found.append(f"    requests  {load['running']:.0f} running{waiting}")
    if load["kv_cache"] is not None:
        found.append(f"    KV cache  {bar(load['kv_cache'])} {load['kv_cache'] * 100:3.0f} %")
    if load["tokens_per_s"] is not None:
        found.append(f"    tokens/s  {load['tokens_per_s']:7.1f}  {sparkline(history.speeds.get(name, ()))}")
    return found


def _node(history: History, name: str) -> str:
    node = history.nodes.get(name)
    if node is None:
        return "-"
    if node.why is not None:
        return node.why
    return f"{_memory(node):<23}  {_gpu(node):<11}  {_link(history, name, node)}".rstrip()


def _memory(node: NodeNow) -> str:
    if node.used_bytes is None or not node.total_bytes:
        return "-"
    return f"{bar(node.used_bytes / node.total_bytes)} {node.used_bytes / _GB:.0f}/{node.total_bytes / _GB:.0f} GB"


def _gpu(node: NodeNow) -> str:
    parts = [f"{node.gpu_percent:3.0f} %"] if node.gpu_percent is not None else []
    parts += [f"{node.power_w:.0f} W"] if node.power_w is not None else []
    return " ".join(parts) or "-"


def _link(history: History, name: str, node: NodeNow) -> str:
    if node.rdma_gbps is None:
        return "-"
    sockets = f"  sockets {node.socket_gbps:.1f}" if node.socket_gbps is not None and node.socket_gbps >= 0.05 else ""
    return f"{node.rdma_gbps:6.1f} Gb/s  {sparkline(list(history.links.get(name, ()))[-12:])}{sockets}"


def bar(share: float) -> str:
    """A bar of ten cells for a share from 0 to 1."""
    full = round(min(1.0, max(0.0, share)) * _BAR)
    return _FULL * full + _EMPTY * (_BAR - full)


def sparkline(values: Sequence[float]) -> str:
    """A cell for each value, as high as it is compared with the greatest."""
    top = max(values, default=0.0)
    return "".join(_BLOCKS[round(value / top * (len(_BLOCKS) - 1)) if top > 0 else 0] for value in values)


def _fitted(line: str, width: int, encoding: str | None) -> str:
    text = clean(line)
    text = text if len(text) <= width else f"{text[: width - 1]}…"
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN)
    return text
