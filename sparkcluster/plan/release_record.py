"""Records of verified releases: what was deployed, from what, and where its nodes are reached. Pure.

A record is on every node of the cluster and contains no secret. It has the address of each node, so that `down` can
name those that were since taken out of the inventory. What a node has recorded is a statement about that node alone:
a group is what the record on its own head says, and an address is shown, never contacted unasked.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Unpack

from sparkcluster import engines
from sparkcluster.errors import PlanError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.docker import Rank
from sparkcluster.facts.model import Facts, LeaseFact, ReleaseFact
from sparkcluster.facts.release_record import GroupDocument, Record
from sparkcluster.node.shared import LABEL_CLUSTER, LABEL_GROUP, LABEL_PLAN, LABEL_RANK, LABEL_RELEASE, LABEL_STATE_DIR
from sparkcluster.plan.model import GroupPlan, Plan
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Request, Verify, verifying

MOST_AHEAD = 10_000
"""How far the number of a release on one node may be above those on the others, which were off meanwhile."""
# Attributes of a group that a record holds as they are; older versions wrote none of them.
KEPT = [key for key in GroupDocument.__annotations__ if key not in {"release", "verify"}]


def next_number(facts: Mapping[str, Facts], cluster: str) -> int:
    """The number of the cluster's next release: above every one of it on any node, those of failed starts included.

    Raises:
        PlanError: the number on a node is far above those on all others, which would use up the numbers.
    """
    *others, (highest, last) = sorted((_highest(node, cluster), name) for name, node in facts.items()) or [(0, "")]
    if others and highest > others[-1][0] + MOST_AHEAD:
        raise PlanError(
            f"{last} has a record of release {highest}, and the other nodes of none after {others[-1][0]}",
            node=last,
            hint=f"remove it on {last}, or {last} from the inventory",
        )
    return highest + 1


def _highest(facts: Facts, cluster: str) -> int:
    """The highest number of a release that a node has recorded, or tried to start; 0 without one."""
    release = read(facts.release)
    tried = [rank for rank in read(facts.ranks) or () if rank.labels.get(LABEL_CLUSTER) == cluster]
    return max([release.number if release else 0, *(release_of(rank) or 0 for rank in tried)])


def release_of(rank: Rank) -> int | None:
    """The number of the release that ``rank`` is labelled with."""
    label = rank.labels.get(LABEL_RELEASE, "")
    return int(label) if re.fullmatch("[0-9]{1,9}", label) else None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One group of a recorded release.

    Attributes:
        plan: the part of the recorded plan that is about it.
        verify: how it shows that it answers, as ``spec.playbook.verifying`` completes it.
        verified: whether it has answered; its ranks were stopped where it has not.
        network: its topology when it was started; None in a record of an older version.
        written: the network settings of the inventory then.
        secrets: keyed hashes of its secrets, from ``runtime.secrets``; empty in a record of an older version.
        image: from ``image.image_identity``; None with runtime process, and in a record of an older version.
        versions: from ``image.versions``; empty in a record of an older version.
        measured: ``ttft_s`` and ``tokens_per_s`` of the completion that verified it, ``start_s`` from the start of its
            ranks until then, and what its engine logged of its memory (``engines.phase.FOOTPRINT``); likewise.
        playbook: that it was started from; None in a record of an older version, which has one for all groups.
        beside: by the source of a mount beside the playbook, ``mark`` and ``name`` of what was there.
        selected: what was chosen then, as ``spec.assignments`` calls a selection; empty likewise.
        request: what clients are told to send; nothing in a record of an older version.
    """

    name: str
    release: int
    engine: str
    plan: dict[str, Any]
    verify: Verify
    verified: bool = True
    network: dict[str, Any] | None = None
    written: dict[str, Any] | None = None
    secrets: dict[str, Any] = dataclasses.field(default_factory=dict)
    image: dict[str, Any] | None = None
    versions: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)
    playbook: dict[str, Any] | None = None
    beside: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    request: Request = dataclasses.field(default_factory=Request)

    @property
    def head(self) -> str | None:
        """Its head."""
        return next((name for name, node in self.plan["nodes"].items() if node.get("role") == "head"), None)

    def image_on(self, node: str) -> str | None:
        """The image of the rank on ``node``; None where it is a process, or none was recorded."""
        found = (self.image or {}).get("ids", {}).get(node)
        return str(found) if found is not None else None

    def has_secrets(self, node: str) -> bool:
        """Whether the rank on ``node`` was started with secrets."""
        return self.plan["nodes"][node]["containers"][0].get("env_file") is not None

    def as_json(self) -> dict[str, Any]:
        """What a record holds of it beside its plan."""
        verify = self.verify.model_dump(mode="json", exclude_defaults=True)
        return {"release": self.release, "verify": verify, **{key: getattr(self, key) for key in KEPT}}

    @property
    def ranks(self) -> dict[str, frozenset[str]]:
        """Names of its ranks, by node."""
        return {
            name: frozenset(container["name"] for container in node["containers"])
            for name, node in self.plan["nodes"].items()
        }


