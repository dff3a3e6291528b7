"""Records of verified releases: what was deployed, from what, and where its nodes are reached. Pure.

A record lies on every node of the cluster and holds no secret. It names how each node is reached, so that a
node that was since taken out of the inventory is still found and cleaned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.facts.model import Facts, LeaseFact, Rank, ReleaseFact, Unread, read
from sparkcluster.node.shared import LABEL_CLUSTER, LABEL_PLAN, LABEL_RELEASE, LABEL_STATE_DIR
from sparkcluster.plan.model import Plan
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Verify

KEEP = 20


def newest(facts: Iterable[Facts]) -> ReleaseFact | None:
    """The newest release that any node knows."""
    known = [release for one in facts if (release := read(one.release)) is not None]
    return max(known, key=lambda release: release.number, default=None)


def next_number(facts: Iterable[Facts]) -> int:
    """The number that the next release gets: one above every number on any node, tried ones included."""
    taken = [0]
    for one in facts:
        if release := read(one.release):
            taken.append(release.number)
        for rank in read(one.ranks) or ():
            label = rank.labels.get(LABEL_RELEASE, "")
            taken += [int(label)] if label.isdigit() else []
    return max(taken) + 1


def record(
    spec: Spec, plan: Plan, *, number: int, operator: str, verified_at: float, version: str, digest: str | None = None
) -> dict[str, Any]:
    """The document that is kept of a release.

    Args:
        spec: inventory and playbook that it came from.
        plan: what was deployed.
        number: of the release.
        operator: who did it, as user@host.
        verified_at: when the model had answered, in seconds since 1970.
        version: of sparkcluster.
        digest: the image as any node can pull it, ``name@sha256:…``.
    """
    inventory = spec.inventory
    return {
        "number": number,
        "plan_hash": plan.hash,
        "verified_at": verified_at,
        "operator": operator,
        "version": version,
        "image_digest": digest,
        "playbook": spec.playbook.model_dump(mode="json", exclude_defaults=True),
        "inventory": inventory.model_dump(mode="json", exclude_defaults=True),
        "nodes": {
            node.label: {
                "host": node.host,
                "connection": node.connection,
                "ssh": inventory.node_ssh(node).model_dump(mode="json", exclude_unset=True),
            }
            for node in inventory.nodes
        },
        "plan": plan.as_json(),
    }


def recorded_verify(recorded: Mapping[str, Any]) -> Verify:
    """How the model of a recorded release shows that it answers."""
    return Verify.model_validate(recorded.get("playbook", {}).get("verify", {}))


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What a cluster has running, read off its nodes.

    Attributes:
        own: our ranks by node, whatever their state.
        foreign: ranks of other clusters by node.
        stray: ranks that carry our cluster's name but another state directory.
    """

    own: dict[str, tuple[Rank, ...]]
    foreign: dict[str, tuple[Rank, ...]]
    stray: dict[str, tuple[Rank, ...]]

    @property
    def anything(self) -> bool:
        """Whether a rank of ours is there in whatever state."""
        return any(self.own.values())

    def hashes(self) -> set[str]:
        """Plan hashes of our running ranks."""
        return {
            rank.labels.get(LABEL_PLAN, "") for ranks in self.own.values() for rank in ranks if rank.state == "running"
        }

    def runs(self, plan: Plan) -> bool:
        """Whether exactly the ranks of ``plan`` run, on every node of it and of one release, and no other."""
        if self.release() is None:
            return False
        for name, node in plan.nodes.items():
            ranks = self.own.get(name, ())
            running = [rank for rank in ranks if rank.state == "running"]
            if len(ranks) != len(running) or len(running) != len(node.containers):
                return False
            if any(rank.labels.get(LABEL_PLAN) != plan.hash for rank in running):
                return False
        return all(not ranks for name, ranks in self.own.items() if name not in plan.nodes)

    def release(self) -> int | None:
        """Release number that the running ranks carry, or None where they disagree."""
        numbers = {
            rank.labels.get(LABEL_RELEASE, "")
            for ranks in self.own.values()
            for rank in ranks
            if rank.state == "running"
        }
        only = numbers.pop() if len(numbers) == 1 else ""
        return int(only) if only.isdigit() else None


def current_lease(facts: Mapping[str, Facts]) -> LeaseFact | None:
    """The lease that is held right now on any node, or None."""
    return next((lease for one in facts.values() if (lease := read(one.lease)) is not None and lease.held), None)


def unreadable(facts: Mapping[str, Facts]) -> dict[str, str]:
    """Nodes that could not say which ranks they have, and why: none seen there is not none there."""
    return {name: one.ranks.unread for name, one in facts.items() if isinstance(one.ranks, Unread)}


def holding(cluster: str, facts: Mapping[str, Facts]) -> Holding:
    """Sort the ranks on every node into ours, other clusters' and strays."""
    own: dict[str, tuple[Rank, ...]] = {}
    foreign: dict[str, tuple[Rank, ...]] = {}
    stray: dict[str, tuple[Rank, ...]] = {}
    for name, one in facts.items():
        ranks = read(one.ranks) or ()
        mine = [rank for rank in ranks if rank.labels.get(LABEL_CLUSTER) == cluster]
        own[name] = tuple(r for r in mine if r.labels.get(LABEL_STATE_DIR) == one.state_dir)
        stray[name] = tuple(rank for rank in mine if rank not in own[name])
        foreign[name] = tuple(rank for rank in ranks if rank not in mine)
    return Holding(own, foreign, stray)
