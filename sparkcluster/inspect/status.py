"""Asking what serves: the recorded release's own endpoints, and the status of everything."""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkcluster.endpoint.ask import ask
from sparkcluster.endpoint.find import recorded_endpoints
from sparkcluster.errors import NotServing
from sparkcluster.facts.running import Reply
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.node.shared import LABEL_RANK
from sparkcluster.plan.records import Holding, current_lease, holding, newest, recorded_verify, unreadable
from sparkcluster.probing.collect import Collected, collect_facts
from sparkcluster.spec import Spec

# A busy engine gives one token within seconds, since it serves short requests between long ones.
STATUS_LIMIT_S = 30.0


def ask_recorded(
    fleet: Fleet,
    recorded: dict[str, Any],
    *,
    group: str | None = None,
    max_tokens: int = 1,
    limit_s: float | None = None,
) -> dict[str, Reply]:
    """A short completion of every group (or ``group``) of a recorded release; replies by group.

    Args:
        fleet: the nodes.
        recorded: the release.
        group: name of the only one to ask.
        max_tokens: the most tokens of an answer.
        limit_s: the most seconds that an answer may take; default: what its playbook allows.

    Raises:
        NotServing: a group does not answer.
    """
    verify = recorded_verify(recorded)
    limit_s = min(limit_s or verify.timeout_s, verify.timeout_s)
    replies = {}
    for name, endpoint in recorded_endpoints(recorded).items():
        if group not in {None, name}:
            continue
        head = endpoint.head
        if head not in fleet.hosts:
            raise NotServing(f"the head of {name}, {head}, is no longer in the inventory", node=head, step="verify")
        replies[name] = ask(fleet.hosts[head], endpoint, verify, limit_s=limit_s, max_tokens=max_tokens)
        if replies[name].problem:
            raise NotServing(f"the model does not answer: {replies[name].message}", node=head, step="verify")
    return replies


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """What ``status`` tells; ``document`` has the shape that other programs may rely on."""

    document: dict[str, Any]

    @property
    def serving(self) -> bool:
        """Whether every group answers."""
        return bool(self.document["state"] == "serving")


def status(fleet: Fleet, spec: Spec) -> Status:
    """Look at every node, and ask every group that should serve for a real token."""
    collected = collect_facts(fleet, spec)
    held = holding(spec.inventory.cluster, collected.facts)
    known = newest(collected.facts.values())
    running = held.release()
    recorded = known.record if known and known.number == running else {}
    lease = current_lease(collected.facts)
    starting = lease is not None and lease.operation == "up"
    groups = group_documents(fleet, recorded, held, starting=starting)
    blind = bool(collected.errors or unreadable(collected.facts))
    state = overall(groups, held, blind=blind, starting=starting)
    first = groups[0] if groups else None
    return Status(
        {
            "cluster": spec.inventory.cluster,
            "state": state,
            "endpoint": first["endpoint"] if first and state == "serving" else None,
            "model": recorded.get("plan", {}).get("model"),
            "image": recorded.get("plan", {}).get("image"),
            "digest": recorded.get("image_digest"),
            "release": running if recorded else None,
            "lease": lease.model_dump(include={"operator", "operation", "since", "epoch"}) if lease else None,
            "groups": groups,
            "nodes": node_documents(spec, collected, held, recorded, groups),
        }
    )


def group_documents(fleet: Fleet, recorded: dict[str, Any], held: Holding, *, starting: bool) -> list[dict[str, Any]]:
    """The groups of a recorded release as they are now."""
    if not recorded:
        return []
    documents = []
    plan = recorded["plan"]
    for name in recorded_endpoints(recorded):
        nodes = [node for node, one in plan["nodes"].items() if one["group"] == name]
        running = [any(rank.state == "running" for rank in held.own.get(node, ())) for node in nodes]
        ready, why = False, None
        if all(running):
            try:
                ask_recorded(fleet, recorded, group=name, limit_s=STATUS_LIMIT_S)
                ready = True
            except NotServing as error:
                why = error.message
        state = "serving" if ready else "down" if not any(running) else "starting" if starting else "degraded"
        documents.append(
            {
                "name": name,
                "nodes": nodes,
                "endpoint": plan["endpoints"][name],
                "state": state,
                "release": recorded["number"],
                "ready": ready,
                "why": why,
            }
        )
    return documents


def overall(groups: list[dict[str, Any]], held: Holding, *, blind: bool, starting: bool) -> str:
    """The state of the cluster in one word.

    Args:
        groups: documents of the recorded release's groups.
        held: the ranks on all nodes.
        blind: whether the ranks of some node are not known.
        starting: whether an ``up`` is under way; any other operation leaves the state that is seen.
    """
    if groups and all(group["ready"] for group in groups) and not blind:
        return "serving"
    if starting and not any(group["ready"] for group in groups):
        return "starting"
    return "degraded" if held.anything or blind else "down"


def node_documents(
    spec: Spec, collected: Collected, held: Holding, recorded: dict[str, Any], groups: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One document for each node of the inventory."""
    ready = {name for group in groups if group["ready"] for name in group["nodes"]}
    planned = recorded.get("plan", {}).get("nodes", {})
    blind = unreadable(collected.facts)
    documents: list[dict[str, Any]] = []
    for node in spec.inventory.nodes:
        name = node.label
        rank = next(iter(held.own.get(name, ())), None)
        error = collected.errors.get(name)
        number = rank.labels.get(LABEL_RANK) if rank else None
        containers = planned.get(name, {}).get("containers", [])
        uses_ray = bool(containers) and containers[0]["launcher"].get("executor") == "ray"
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
