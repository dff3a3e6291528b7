"""What runs where, whether it serves, and its load: ``status``, and the repeated readings of ``telemetry``."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.endpoint.dead import busy
from sparkcluster.endpoint.find import RESTART, loopback, recorded_endpoints
from sparkcluster.engines import engine
from sparkcluster.errors import CommandFailed, HostListedTwice
from sparkcluster.facts.base import read
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import state
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.observing import begin_asking, replies
from sparkcluster.inspect.signals import load, vitals
from sparkcluster.inspect.vitals import EngineAt, Sampler
from sparkcluster.node.shared import LABEL_RANK, VICTIM
from sparkcluster.plan.release_record import (
    RecordedGroup,
    current_staging,
    recorded_groups,
    release_of,
    runs_recorded,
)
from sparkcluster.runtime import secrets
from sparkcluster.spec.inventory import OPEN_API

# A busy engine returns one token within seconds, since it serves short requests between long ones.
STATUS_LIMIT_S = 15.0
# Enough for two samples, which take two seconds.
OBSERVE_S = 4.0
LEASE = {"operator", "operation", "since", "epoch"}

Document = dict[str, Any]
Load = dict[str, float | None] | None


def status(fleet: Fleet, view: View) -> Document:
    """Request a token from every group of ``view`` that should serve; returns the document of ``--json``."""
    answers = replies(begin_asking(fleet, view, running(view), STATUS_LIMIT_S, 1), view, STATUS_LIMIT_S * 2)
    # afterwards, so that our own token is not counted
    with Sampler(fleet, view.facts if view.ranks.running else (), engines_of(view)) as sampler:
        wait_for_samples(sampler, 2, OBSERVE_S)
        seen = {name: vitals(series, sampler.now_s()) for name, series in sampler.samples.items()}
        return document(view, answers, loads(sampler), seen)


def running(view: View) -> list[str]:
    """Groups whose recorded ranks are all running."""
    ranks = view.ranks.groups()
    return [name for name, each in view.groups.items() if runs_recorded(each, ranks.get(name, {}), each.ranks)]


def engines_of(*views: View) -> dict[str, dict[str, EngineAt]]:
    """By head node, the endpoint and engine of each group in the newest releases."""
    found: dict[str, dict[str, EngineAt]] = {}
    for view in views:
        record = view.newest.record if view.newest else {}
        groups = recorded_groups(record)
        for name, endpoint in recorded_endpoints(record).items() if groups else ():
            if endpoint.head in view.facts:
                found.setdefault(endpoint.head, {})[key(view, name)] = (endpoint, engine(groups[name].engine))
    return found


def key(view: View, group: str) -> str:
    """The name of a group, unique among all clusters."""
    return f"{view.spec.inventory.cluster}/{group}"


def wait_for_samples(sampler: Sampler, times: int, limit_s: float) -> None:
    """Wait until ``sampler`` has ``times`` samples of each node and readings of each engine, at most ``limit_s``."""

    def enough(node: str) -> bool:
        series, wanted = sampler.samples[node], sampler.engines.get(node, ())
        read = [sum(name in each.engines for each in series) for name in wanted]
        # an engine that was not read by then does not answer
        return len(series) >= times and all(each >= times or (not each and len(series) > times) for each in read)

    while sampler.now_s() < limit_s and not all(node in sampler.lost or enough(node) for node in sampler.samples):
        time.sleep(0.05)


def loads(sampler: Sampler) -> dict[str, Load]:
    """The current load of each engine that ``sampler`` reads, by ``key``."""
    wanted = [(node, name) for node, each in sampler.engines.items() for name in each]
    return {name: load(sampler.samples.get(node, ()), name, sampler.now_s()) for node, name in wanted}


def document(
    view: View, answers: Mapping[str, Reply], loads: Mapping[str, Load], vitals: Mapping[str, Document | None]
) -> Document:
    """The document of ``status`` from ``view``, ``answers`` by group, ``loads`` by ``key`` and ``vitals`` by node."""
    facts, recorded = view.facts, view.recorded
    states, word = state.states(view, [name for name, reply in answers.items() if state.responds(reply)])
    groups = [_group(view, name, states[name], answers.get(name), loads.get(key(view, name))) for name in states]
    guards = {name: guard for name, node in facts.items() if (guard := read(node.enabled)) is not None}
    lease, staging, switch = view.lease, current_staging(facts), view.switch
    return {
        "cluster": view.spec.inventory.cluster,
        "state": word,
        "why": _why(view, word, groups),
        "next": state.next_command(word, switch=switch is not None, chats=view.spec.playbook.chats),
        "endpoint": groups[0]["endpoint"] if groups and word == state.SERVING else None,
        "model": recorded.get("plan", {}).get("model"),
        "image": recorded.get("plan", {}).get("image"),
        "digest": recorded.get("image_digest"),
        "release": recorded.get("number"),
        "lease": lease and lease.model_dump(include=LEASE),
        "interrupted": switch and switch.as_json(),
        "staging": staging and {**staging.model_dump(include=LEASE), "attached": staging.held},
        "enabled": bool(guards) and guards.keys() == facts.keys(),
        "guards": {name: guard.trouble for name, guard in guards.items() if guard.trouble},
        "groups": groups,
        "nodes": _nodes(view, groups, vitals),
    }


def _why(view: View, word: str, groups: Sequence[Document]) -> str | None:
    """Why the cluster is not healthy, in one line; None if it serves or is down."""
    if word == state.UNKNOWN:
        return "no node could be reached"
    if word not in {state.DEGRADED, state.ORPHANED}:
        return None
    reasons = [error.message for error in view.unread.values()]
    ranks = [(name, rank) for name, of_node in view.ranks.ours.items() for rank in of_node]
    # a rank that ended with an error is the cause of ranks that then ended without one
    for name, rank in sorted(ranks, key=lambda each: each[1].exit_code in {0, None}):
        if rank.exit_code == VICTIM:
            reasons.append(f"the rank on {name} was {rank.error or 'killed to protect the machine'}")
        elif rank.state != "running":
            code = "" if rank.exit_code is None else f" with code {rank.exit_code}"
            reasons.append(f"the rank on {name} {'exited' if rank.state == 'exited' else f'is {rank.state}'}{code}")
    there = {rank.name for _, rank in ranks}
    for group in view.groups.values():
        reasons += [f"the rank on {name} is missing" for name, names in group.ranks.items() if not {*names} & there]
    for each in groups:
        if each["why"]:
            reasons.append(f"{each['name']}: {each['why']}" if len(groups) > 1 else each["why"])
    return next(iter(reasons), None)


def _group(view: View, name: str, word: str, reply: Reply | None, load: Load) -> Document:
    """The current state of a group."""
    group, ranks = view.groups.get(name), view.ranks.groups().get(name, {})
    why = state.LEFT if word == state.ORPHANED else problem(reply)
    numbers = [release for of_node in ranks.values() for rank in of_node if (release := release_of(rank)) is not None]
    return {
        "name": name,
        "nodes": list(group.ranks if group else ranks),
        "endpoint": group.plan["endpoints"][name] if group else None,
        "state": word,
        "release": group.release if group else max(numbers, default=None),
        "ready": reply is not None and why is None,
        "why": why,
        "uptime_s": _uptime_s(view, name),
        "load": load,
        "warning": _warning(view, group, word) if group else None,
    }


def _warning(view: View, group: RecordedGroup, word: str) -> str | None:
    """A warning about a group's endpoint, with a hint; None if there is nothing to warn about."""
    inventory = view.spec.inventory
    if word == state.SERVING:
        if warning := secrets.key_warning(group, view.spec):
            return warning
        if differing := view.spec.differs(group.selected):
            return f"{differing}: sparkcluster up INVENTORY   shows how to keep or undo the difference"
    # Behind a gateway, an engine without a key listens only on addresses that others cannot reach.
    accepted = inventory.api.for_nodes_only or OPEN_API in inventory.ignore or view.spec.gateway_node
    if accepted or view.endpoints[group.name].key_name or loopback(group.plan["endpoints"][group.name]):
        return None
    return "open to the network without a key: sparkcluster key INVENTORY"


