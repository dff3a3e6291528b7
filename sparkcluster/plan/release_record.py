"""Records of verified releases: what was deployed, from which files, and the addresses of its nodes. Pure.

Every node of the cluster has the record, which contains no secrets. It includes the address of each node, so that
`down` can name nodes that were removed from the inventory. A node's record is trusted only for that node: the record on
a group's head defines the group, and recorded addresses are shown but not contacted without a request.
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
"""How far a node's release number may be above the other nodes', which may have been switched off."""
# Attributes of a group that a record contains unchanged; records of older versions lack them.
KEPT = [key for key in GroupDocument.__annotations__ if key not in {"release", "verify"}]


def next_number(facts: Mapping[str, Facts], cluster: str) -> int:
    """The number of the cluster's next release, above all numbers on any node, including failed starts.

    Raises:
        PlanError: the number on one node is far above all others.
    """
    *others, (highest, last) = sorted((_highest(node, cluster), name) for name, node in facts.items()) or [(0, "")]
    if others and highest > others[-1][0] + MOST_AHEAD:
        raise PlanError(
            f"{last} has a record of release {highest}, but no other node has one above {others[-1][0]}",
            node=last,
            hint=f"remove the record on {last}, or remove {last} from the inventory",
        )
    return highest + 1


def _highest(facts: Facts, cluster: str) -> int:
    """The highest release number that a node has recorded or tried to start; 0 if none."""
    release = read(facts.release)
    tried = [rank for rank in read(facts.ranks) or () if rank.labels.get(LABEL_CLUSTER) == cluster]
    return max([release.number if release else 0, *(release_of(rank) or 0 for rank in tried)])


def release_of(rank: Rank) -> int | None:
    """The release number in the labels of ``rank``."""
    label = rank.labels.get(LABEL_RELEASE, "")
    return int(label) if re.fullmatch("[0-9]{1,9}", label) else None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedGroup:
    """One group of a recorded release.

    Attributes:
        plan: its part of the recorded plan.
        verify: its verification request, from ``spec.playbook.verifying``.
        verified: whether it has answered; otherwise its ranks were stopped.
        network: its topology at the start; None in records of older versions.
        written: network settings of the inventory at that time.
        secrets: keyed hashes of its secrets, from ``runtime.secrets``; empty in records of older versions.
        image: from ``image.image_identity``; None with runtime process, and in records of older versions.
        versions: from ``image.versions``; empty in records of older versions.
        measured: ``ttft_s`` and ``tokens_per_s`` of the verification, ``start_s`` until then, and memory figures logged
            by the engine (``engines.phase.FOOTPRINT``); empty in records of older versions.
        playbook: playbook of the group; None in records of older versions, which have one for all groups.
        beside: ``mark`` and ``name`` of mounted playbook files, by the source of the mount.
        selected: its selection (see ``spec.assignments``); empty in records of older versions.
        request: recommended request parameters; defaults in records of older versions.
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
        """Name of the head."""
        return next((name for name, node in self.plan["nodes"].items() if node.get("role") == "head"), None)

    def image_on(self, node: str) -> str | None:
        """The image ID of the rank on ``node``; None for a process, or if not recorded."""
        found = (self.image or {}).get("ids", {}).get(node)
        return str(found) if found is not None else None

    def has_secrets(self, node: str) -> bool:
        """Whether the rank on ``node`` was started with secrets."""
        return self.plan["nodes"][node]["containers"][0].get("env_file") is not None

    def as_json(self) -> dict[str, Any]:
        """The group's part of a record, without its plan."""
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
    """The part of a plan document for ``group``."""
    nodes = {name: node for name, node in plan["nodes"].items() if node.get("group") == group}
    return {
        **plan,
        "endpoints": {group: plan.get("endpoints", {}).get(group)},
        "groups": [list(nodes)],
        "nodes": nodes,
    }


