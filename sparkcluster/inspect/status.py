"""What runs where, and whether it serves: ``status``, and once in a while what ``status --watch`` shows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster.endpoint.dead import busy
from sparkcluster.endpoint.find import RESTART, loopback
from sparkcluster.facts.base import read
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import state
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.observing import Observations, begin_asking, begin_observing, load_of, observed, replies
from sparkcluster.node.shared import LABEL_RANK, VICTIM
from sparkcluster.plan.release_record import RecordedGroup, current_staging, release_of, runs_recorded, unreadable
from sparkcluster.runtime import secrets
from sparkcluster.spec.inventory import OPEN_API

# A busy engine gives one token within seconds, since it serves short requests between long ones.
STATUS_LIMIT_S = 15.0
# For two readings of what moves.
OBSERVE_S = 2.0
LEASE = {"operator", "operation", "since", "epoch"}

Document = dict[str, Any]


def status(fleet: Fleet, view: View) -> Document:
    """Request a token from every group of ``view`` that should serve; the document of ``--json``."""
    ranks = view.ranks.groups()
    running = [name for name, each in view.groups.items() if runs_recorded(each, ranks.get(name, {}), each.ranks)]
    calls = begin_asking(fleet, view, running, STATUS_LIMIT_S, 1)
    seen = begin_observing(fleet, view.spec, view.facts if view.ranks.running else {}, OBSERVE_S, brief=True)
    return document(view, replies(calls, view, STATUS_LIMIT_S * 2), observed(seen, OBSERVE_S))


def document(view: View, answers: Mapping[str, Reply], seen: Observations) -> Document:
    """What ``status`` says of ``view``, of ``answers`` by group, and of what nodes were ``seen`` to do."""
    facts, recorded = view.facts, view.recorded
    states, word = state.states(view, [name for name, reply in answers.items() if state.responds(reply)])
    groups = [_group(view, name, states[name], answers.get(name), seen) for name in states]
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
        "switch": switch and switch.as_json(),
        "staging": staging and {**staging.model_dump(include=LEASE), "attached": staging.held},
        "enabled": bool(guards) and guards.keys() == facts.keys(),
        "guards": {name: guard.trouble for name, guard in guards.items() if guard.trouble},
        "groups": groups,
        "nodes": _nodes(view, groups),
    }


def _why(view: View, word: str, groups: Sequence[Document]) -> str | None:
    """Why the cluster is not what it should be, in one line; None where it serves, or nothing of it runs."""
    if word == state.UNKNOWN:
        return "no node could be reached"
    if word not in {state.DEGRADED, state.ORPHANED}:
        return None
    reasons = [error.message for error in view.collected.errors.values()]
    reasons += [f"{name}: {why}" for name, why in unreadable(view.facts).items()]
    ranks = [(name, rank) for name, of_node in view.ranks.ours.items() for rank in of_node]
    # what ended with an error is the reason of what then ended without
    for name, rank in sorted(ranks, key=lambda each: each[1].exit_code in {0, None}):
        if rank.exit_code == VICTIM:
            reasons.append(f"the rank on {name} was {rank.error or 'killed to protect the machine'}")
        elif rank.state != "running":
            code = "" if rank.exit_code is None else f" with code {rank.exit_code}"
            reasons.append(f"the rank on {name} {'exited' if rank.state == 'exited' else f'is {rank.state}'}{code}")
    there = {rank.name for _, rank in ranks}
    for group in view.groups.values():
        reasons += [f"the rank on {name} is gone" for name, names in group.ranks.items() if not {*names} & there]
    for each in groups:
        if each["why"]:
            reasons.append(f"{each['name']}: {each['why']}" if len(groups) > 1 else each["why"])
    return next(iter(reasons), None)


def _group(view: View, name: str, word: str, reply: Reply | None, seen: Observations) -> Document:
    """One group as it is now."""
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
        "load": load_of(ranks, seen),
        "warning": _warning(view, group, word) if group else None,
    }


def _warning(view: View, group: RecordedGroup, word: str) -> str | None:
    """What is to be said of a group's endpoint, with what to type; None without."""
    inventory = view.spec.inventory
    if word == state.SERVING:
        if warning := secrets.key_warning(group.secrets, view.spec):
            return warning
        if differing := view.spec.differs(group.selected):
            return f"{differing}: sparkcluster up INVENTORY   says how to keep it, and how to undo it"
    # Behind a gateway an engine listens where others reach it only with a key.
    accepted = inventory.api.for_nodes_only or OPEN_API in inventory.ignore or view.spec.gateway_node
    if accepted or view.endpoints[group.name].key_name or loopback(group.plan["endpoints"][group.name]):
        return None
    return "open to the network, and requires no key: sparkcluster key INVENTORY"


def _uptime_s(view: View, name: str) -> float | None:
    """For how long all ranks of a group run, by the clocks of their nodes; None where that is unknown."""
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
    """Why a group is not ready, in one line; a slow answer alone is no sign of death."""
    if reply is None or reply.problem is None:
        return None
    if reply.problem == "unauthorized":
        return f"{reply.message}; {RESTART} starts it with the key of the inventory"
    if reply.problem == "timeout":
        why = "its engine is busy with other requests" if busy(reply) else "it hangs, or reads a long prompt"
        return f"no token within {reply.limit_s:.0f} s: {why}"
    return f"the model does not answer: {reply.message}"


def _nodes(view: View, groups: list[Document]) -> list[Document]:
    """One document for each node of the inventory."""
    ready = {name for group in groups if group["ready"] for name in group["nodes"]}
    planned = view.recorded["plan"]["nodes"] if "plan" in view.recorded else {}
    blind = unreadable(view.facts)
    documents: list[Document] = []
    for node in view.spec.inventory.nodes:
        name = node.label
        rank = next(iter(view.ranks.ours.get(name, ())), None)
        error = view.collected.errors.get(name)
        number = rank.labels.get(LABEL_RANK) if rank else None
        uses_ray = name in planned and planned[name]["containers"][0]["launcher"].get("executor") == "ray"
        memory = read(view.facts[name].memory) if name in view.facts else None
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
