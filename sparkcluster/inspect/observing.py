"""What runs on every node, with what moves read twice, for ``doctor``; and what its groups answer."""

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
from sparkcluster.plan.build import SECRETS_FILE
from sparkcluster.plan.release_record import RecordedGroup, labelled_heads
from sparkcluster.spec import Spec

INTERVAL_S = 3.0
# An engine logs its configuration within its first thousand lines (130 with tensor parallel 2 over Ray).
HEAD_LINES, TAIL_LINES = 1500, 600
# SSH round trip and Python's start on the node.
ROUND_TRIP_S = 1.5

Observations = Mapping[str, Observation | Unread]
"""By node what runs there, or why that is unknown."""


def begin_observing(fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], limit_s: float) -> Calls[Observation]:
    """Begin to read what runs on every node of ``facts``; what moves is read twice within ``limit_s``."""
    serving = engines.engine(spec.playbook.engine)

    def observe(host: Host) -> Observation:
        request = {
            "cluster": spec.inventory.cluster,
            "state_dir": facts[host.name].state_dir,
            "runtime": spec.inventory.runtime.kind,
            "interval_s": min(INTERVAL_S, limit_s / 4),
            "limit_s": limit_s,
            "head_lines": HEAD_LINES,
            "tail_lines": TAIL_LINES,
            "secrets_file": SECRETS_FILE,
            "api_key": serving.api_key,
            "api_flags": dict(serving.api_flags),
            "counters": dict(serving.counters),
        }
        document = call(host, "observe", request, answer=dict[str, Any], timeout_s=limit_s + ROUND_TRIP_S)
        return readings(Observation, host.name, "observe", document)

    return fleet.start(observe, list(facts))


def observed(calls: Calls[Observation], limit_s: float) -> dict[str, Observation | Unread]:
    """What runs on every node by the calls of ``begin_observing`` within ``limit_s``, or why that is unknown."""
    return {
        name: Unread(unread=outcome.message) if isinstance(outcome, SparkclusterError) else outcome
        for name, outcome in calls.wait(limit_s).items()
    }


def running_heads(spec: Spec, facts: Mapping[str, Facts], seen: Observations) -> Iterator[tuple[str, RankSeen]]:
    """The head of every group that runs, and its node: no other node's word for it counts."""
    heads = labelled_heads(spec.inventory, facts)
    for node, rank in Running(seen).ranks():
        if rank.running and rank.launcher.get("role") == "head" and heads.get(rank.group, node) == node:
            yield node, rank


def begin_asking(fleet: Fleet, view: View, names: Iterable[str], limit_s: float, tokens: int) -> Calls[Reply]:
    """Begin to ask the groups of ``names`` whose head answered for one streamed completion of at most ``tokens``."""

    def once(group: RecordedGroup) -> Reply:
        endpoint, counters = view.endpoints[group.name], engines.engine(group.engine).counters
        host, most = fleet[endpoint.head], min(tokens, group.verify.max_tokens)
        return ask(host, endpoint, group.verify, limit_s=limit_s, max_tokens=most, counters=counters)

    return Calls(once, {name: view.groups[name] for name in names if view.endpoints[name].head in view.facts})


def replies(calls: Calls[Reply], view: View, limit_s: float) -> dict[str, Reply]:
    """What came within ``limit_s``; the reply of a group without an answer says so."""
    return {
        name: Reply(name, view.endpoints[name].head, problem="timeout", message=outcome.message, limit_s=limit_s)
        if isinstance(outcome, SparkclusterError)
        else outcome
        for name, outcome in calls.wait(limit_s).items()
    }
