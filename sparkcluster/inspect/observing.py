"""What runs on every node, with what moves read twice, and what its groups answer; for ``doctor`` and ``status``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import Endpoint, of_launcher
from sparkcluster.errors import CommandTimeout, SparkclusterError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.model import Facts, Memory
from sparkcluster.facts.parse import readings
from sparkcluster.facts.running import Observation, RankSeen, Reply, Running, Traffic
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.hosts.program import call
from sparkcluster.plan.build import SECRETS_FILE
from sparkcluster.plan.release_record import labelled_heads
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Verify

INTERVAL_S = 3.0
# An engine logs its configuration within its first thousand lines (130 with tensor parallel 2 over Ray).
HEAD_LINES, TAIL_LINES = 1500, 600
# SSH round trip and Python's start on the node.
ROUND_TRIP_S = 1.5

Observations = Mapping[str, Observation | Unread]
"""By node what runs there, or why that is unknown."""


def observe_nodes(
    fleet: Fleet, spec: Spec, facts: Mapping[str, Facts], limit_s: float
) -> dict[str, Observation | Unread]:
    """What runs on every node that answered the probe, or why that is unknown."""
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


def running_heads(spec: Spec, facts: Mapping[str, Facts], seen: Observations) -> Iterator[tuple[str, RankSeen]]:
    """The head of every group that runs, and its node: no other node's word for it counts."""
    heads = labelled_heads(spec.inventory, facts)
    for node, rank in Running(seen).ranks():
        if rank.running and rank.launcher.get("role") == "head" and heads.get(rank.group, node) == node:
            yield node, rank


def launched(spec: Spec, facts: Mapping[str, Facts], seen: Observations) -> dict[str, Endpoint]:
    """Endpoints of groups that run without a record, from the launcher documents of their heads."""
    ranks = f"{spec.inventory.state_dir}/clusters/{spec.inventory.cluster}/ranks"
    return {
        rank.group: of_launcher(
            rank.launcher,
            spec.playbook.engine,
            group=rank.group,
            head=node,
            model=spec.playbook.model_name,
            key_file=f"{ranks}/{rank.name}/{SECRETS_FILE}" if spec.inventory.api.key is not None else None,
        )
        for node, rank in running_heads(spec, facts, seen)
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a group is asked: its endpoint, how its answer is verified, and limits of time and tokens."""

    endpoint: Endpoint
    verify: Verify
    engine: str
    limit_s: float
    max_tokens: int


def begin_asking(fleet: Fleet, questions: Mapping[str, Question]) -> Calls[Reply]:
    """Begin to ask every group for one streamed completion, by name."""

    def once(question: Question) -> Reply:
        counters = engines.engine(question.engine).counters
        host: Host = fleet.hosts[question.endpoint.head]
        limits: dict[str, Any] = {"limit_s": question.limit_s, "max_tokens": question.max_tokens}
        return ask(host, question.endpoint, question.verify, counters=counters, **limits)

    return Calls(once, questions)


def replies(calls: Calls[Reply], questions: Mapping[str, Question], limit_s: float) -> dict[str, Reply]:
    """What came within ``limit_s``; the reply of a group without an answer says so."""
    found = {}
    for name, outcome in calls.wait(limit_s).items():
        if isinstance(outcome, SparkclusterError):
            asked, late = questions[name], isinstance(outcome, CommandTimeout)
            message = f"no answer within {asked.limit_s:.0f} s" if late else outcome.message
            problem = "timeout" if late else "malformed"
            found[name] = Reply(name, asked.endpoint.head, problem=problem, message=message, limit_s=asked.limit_s)
        else:
            found[name] = outcome
    return found


def load_of(nodes: Iterable[str], seen: Observations) -> dict[str, Any] | None:
    """What the engine on ``nodes`` does now, by its own counters; None where they could not be read.

    Requests and KV cache as last read, and tokens/s between the first reading and the last.
    """
    observations = [each for node in nodes if isinstance(each := seen.get(node), Observation)]
    counters = next((each.counters for each in observations if isinstance(each.counters, tuple) and each.counters), ())
    if not counters:
        return None
    first, last = counters[0], counters[-1]
    speed = None
    if first.generated is not None and last.generated is not None and last.at_s > first.at_s:
        speed = max(0.0, (last.generated - first.generated) / (last.at_s - first.at_s))
    return {"running": last.running, "waiting": last.waiting, "kv_cache": last.kv_cache, "tokens_per_s": speed}


@dataclasses.dataclass(frozen=True, slots=True)
class NodeNow:
    """One node at one moment; None for what it does not report.

    Attributes:
        memory: which CPU and GPU share.
        gpu_percent: utilization of its busiest GPU.
        power_w: of its GPUs together.
        rdma_gbps: that its HCAs sent since the reading before, in Gb/s (10⁹ bits).
        socket_gbps: likewise by sockets of the same ports: with NCCL over RoCE next to nothing.
    """

    memory: Memory | None
    gpu_percent: float | None
    power_w: float | None
    rdma_gbps: float | None
    socket_gbps: float | None


def node_now(observation: Observation) -> NodeNow:
    """What a node reported in one reading. Pure."""
    samples, traffic = read(observation.gpus) or (), read(observation.traffic) or ()
    gpus = [sample for sample in samples if sample.at_s == samples[-1].at_s]
    power = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    return NodeNow(
        read(observation.memory),
        max((gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None), default=None),
        sum(power) if power else None,
        _gbps(traffic, "rdma_bytes"),
        _gbps(traffic, "socket_bytes"),
    )


def _gbps(traffic: tuple[Traffic, ...], key: str) -> float | None:
    """Gb/s between the first reading and the last; a counter that went back was reset."""
    if not traffic or traffic[-1].at_s <= traffic[0].at_s:
        return None
    first, last = getattr(traffic[0], key), getattr(traffic[-1], key)
    if not last:
        return None
    sent = sum(max(0, count - first[name]) for name, count in last.items() if name in first)
    return float(sent * 8 / 1e9 / (traffic[-1].at_s - traffic[0].at_s))
