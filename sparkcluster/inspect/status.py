"""What runs where, and whether it serves: ``status``, and once in a while what ``status --watch`` shows."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.dead import busy, dead
from sparkcluster.endpoint.find import RESTART, Endpoint, open_without_key, recorded_endpoints
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.collect import Collected, collect_facts
from sparkcluster.facts.model import Facts, LeaseFact, ReleaseFact
from sparkcluster.facts.release_record import Record
from sparkcluster.facts.running import Counters, Observation, Reply
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.inspect import state
from sparkcluster.inspect.observing import begin_observing, observed
from sparkcluster.node.shared import LABEL_RANK
from sparkcluster.plan.release_record import (
    ClusterRanks,
    RecordedGroup,
    cluster_ranks,
    current_lease,
    current_staging,
    recorded_groups,
    recorded_release,
    release_of,
    runs_recorded,
    unreadable,
)
from sparkcluster.plan.switch import pending
from sparkcluster.runtime import secrets
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import OPEN_API

# A busy engine gives one token within seconds, since it serves short requests between long ones.
STATUS_LIMIT_S = 30.0
# An idle engine gives one in less, and with the round trips before it the user waits less than 2 s.
QUICK_S = 1.0
# Between two readings of what moves.
INTERVAL_S = 0.5

Document = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A cluster as its nodes describe it, before any group was asked.

    Attributes:
        latest: the newest record; its ranks may be gone.
        recorded: the newest record if a rank of it runs, else an empty one.
        groups: of that record.
        endpoints: likewise.
    """

    spec: Spec
    collected: Collected
    present: ClusterRanks
    latest: ReleaseFact | None
    recorded: Record
    groups: Mapping[str, RecordedGroup]
    endpoints: Mapping[str, Endpoint]
    lease: LeaseFact | None

    @property
    def facts(self) -> Mapping[str, Facts]:
        """Of the nodes that answered."""
        return self.collected.facts


def look(fleet: Fleet, spec: Spec) -> Found:
    """Query every node."""
    collected = collect_facts(fleet, spec)
    present = cluster_ranks(spec.inventory.cluster, collected.facts)
    latest = recorded_release(spec.inventory, collected.facts)
    recorded = state.present_record(present, latest)
    groups = recorded_groups(recorded)
    found = recorded_endpoints(recorded) if groups else {}
    return Found(spec, collected, present, latest, recorded, groups, found, current_lease(collected.facts))


def status(fleet: Fleet, spec: Spec, quick: Callable[[Document], None] | None = None) -> Document:
    """Query every node, and request a token from every group that should serve; returns the document of ``--json``.

    ``quick`` gets the document as far as it is known where a group gave no token within ``QUICK_S``, with the names of
    those groups as ``waiting``.
    """
    return asked(fleet, look(fleet, spec), quick)


def asked(fleet: Fleet, found: Found, quick: Callable[[Document], None] | None = None) -> Document:
    """What ``status`` returns, of a cluster that was ``found`` just now."""
    calls = begin_asking(fleet, found)
    runs = found.facts if found.present.running else {}
    seen = begin_observing(fleet, found.spec, runs, QUICK_S, interval_s=INTERVAL_S, brief=True)
    if quick is not None and not calls.ended(QUICK_S):
        waiting = calls.pending()
        early = document(found, calls.wait(0), observed(seen, INTERVAL_S), waiting=waiting)
        quick({**early, "waiting": waiting})
    return document(found, calls.wait(STATUS_LIMIT_S * 2), observed(seen, QUICK_S * 2))


def begin_asking(fleet: Fleet, found: Found) -> Calls[Reply]:
    """Begin to request one token of every group whose ranks all run, by name."""
    ranks = found.present.groups()

    def first_token(name: str) -> Reply:
        endpoint, group = found.endpoints[name], found.groups[name]
        limit_s = min(STATUS_LIMIT_S, group.verify.timeout_s)
        counters = engines.engine(group.engine).counters
        host: Host = fleet.hosts[endpoint.head]
        return ask(host, endpoint, group.verify, limit_s=limit_s, max_tokens=1, counters=counters)

    running = (name for name, group in found.groups.items() if runs_recorded(group, ranks.get(name, {}), group.ranks))
    return Calls(first_token, {name: name for name in running if found.endpoints[name].head in fleet.hosts})