def group_plan(plan: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The part of a plan document that is about ``group``."""
    nodes = {name: node for name, node in plan["nodes"].items() if node.get("group") == group}
    return {
        **plan,
        "endpoints": {group: plan.get("endpoints", {}).get(group)},
        "groups": [list(nodes)],
        "nodes": nodes,
    }


def joined(groups: Iterable[RecordedGroup]) -> dict[str, Any]:
    """The plan document of several groups; what they share is as the first has it."""
    plans = [group.plan for group in groups]
    whole = dict(plans[0])
    whole["endpoints"] = {name: url for plan in plans for name, url in plan["endpoints"].items()}
    whole["groups"] = [nodes for plan in plans for nodes in plan["groups"]]
    whole["nodes"] = {name: node for plan in plans for name, node in plan["nodes"].items()}
    return whole


def recorded_groups(recorded: Mapping[str, Any]) -> dict[str, RecordedGroup]:
    """The groups of a recorded release, also of one that an older version recorded."""
    plan = recorded.get("plan") or {}
    if not plan.get("nodes"):
        return {}
    more = recorded.get("groups", {})
    found = {}
    for name in dict.fromkeys(node.get("group", "") for node in plan["nodes"].values()):
        group = more.get(name, {})
        playbook = group.get("playbook") or recorded.get("playbook", {})
        verify = Verify.model_validate(group.get("verify", recorded.get("playbook", {}).get("verify", {})))
        request = Request.model_validate(playbook.get("request", {}))
        found[name] = RecordedGroup(
            name=name,
            release=group.get("release", recorded.get("number", 0)),
            engine=playbook.get("engine", engines.DEFAULT),
            plan=group_plan(plan, name),
            verify=verifying(verify, request, playbook.get("args", {})),
            request=request,
            **{key: group[key] for key in KEPT if key in group},
        )
    return found


def labelled_heads(inventory: Inventory, facts: Mapping[str, Facts]) -> dict[str, str]:
    """The node of rank 0 of each group, by the labels on that node; of several the first that the inventory lists."""
    found: dict[str, str] = {}
    for node, ranks in cluster_ranks(inventory.cluster, facts).ours.items():
        for group in {rank.labels.get(LABEL_GROUP, "") for rank in ranks if rank.labels.get(LABEL_RANK) == "0"}:
            found[group] = min(node, found.get(group, node), key=lambda each: _place(inventory, group, each))
    return found


def _place(inventory: Inventory, group: str, node: str) -> int:
    """The place of ``node`` among the nodes of ``group`` as the inventory lists them; after all if it is none."""
    members = {each.name: each.nodes for each in inventory.groups}.get(group, [node.label for node in inventory.nodes])
    return [*members, node].index(node)


def recorded_release(inventory: Inventory, facts: Mapping[str, Facts]) -> ReleaseFact | None:
    """The release that is recorded, each group of it as the record on the group's own head has it; None without any.

    A record decides about no group whose head is another node, whatever its number. Where that head did not answer or
    is no longer in the inventory, another node says which ranks belong to its group; nobody can be asked then.
    Of two nodes that both claim to be the head, the one with a rank 0 precedes, then the first in the inventory.
    """
    heads = labelled_heads(inventory, facts)
    claims = []
    for node, node_facts in facts.items():
        release = read(node_facts.release)
        groups_on = recorded_groups(release.record).values() if release else ()
        group = next((group for group in groups_on if node in group.ranks), None)
        if release is None or group is None or heads.get(group.name, group.head) != group.head:
            continue
        if group.head == node or group.head not in facts:
            claims.append((group.head != node, _place(inventory, group.name, node), group, release))
    if not claims:
        return None
    claims.sort(key=lambda claim: claim[:2])
    first = claims[0][-1]
    groups: dict[str, RecordedGroup] = {}
    taken: set[str] = set()
    # Groups of which no node answered are those of the first record.
    silent = [each for each in recorded_groups(first.record).values() if not facts.keys() & each.ranks.keys()]
    for group in [*(group for _, _, group, _ in claims), *silent]:
        if group.head and group.name not in groups and not taken & group.ranks.keys():
            groups[group.name] = group
            taken |= group.ranks.keys()
    kept = {name: group.as_json() for name, group in groups.items()}
    document = {**first.record, "plan": joined(groups.values()), "groups": kept}
    return ReleaseFact(number=first.number, plan_hash=first.plan_hash, record=document)


def written_network(spec: Spec) -> dict[str, Any]:
    """The network settings of the inventory; with the facts they determine the topology."""
    document = spec.inventory.model_dump(mode="json", exclude_defaults=True)
    return {
        "interconnect": document.get("interconnect"),
        "host": document.get("api", {}).get("host"),
        "port": document.get("api", {}).get("port"),
        "nodes": {node.label: written.get("interconnect") for node, written in
                  zip(spec.inventory.nodes, document["nodes"], strict=True)},
    }  # fmt: skip


def kept_rank(groups: Iterable[RecordedGroup], node: str) -> dict[str, Any]:
    """``rank`` of the agent's step ``record`` on ``node``: what it keeps of its rank in ``groups``; empty without one.

    A group that has not answered is none to go back to, and may have left no secrets.
    """
    for group in groups:
        if group.verified and node in group.ranks:
            rank = group.plan["nodes"][node]["containers"][0]
            files = {key: rank.get(key) for key in ("image", "env_file")}
            return {"rank": {"release": group.release, **files}}
    return {}


def record(
    spec: Spec, groups: Sequence[RecordedGroup], /, *, former: Mapping[str, Any] | None = None, **made: Unpack[Record]
) -> dict[str, Any]:
    """The document that is kept of a release.

    ``groups`` are those that were deployed, and those that serve beside them since an earlier release; ``former`` nodes
    of the record before, which may still have ranks though they left the inventory; ``made`` is the rest as it stands
    in the document.
    """
    return {
        **made,
        "playbook": spec.playbook.model_dump(mode="json", exclude_defaults=True),
        "inventory": spec.inventory.model_dump(mode="json", exclude_defaults=True),
        "nodes": dict(former or {}) | {node.label: {"host": node.host} for node in spec.inventory.nodes},
        "plan": joined(groups),
        "groups": {group.name: group.as_json() for group in groups},
    }


Ranks = Mapping[str, Sequence[Rank]]
"""Ranks by node."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterRanks:
    """What a cluster has running, read off its nodes.

    Attributes:
        ours: our ranks by node, whatever their state.
        stray: ranks that carry our cluster's name but another state directory.
    """

    ours: dict[str, tuple[Rank, ...]]
    stray: dict[str, tuple[Rank, ...]]

    @property
    def anything(self) -> bool:
        """Whether a rank of ours is there in whatever state."""
        return any(self.ours.values())

    @property
    def running(self) -> bool:
        """Whether a rank of ours runs."""
        return any(rank.state == "running" for ranks in self.ours.values() for rank in ranks)

    def groups(self) -> dict[str, dict[str, tuple[Rank, ...]]]:
        """Our ranks by group and node."""
        found: dict[str, dict[str, tuple[Rank, ...]]] = {}
        for node, ranks in self.ours.items():
            for rank in ranks:
                nodes = found.setdefault(rank.labels.get(LABEL_GROUP, ""), {})
                nodes[node] = (*nodes.get(node, ()), rank)
        return found

    def of_release(self, release: ReleaseFact | None, *, exited: bool = False) -> bool:
        """Whether a rank runs that ``release`` recorded; with ``exited``, or is left of it."""
        names = {container["name"] for *_, container in release.containers()} if release else set()
        ranks = [rank for of_node in self.ours.values() for rank in of_node if rank.name in names]
        return any(exited or rank.state == "running" for rank in ranks)


def runs_recorded(group: RecordedGroup, ranks: Ranks, nodes: Collection[str]) -> bool:
    """Whether every rank of ``group`` runs, on those of its nodes that are among ``nodes``."""
    expected = {name: names for name, names in group.ranks.items() if name in nodes}
    return bool(expected) and all(
        names == {rank.name for rank in ranks.get(node, ()) if rank.state == "running"}
        for node, names in expected.items()
    )


def runs_planned(plan: Plan, group: GroupPlan, ranks: Ranks) -> int | None:
    """The release number of the ranks of ``group``, where exactly those run that ``plan`` would start; else None."""
    planned = {node: len(plan.nodes[node].containers) for node in group.nodes}
    if {node: len(found) for node, found in ranks.items()} != planned:
        return None
    found = [rank for of_node in ranks.values() for rank in of_node]
    planned_runs = all(rank.state == "running" and rank.labels.get(LABEL_PLAN) == group.hash for rank in found)
    numbers = {release_of(rank) for rank in found}
    return numbers.pop() if planned_runs and len(numbers) == 1 else None


def current_lease(facts: Mapping[str, Facts]) -> LeaseFact | None:
    """The lease that is held right now on any node, or None."""
    leases = (read(node_facts.lease) for node_facts in facts.values())
    return next((lease for lease in leases if lease is not None and lease.held), None)


def current_staging(facts: Mapping[str, Facts]) -> LeaseFact | None:
    """The lease of staging that is held right now on any node, else one under which a job is at work, or None."""
    leases = [lease for node_facts in facts.values() if (lease := read(node_facts.staging)) is not None]
    return next((lease for lease in leases if lease.held), next((lease for lease in leases if lease.at_work), None))


def unreadable(facts: Mapping[str, Facts]) -> dict[str, str]:
    """Nodes that could not say which ranks they have, and why: none seen there is not none there."""
    return {name: node_facts.ranks.unread for name, node_facts in facts.items() if isinstance(node_facts.ranks, Unread)}


def cluster_ranks(cluster: str, facts: Mapping[str, Facts]) -> ClusterRanks:
    """Sort the ranks of the cluster on every node into ours and strays."""
    ours: dict[str, tuple[Rank, ...]] = {}
    stray: dict[str, tuple[Rank, ...]] = {}
    for name, node_facts in facts.items():
        ranks = [rank for rank in read(node_facts.ranks) or () if rank.labels.get(LABEL_CLUSTER) == cluster]
        ours[name] = tuple(rank for rank in ranks if rank.labels.get(LABEL_STATE_DIR) == node_facts.state_dir)
        stray[name] = tuple(rank for rank in ranks if rank not in ours[name])
    return ClusterRanks(ours, stray)
