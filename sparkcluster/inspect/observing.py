"""What runs on every node, with what moves read twice: for ``doctor`` whole, for ``status`` without logs and Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import Facts
from sparkcluster.facts.parse import readings
from sparkcluster.facts.running import Observation
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.hosts.program import call
from sparkcluster.plan.build import SECRETS_FILE
from sparkcluster.spec import Spec

INTERVAL_S = 3.0
# An engine logs its configuration within its first thousand lines (130 with tensor parallel 2 over Ray).
HEAD_LINES, TAIL_LINES = 1500, 600
# SSH round trip and Python's start on the node.
ROUND_TRIP_S = 1.5


def observe_nodes(
    fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], limit_s: float
) -> dict[str, Observation | Unread]:
    """What runs on every node that answered the probe, or why that is unknown."""
    if not facts:
        return {}
    calls = begin_observing(fleet, spec, facts, limit_s, interval_s=min(INTERVAL_S, limit_s / 4))
    return observed(calls, limit_s + ROUND_TRIP_S)


def begin_observing(
    fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], limit_s: float, *, interval_s: float, brief: bool = False
) -> Calls[Observation]:
    """Begin to read what runs on every node of ``facts``, twice ``interval_s`` apart.

    ``brief`` leaves out logs, what is asked within containers, and Ray: only what can be read at once.
    """
    serving = engines.engine(spec.playbook.engine)

    def observe(host: Host) -> Observation:
        request = {
            "cluster": spec.inventory.cluster,
            "state_dir": facts[host.name].state_dir,
            "runtime": spec.inventory.runtime.kind,
            "interval_s": interval_s,
            "limit_s": limit_s,
            "head_lines": HEAD_LINES,
            "tail_lines": TAIL_LINES,
            "secrets_file": SECRETS_FILE,
            "api_flags": dict(serving.api_flags),
            "counters": dict(serving.counters),
            "brief": brief,
        }
        document = call(host, "observe", request, answer=dict[str, Any], timeout_s=limit_s + ROUND_TRIP_S)
        return readings(Observation, host.name, "observe", document)

    return fleet.start(observe, list(facts))


def observed(calls: Calls[Observation], limit_s: float) -> dict[str, Observation | Unread]:
    """What the calls of ``begin_observing`` returned within ``limit_s``."""
    return {
        name: Unread(unread=outcome.message) if isinstance(outcome, SparkclusterError) else outcome
        for name, outcome in calls.wait(limit_s).items()
    }
