"""The activity on every node for ``doctor``, with counters read twice; and the answers of the groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import Facts
from sparkcluster.facts.parse import readings
from sparkcluster.facts.running import Observation, RankSeen, Reply, Running
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.hosts.program import call
from sparkcluster.inspect.cluster import View
from sparkcluster.plan.release_record import RecordedGroup, labelled_heads
from sparkcluster.spec import Spec

INTERVAL_S = 3.0
# An engine logs its configuration within its first thousand lines (130 with tensor parallel 2 over Ray).
HEAD_LINES, TAIL_LINES = 1500, 600
# An SSH round trip, and the start of Python on the node.
ROUND_TRIP_S = 1.5

Observations = Mapping[str, Observation | Unread]
"""The activity on each node, or why it is unknown."""


def begin_observing(
    fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], limit_s: float, engine: str | None = None
) -> Calls[Observation]:
    """Start to observe every node of ``facts``; counters are read twice within ``limit_s``.

    ``engine`` is the engine that serves; by default that of the inventory.
    """
    serving = engines.engine(engine or spec.playbook.engine)

    def observe(host: Host) -> Observation:
        request = {
            "cluster": spec.inventory.cluster,
            "state_dir": facts[host.name].state_dir,
            "runtime": spec.inventory.runtime.kind,
            "interval_s": min(INTERVAL_S, limit_s / 4),
            "limit_s": limit_s,
            "head_lines": HEAD_LINES,
            "tail_lines": TAIL_LINES,
            "api_key": serving.api_key,
            "api_flags": dict(serving.api_flags),
            "counters": dict(serving.counters),
        }
        document = call(host, "observe", request, answer=dict[str, Any], timeout_s=limit_s + ROUND_TRIP_S)
        return readings(Observation, host.name, "observe", document)

    return fleet.start(observe, list(facts))


def observed(calls: Calls[Observation], limit_s: float) -> dict[str, Observation | Unread]:
    """The results of ``begin_observing`` within ``limit_s``, or why they are unknown."""
    return {
        name: Unread(unread=outcome.message) if isinstance(outcome, SparkclusterError) else outcome
        for name, outcome in calls.wait(limit_s).items()
    }


def running_heads(spec: Spec, facts: Mapping[str, Facts], seen: Observations) -> Iterator[tuple[str, RankSeen]]:
    """The head of every running group, with its node; claims of other nodes are ignored."""
    heads = labelled_heads(spec.inventory, facts)
    for node, rank in Running(seen).ranks():
        if rank.running and rank.launcher.get("role") == "head" and heads.get(rank.group, node) == node:
            yield node, rank


def begin_asking(fleet: Fleet, view: View, names: Iterable[str], limit_s: float, tokens: int) -> Calls[Reply]:
    """Start to ask each group in ``names`` whose head answered for one streamed completion of ``tokens`` at most."""

    def once(group: RecordedGroup) -> Reply:
        endpoint, counters = view.endpoints[group.name], engines.engine(group.engine).counters
        host, most = fleet[endpoint.head], min(tokens, group.verify.max_tokens)
        return ask(host, endpoint, group.verify, limit_s=limit_s, max_tokens=most, counters=counters)

    return Calls(once, {name: view.groups[name] for name in names if view.endpoints[name].head in view.facts})


def replies(calls: Calls[Reply], view: View, limit_s: float) -> dict[str, Reply]:
    """Replies within ``limit_s``; a group that did not answer gets a reply that says so."""
    return {
        name: Reply(name, view.endpoints[name].head, problem="timeout", message=outcome.message, limit_s=limit_s)
        if isinstance(outcome, SparkclusterError)
        else outcome
        for name, outcome in calls.wait(limit_s).items()
    }