def document(
    found: Found,
    replies: Mapping[str, Reply | SparkclusterError],
    seen: Mapping[str, Observation | Unread],
    waiting: Collection[str] = (),
) -> Document:
    """What ``status`` says of what was ``found``, of ``replies`` by group, and of what nodes were ``seen`` to do.

    Groups in ``waiting`` were asked and have not answered yet.
    """
    spec, facts, recorded = found.spec, found.facts, found.recorded
    answers = {name: reply for name, reply in replies.items() if name not in waiting}
    responding = [name for name, reply in answers.items() if isinstance(reply, Reply) and state.responds(reply)]
    states, word = state.states(
        facts, found.present, found.groups, responding, lease=found.lease, errors=found.collected.errors
    )
    groups = [_group(found, name, states[name], answers.get(name), seen) for name in states]
    guards = {name: guard for name, node in facts.items() if (guard := read(node.enabled)) is not None}
    staging, switch = current_staging(facts), pending(facts, found.latest)
    return {
        "cluster": spec.inventory.cluster,
        "state": word,
        "why": _why(found, word, groups),
        "next": state.next_command(word, switch=switch is not None),
        "endpoint": groups[0]["endpoint"] if groups and word == state.SERVING else None,
        "model": recorded.get("plan", {}).get("model"),
        "image": recorded.get("plan", {}).get("image"),
        "digest": recorded.get("image_digest"),
        "release": recorded.get("number"),
        "lease": _lease(found.lease) if found.lease else None,
        "switch": None if switch is None else switch.as_json(),
        "staging": None if staging is None else {**_lease(staging), "attached": staging.held},
        "enabled": bool(guards) and guards.keys() == facts.keys(),
        "guards": {name: guard.trouble for name, guard in guards.items() if guard.trouble},
        "groups": groups,
        "nodes": _nodes(found, groups, seen),
    }


def _why(found: Found, word: str, groups: Sequence[Document]) -> str | None:
    """Why the cluster is not what it should be, in one line; None where it serves, or nothing of it runs."""
    if word == state.UNKNOWN:
        return "no node could be reached"
    if word not in {state.DEGRADED, state.ORPHANED}:
        return None
    reasons = [error.message for error in found.collected.errors.values()]
    reasons += [f"{name}: {why}" for name, why in unreadable(found.facts).items()]
    ended = [(name, rank) for name, ranks in found.present.ours.items() for rank in ranks if rank.state != "running"]
    # what ended with an error is the reason of what then ended without
    for name, rank in sorted(ended, key=lambda each: each[1].exit_code in {0, None}):
        code = "" if rank.exit_code is None else f" with code {rank.exit_code}"
        reasons.append(f"the rank on {name} {'exited' if rank.state == 'exited' else f'is {rank.state}'}{code}")
    named = {rank.name for ranks in found.present.ours.values() for rank in ranks}
    for group in found.groups.values():
        reasons += [f"the rank on {name} is gone" for name, ranks in group.ranks.items() if not {*ranks} & named]
    reasons += [
        f"{group['name']}: {group['why']}" if len(groups) > 1 else group["why"] for group in groups if group["why"]
    ]
    return next(iter(reasons), None)


def _lease(lease: LeaseFact) -> Document:
    return lease.model_dump(include={"operator", "operation", "since", "epoch"})


def _group(
    found: Found,
    name: str,
    word: str,
    reply: Reply | SparkclusterError | None,
    seen: Mapping[str, Observation | Unread],
) -> Document:
    """One group as it is now."""
    group, ranks = found.groups.get(name), found.present.groups().get(name, {})
    if word == state.ORPHANED:
        why: str | None = state.left_by(found.facts)
    else:
        why = reply.message if isinstance(reply, SparkclusterError) else problem(reply)
    numbers = [release for of_node in ranks.values() for rank in of_node if (release := release_of(rank)) is not None]
    return {
        "name": name,
        "nodes": list(group.ranks if group else ranks),
        "endpoint": group.plan["endpoints"][name] if group else None,
        "state": word,
        "release": group.release if group else max(numbers, default=None),
        "ready": isinstance(reply, Reply) and why is None,
        "why": why,
        "uptime_s": _uptime_s(found, name),
        "load": load_of(ranks, seen),
        "warning": _warning(found, name, group, word),
    }


