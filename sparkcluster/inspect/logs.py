"""Logs of running ranks, from all nodes in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkcluster.errors import NotServing, UsageError
from sparkcluster.hosts.again import LIMIT_S
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.launch.watching import Gone, Lines, LoginFailed, Tick, Watching, watch_request
from sparkcluster.plan.records import cluster_ranks
from sparkcluster.probing.collect import collect_facts
from sparkcluster.spec import Spec

# Signs of life after which a node has sent the lines that it already had.
BACKLOG_TICKS = 2
# Limit for that, in seconds: nodes send 20,000 lines in one.
BACKLOG_S, BACKLOG_S_PER_LINE = 30, 1e-3


def follow(
    fleet: Fleet,
    spec: Spec,
    show: Callable[[str, tuple[str, ...]], None],
    *,
    node: str | None,
    tail: int,
    go_on: bool,
) -> int:
    """Pass the log lines of every rank (on ``node`` alone, if given) to ``show`` with its node; returns the exit code.

    Each begins with its last ``tail`` lines. With ``go_on`` they are followed until interrupted.

    Raises:
        NotServing: no rank runs there.
        HostError: no rank runs on the nodes that answered, and some did not.
    """
    names = [entry.label for entry in spec.inventory.nodes]
    if node is not None and node not in names:
        raise UsageError(f"{node} is not in the inventory", hint=f"its nodes: {', '.join(names)}")
    collected = collect_facts(fleet, spec, [node] if node else None)
    ranks = {
        name: on_node
        for name, on_node in cluster_ranks(spec.inventory.cluster, collected.facts).ours.items()
        if on_node
    }
    if not ranks:
        for error in collected.errors.values():  # ranks may run on a node that did not answer
            raise error
        raise NotServing(
            f"no rank of {spec.inventory.cluster} on {node or 'any node'}",
            node=node,
            step="logs",
            hint=f"sparkcluster up {spec.inventory_path}",
        )
    for name, error in collected.errors.items():
        show(name, (f"[sparkcluster] {error.message.removeprefix(f'{name}: ')}",))
    requests = {
        name: watch_request(on_node, tail=tail, interval_s=2 if go_on else 1) for name, on_node in ranks.items()
    }
    waiting = dict.fromkeys(requests, BACKLOG_TICKS)
    limit = time.monotonic() + BACKLOG_S + tail * BACKLOG_S_PER_LINE
    with Watching(fleet, requests, limit_s=LIMIT_S if go_on else 0) as watching:
        while waiting and (go_on or time.monotonic() < limit):
            event = watching.next(0.5)
            if isinstance(event, Lines):
                show(event.node, event.lines)
            elif isinstance(event, Gone | LoginFailed):
                tried = isinstance(event, LoginFailed)
                show(event.node, (f"[sparkcluster] {event.error.message}{': trying again' if tried else ''}",))
                waiting[event.node] = waiting.get(event.node, 1) if tried else 0
            elif isinstance(event, Tick) and not (go_on and _runs(event)):
                waiting[event.node] = waiting.get(event.node, 1) - 1
            waiting = {name: ticks for name, ticks in waiting.items() if ticks}
    for name in waiting:
        show(name, ("[sparkcluster] this log did not end; add -f to follow it",))
    return 1 if collected.errors or waiting else 0


def _runs(tick: Tick) -> bool:
    return any(state.state == "running" for state in tick.states.values())