def joined(groups: Iterable[RecordedGroup]) -> dict[str, Any]:
    """The plan document of several groups; common keys are taken from the first."""
    plans = [group.plan for group in groups]
    whole = dict(plans[0])
    whole["endpoints"] = {name: url for plan in plans for name, url in plan["endpoints"].items()}
    whole["groups"] = [nodes for plan in plans for nodes in plan["groups"]]
    whole["nodes"] = {name: node for plan in plans for name, node in plan["nodes"].items()}
    return whole


def recorded_groups(recorded: Mapping[str, Any]) -> dict[str, RecordedGroup]:
    """The groups of a recorded release, including records of older versions."""
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
        engine = playbook.get("engine", engines.DEFAULT)
        found[name] = RecordedGroup(
            name=name,
            release=group.get("release", recorded.get("number", 0)),
            engine=engine,
            plan=group_plan(plan, name),
            verify=verifying(verify, request, playbook.get("args", {}), engine),
            request=request,
            **{key: group[key] for key in KEPT if key in group},
        )
    return found


def labelled_heads(inventory: Inventory, facts: Mapping[str, Facts]) -> dict[str, str]:
    """The node of rank 0 of each group, by the labels of its rank; the first in the inventory if there are several."""
    found: dict[str, str] = {}
    for node, ranks in cluster_ranks(inventory.cluster, facts).ours.items():
        for group in {rank.labels.get(LABEL_GROUP, "") for rank in ranks if rank.labels.get(LABEL_RANK) == "0"}:
            found[group] = min(node, found.get(group, node), key=lambda each: _place(inventory, group, each))
    return found


def _place(inventory: Inventory, group: str, node: str) -> int:
    """The index of ``node`` in ``group`` of the inventory; after all others if it is not listed."""
    members = {each.name: each.nodes for each in inventory.groups}.get(group, [node.label for node in inventory.nodes])
    return [*members, node].index(node)