def _warning(found: Found, name: str, group: RecordedGroup | None, word: str) -> str | None:
    """What is to be said of a group's endpoint, with what to type; None without."""
    inventory = found.spec.inventory
    if group is None:
        return None
    if word == state.SERVING and (warning := secrets.key_warning(group.secrets, found.spec, group.engine)):
        return warning
    if word == state.SERVING and (differing := found.spec.differs(group.selected)):
        return f"{differing}: sparkcluster up INVENTORY   says how to keep it, and how to undo it"
    # The interconnect joins the nodes alone.
    if inventory.api.host == "interconnect" or OPEN_API in inventory.ignore:
        return None
    if not open_without_key(found.endpoints[name], group.plan["endpoints"][name]):
        return None
    return "open to the network, and requires no key: sparkcluster key INVENTORY"


def _uptime_s(found: Found, name: str) -> float | None:
    """For how long all ranks of a group run, by the clocks of their nodes; None where that is unknown."""
    ages = []
    for node, ranks in found.present.groups().get(name, {}).items():
        for rank in ranks:
            if rank.state != "running":
                return None
            try:
                started = dt.datetime.fromisoformat(rank.started_at or "").timestamp()
            except ValueError:
                return None
            ages.append(found.facts[node].clock_s - started)
    return round(max(0.0, min(ages)), 1) if ages else None


def load_of(nodes: Iterable[str], seen: Mapping[str, Observation | Unread]) -> Document | None:
    """What the engine on ``nodes`` does now, by its own counters; None where they could not be read."""
    for node in nodes:
        observation = seen.get(node)
        counters = observation.counters if isinstance(observation, Observation) else None
        if isinstance(counters, tuple) and counters:
            return _load(counters)
    return None


def _load(counters: Sequence[Counters]) -> Document:
    """Requests and KV cache of an engine as last read, and tokens/s between the first reading and the last."""
    first, last = counters[0], counters[-1]
    apart_s = last.at_s - first.at_s
    known = first.generated is not None and last.generated is not None and apart_s > 0
    return {
        "running": last.running,
        "waiting": last.waiting,
        "kv_cache": last.kv_cache,
        "tokens_per_s": max(0.0, ((last.generated or 0) - (first.generated or 0)) / apart_s) if known else None,
    }


def problem(reply: Reply | None) -> str | None:
    """Why a group is not ready, in one line; a slow answer alone is no sign of death."""
    if reply is None or reply.problem is None:
        return None
    if reply.problem == "unauthorized":
        return f"{reply.message}; {RESTART} starts it with the key of the inventory"
    if busy(reply):
        return f"no token within {reply.limit_s:.0f} s: its engine is busy with other requests"
    if dead([], reply) is None and reply.problem == "timeout":
        return f"no token within {reply.limit_s:.0f} s: it hangs, or is in the prefill of a long prompt"
    return f"the model does not answer: {reply.message}"


def _nodes(found: Found, groups: list[Document], seen: Mapping[str, Observation | Unread]) -> list[Document]:
    """One document for each node of the inventory."""
    ready = {name for group in groups if group["ready"] for name in group["nodes"]}
    planned = found.recorded["plan"]["nodes"] if "plan" in found.recorded else {}
    blind = unreadable(found.facts)
    documents: list[Document] = []
    for node in found.spec.inventory.nodes:
        name = node.label
        rank = next(iter(found.present.ours.get(name, ())), None)
        error = found.collected.errors.get(name)
        number = rank.labels.get(LABEL_RANK) if rank else None
        uses_ray = name in planned and planned[name]["containers"][0]["launcher"].get("executor") == "ray"
        observation = seen.get(name)
        memory = read(observation.memory) if isinstance(observation, Observation) else None
        memory = memory or (read(found.facts[name].memory) if name in found.facts else None)
        documents.append(
            {
                "name": name,
                "host": node.host,
                "role": None if number is None else "head" if number == "0" else "worker",
                "state": error.kind if error else rank.state if rank else "unknown" if name in blind else "empty",
                "why": error.message.removeprefix(f"{name}: ") if error else blind.get(name),
                "container": rank.name if rank else None,
                "image": rank.image_id if rank else None,
                # A group that answers has every Ray node in it; nothing else is proof.
                "ray": None if not (uses_ray and rank) else "alive" if name in ready else "unknown",
                "memory": None if memory is None else memory.model_dump(include={"total_bytes", "available_bytes"}),
            }
        )
    return documents