def _uptime_s(view: View, name: str) -> float | None:
    """How long all ranks of a group have been running, by their nodes' clocks; None if unknown."""
    of_nodes = view.ranks.groups().get(name, {})
    began = [(node, rank.started_at) for node, ranks in of_nodes.items() for rank in ranks if rank.state == "running"]
    if not began or len(began) < sum(map(len, of_nodes.values())):
        return None
    try:
        started = [(node, dt.datetime.fromisoformat(text or "").timestamp()) for node, text in began]
    except ValueError:
        return None
    return round(max(0.0, min(view.facts[node].clock_s - at for node, at in started)), 1)


def problem(reply: Reply | None) -> str | None:
    """Why a group is not ready, in one line; a slow answer alone does not mean that it is dead."""
    if reply is None or reply.problem is None:
        return None
    if reply.problem == "unauthorized":
        return f"{reply.message}; {RESTART} restarts it with the inventory's key"
    if reply.problem == "timeout":
        why = "its engine is busy with other requests" if busy(reply) else "it hangs or processes a long prompt"
        return f"no token within {reply.limit_s:.0f} s: {why}"
    return f"the model does not answer: {reply.message}"


def _nodes(view: View, groups: list[Document], vitals: Mapping[str, Document | None]) -> list[Document]:
    """A document for each node of the inventory."""
    ready = {name for group in groups if group["ready"] for name in group["nodes"]}
    planned = view.recorded["plan"]["nodes"] if "plan" in view.recorded else {}
    documents: list[Document] = []
    for node in view.spec.inventory.nodes:
        name = node.label
        rank = next(iter(view.ranks.ours.get(name, ())), None)
        error = view.unread.get(name)
        reached = name in view.facts or isinstance(error, CommandFailed | HostListedTwice)
        number = rank.labels.get(LABEL_RANK) if rank else None
        uses_ray = name in planned and planned[name]["containers"][0]["launcher"].get("executor") == "ray"
        memory = read(view.facts[name].memory) if name in view.facts else None
        documents.append(
            {
                "name": name,
                "host": node.host,
                "role": None if number is None else "head" if number == "0" else "worker",
                "state": ("unknown" if reached else "unreachable") if error else rank.state if rank else "empty",
                "why": error.message.removeprefix(f"{name}: ") if error else None,
                "container": rank.name if rank else None,
                "image": rank.image_id if rank else None,
                # A group that answers has all its Ray nodes; nothing else proves that they are alive.
                "ray": None if not (uses_ray and rank) else "alive" if name in ready else "unknown",
                "memory": None if memory is None else memory.model_dump(include={"total_bytes", "available_bytes"}),
                "vitals": vitals.get(name),
            }
        )
    return documents
