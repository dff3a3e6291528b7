"""Asking what serves: the recorded release's own endpoints, and the status of everything."""

from __future__ import annotations

from typing import Any

from sparkcluster import engines
from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.dead import busy, dead
from sparkcluster.endpoint.find import KEY_REMEDY, recorded_endpoints
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import read
from sparkcluster.facts.model import LeaseFact
from sparkcluster.facts.record import Record
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node.shared import LABEL_RANK
from sparkcluster.plan.records import (
    ClusterRanks,
    cluster_ranks,
    current_lease,
    current_staging,
    recorded_groups,
    recorded_release,
    runs_recorded,
    unreadable,
)
from sparkcluster.plan.switch import pending
from sparkcluster.probing.collect import Collected, collect_facts
from sparkcluster.spec import Spec

# A busy engine gives one token within seconds, since it serves short requests between long ones.
STATUS_LIMIT_S = 30.0
# Operations that stop groups to start others.
STARTS = ("up", "upgrade", "rollback", "restart")


def status(fleet: Fleet, spec: Spec) -> dict[str, Any]:
    """Query every node, and request a token from every group that should serve; returns the document of ``--json``."""
    collected = collect_facts(fleet, spec)
    present = cluster_ranks(spec.inventory.cluster, collected.facts)
    latest = recorded_release(spec.inventory, collected.facts)
    recorded: Record = latest.record if latest and present.of_release(latest) else {}
    lease = current_lease(collected.facts)
    staging = current_staging(collected.facts)
    starting = lease is not None and lease.operation in STARTS
    guards = {name: guard for name, facts in collected.facts.items() if (guard := read(facts.enabled)) is not None}
    switch = pending(collected.facts, latest)
    groups = group_documents(fleet, recorded, present, starting=starting)
    blind = bool(collected.errors or unreadable(collected.facts))
    state = overall(groups, present, blind=blind, starting=starting)
    first = groups[0] if groups else None
    return {
        "cluster": spec.inventory.cluster,
        "state": state,
        "endpoint": first["endpoint"] if first and state == "serving" else None,
        "model": recorded.get("plan", {}).get("model"),
        "image": recorded.get("plan", {}).get("image"),
        "digest": recorded.get("image_digest"),
        "release": recorded.get("number"),
        "lease": _lease_document(lease) if lease else None,
        "switch": None if switch is None else switch.as_json(),
        "staging": None if staging is None else {**_lease_document(staging), "attached": staging.held},
        "enabled": bool(guards) and guards.keys() == collected.facts.keys(),
        "guards": {name: guard.trouble for name, guard in guards.items() if guard.trouble},
        "groups": groups,
        "nodes": node_documents(spec, collected, present, recorded, groups),
    }


def _lease_document(lease: LeaseFact) -> dict[str, Any]:
    return lease.model_dump(include={"operator", "operation", "since", "epoch"})


def group_documents(fleet: Fleet, recorded: Record, present: ClusterRanks, *, starting: bool) -> list[dict[str, Any]]:
    """The groups of a recorded release as they are now; one token is requested of each, all at once."""
    groups = recorded_groups(recorded)
    found = recorded_endpoints(recorded) if groups else {}
    ranks = present.groups()
    running = {name: runs_recorded(group, ranks.get(name, {}), group.ranks) for name, group in groups.items()}
    heads = {found[name].head: name for name in groups if running[name] and found[name].head in fleet.hosts}

    def first_token(host: Host) -> Reply:
        name = heads[host.name]
        verify = groups[name].verify
        limit_s = min(STATUS_LIMIT_S, verify.timeout_s)
        counters = engines.engine(groups[name].engine).counters
        return ask(host, found[name], verify, limit_s=limit_s, max_tokens=1, counters=counters)

    replies = {heads[head]: reply for head, reply in fleet.each(first_token, heads).items()}
    documents = []
    for name, group in groups.items():
        reply = replies.get(name)
        why = reply.message if isinstance(reply, SparkclusterError) else problem(reply)
        ready = reply is not None and why is None
        some = any(rank.state == "running" for node in ranks.get(name, {}).values() for rank in node)
        if ready or (isinstance(reply, Reply) and busy(reply)):
            state = "serving"
        else:
            state = "down" if not some else "starting" if starting else "degraded"
        documents.append(
            {
                "name": name,
                "nodes": list(group.ranks),
                "endpoint": group.plan["endpoints"][name],
                "state": state,
                "release": group.release,
                "ready": ready,
                "why": why,
            }
        )
    return documents


def problem(reply: Reply | None) -> str | None:
    """Why a group is not ready, in one line; a slow answer alone is no sign of death."""
    if reply is None or reply.problem is None:
        return None
    if reply.problem == "unauthorized":
        return f"{reply.message}; {KEY_REMEDY} starts it with the key of the inventory"
    if busy(reply):
        return f"no token within {reply.limit_s:.0f} s: its engine is busy with other requests"
    if dead([], reply) is None and reply.problem == "timeout":
        return f"no token within {reply.limit_s:.0f} s: it hangs, or is in the prefill of a long prompt"
    return f"the model does not answer: {reply.message}"


def overall(groups: list[dict[str, Any]], present: ClusterRanks, *, blind: bool, starting: bool) -> str:
    """The state of the cluster in one word.

    ``blind``: the ranks of some node could not be read; ``starting``: an operation of STARTS is under way. Any other
    does not change the state.
    """
    if groups and all(group["state"] == "serving" for group in groups) and not blind:
        return "serving"
    if starting and not any(group["state"] == "serving" for group in groups):
        return "starting"
    return "degraded" if present.anything or blind else "down"


def node_documents(
    spec: Spec, collected: Collected, present: ClusterRanks, recorded: Record, groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One document for each node of the inventory."""
    ready = {name for group in groups if group["ready"] for name in group["nodes"]}
    planned = recorded["plan"]["nodes"] if "plan" in recorded else {}
    blind = unreadable(collected.facts)
    documents: list[dict[str, Any]] = []
    for node in spec.inventory.nodes:
        name = node.label
        rank = next(iter(present.ours.get(name, ())), None)
        error = collected.errors.get(name)
        number = rank.labels.get(LABEL_RANK) if rank else None
        uses_ray = name in planned and planned[name]["containers"][0]["launcher"].get("executor") == "ray"
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
            }
        )
    return documents