def recorded_release(inventory: Inventory, facts: Mapping[str, Facts]) -> ReleaseFact | None:
    """The recorded release, with each group from the record on its own head; None if nothing is recorded.

    A record never defines a group with another head, regardless of its number. If that head did not answer or is no
    longer in the inventory, the record on another node of the group is used. If two nodes claim to be the head, the
    node with a rank 0 wins, then the first in the inventory.
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
    # Groups without an answering node are taken from the first record.
    silent = [each for each in recorded_groups(first.record).values() if not facts.keys() & each.ranks.keys()]
    for group in [*(group for _, _, group, _ in claims), *silent]:
        if group.head and group.name not in groups and not taken & group.ranks.keys():
            groups[group.name] = group
            taken |= group.ranks.keys()
    kept = {name: group.as_json() for name, group in groups.items()}
    document = {**first.record, "plan": joined(groups.values()), "groups": kept}
    return ReleaseFact(number=first.number, plan_hash=first.plan_hash, record=document)


def written_network(spec: Spec) -> dict[str, Any]:
    """The network settings of the inventory, which determine the topology together with the facts."""
    document = spec.inventory.model_dump(mode="json", exclude_defaults=True)
    return {
        "interconnect": document.get("interconnect"),
        "host": document.get("api", {}).get("host"),
        "port": document.get("api", {}).get("port"),
        "nodes": {node.label: written.get("interconnect") for node, written in
                  zip(spec.inventory.nodes, document["nodes"], strict=True)},
    }  # fmt: skip


def kept_rank(groups: Iterable[RecordedGroup], node: str) -> dict[str, Any]:
    """``rank`` for the agent's step ``record`` on ``node``: the files to keep of its rank in ``groups``, if any.

    An unverified group is not a rollback target, and may have no secrets.
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
    """The record of a release.

    ``groups`` are the deployed groups, and groups that still serve from an earlier release. ``former`` are nodes of the
    previous record that are no longer in the inventory but may still have ranks. ``made`` are further keys of the
    record.
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
    """Ranks of a cluster, from the facts of its nodes.

    Attributes:
        ours: ranks of this cluster by node, in any state.
        stray: ranks with this cluster's name but another state directory.
    """

    ours: dict[str, tuple[Rank, ...]]
    stray: dict[str, tuple[Rank, ...]]

    @property
    def anything(self) -> bool:
        """Whether any rank exists, in any state."""
        return any(self.ours.values())

    @property
    def running(self) -> bool:
        """Whether any rank is running."""
        return any(rank.state == "running" for ranks in self.ours.values() for rank in ranks)

    def groups(self) -> dict[str, dict[str, tuple[Rank, ...]]]:
        """Ranks by group and node."""
        found: dict[str, dict[str, tuple[Rank, ...]]] = {}
        for node, ranks in self.ours.items():
            for rank in ranks:
                nodes = found.setdefault(rank.labels.get(LABEL_GROUP, ""), {})
                nodes[node] = (*nodes.get(node, ()), rank)
        return found

    def of_release(self, release: ReleaseFact | None, *, exited: bool = False) -> bool:
        """Whether a rank of ``release`` is running or, with ``exited``, exists."""
        names = {container["name"] for *_, container in release.containers()} if release else set()
        ranks = [rank for of_node in self.ours.values() for rank in of_node if rank.name in names]
        return any(exited or rank.state == "running" for rank in ranks)


def runs_recorded(group: RecordedGroup, ranks: Ranks, nodes: Collection[str]) -> bool:
    """Whether all ranks of ``group`` on ``nodes`` are running."""
    expected = {name: names for name, names in group.ranks.items() if name in nodes}
    return bool(expected) and all(
        names == {rank.name for rank in ranks.get(node, ()) if rank.state == "running"}
        for node, names in expected.items()
    )


def runs_planned(plan: Plan, group: GroupPlan, ranks: Ranks) -> int | None:
    """The release number of the running ranks of ``group`` if they are exactly those of ``plan``, else None."""
    planned = {node: len(plan.nodes[node].containers) for node in group.nodes}
    if {node: len(found) for node, found in ranks.items()} != planned:
        return None
    found = [rank for of_node in ranks.values() for rank in of_node]
    planned_runs = all(rank.state == "running" and rank.labels.get(LABEL_PLAN) == group.hash for rank in found)
    numbers = {release_of(rank) for rank in found}
    return numbers.pop() if planned_runs and len(numbers) == 1 else None


def current_lease(facts: Mapping[str, Facts]) -> LeaseFact | None:
    """The lease that is currently held on any node, or None."""
    leases = (read(node_facts.lease) for node_facts in facts.values())
    return next((lease for lease in leases if lease is not None and lease.held), None)


def current_staging(facts: Mapping[str, Facts]) -> LeaseFact | None:
    """The staging lease that is currently held on any node, else one with a running job, or None."""
    leases = [lease for node_facts in facts.values() if (lease := read(node_facts.staging)) is not None]
    return next((lease for lease in leases if lease.held), next((lease for lease in leases if lease.at_work), None))


def unreadable(facts: Mapping[str, Facts]) -> dict[str, str]:
    """Nodes whose ranks could not be read, with the reason; they may have ranks."""
    return {name: node_facts.ranks.unread for name, node_facts in facts.items() if isinstance(node_facts.ranks, Unread)}


def cluster_ranks(cluster: str, facts: Mapping[str, Facts]) -> ClusterRanks:
    """Classify the ranks with the name of the cluster on every node."""
    ours: dict[str, tuple[Rank, ...]] = {}
    stray: dict[str, tuple[Rank, ...]] = {}
    for name, node_facts in facts.items():
        ranks = [rank for rank in read(node_facts.ranks) or () if rank.labels.get(LABEL_CLUSTER) == cluster]
        ours[name] = tuple(rank for rank in ranks if rank.labels.get(LABEL_STATE_DIR) == node_facts.state_dir)
        stray[name] = tuple(rank for rank in ranks if rank not in ours[name])
    return ClusterRanks(ours, stray)
