"""A planned cluster for the tests of this folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sparkcluster import plan as planning
from sparkcluster import topology as topologies
from sparkcluster.plan.model import Plan
from sparkcluster.release.readiness import Readiness
from sparkcluster.topology.model import Topology


@dataclasses.dataclass
class Planned:
    """The inputs of a launch."""

    plan: Plan
    topology: Topology

    def rank(self, node: str) -> str:
        """Name of the only rank of ``node``."""
        return self.plan.nodes[node].containers[0].name

    def link(self, node: str) -> str:
        """Name of an interface that ``node`` needs."""
        return self.topology.members[node].links[0].interface


@pytest.fixture
def planned(spark: Callable[..., Any], cluster: Callable[..., Any]) -> Callable[..., Planned]:
    """``planned()`` is a group of alpha (head) and beta; ``planned(groups=2)`` two groups of two."""

    def make(groups: int = 1, **playbook: Any) -> Planned:
        names = ("alpha", "beta", "gamma", "delta")[: 2 * groups]
        hosts = {name: f"192.168.86.{11 + at}" for at, name in enumerate(names)}
        facts = {
            name: spark(
                {"enp1s0f0np0": f"192.168.177.{11 + at}/24", "enP2p1s0f0np0": f"192.168.178.{11 + at}/24"},
                management=f"{hosts[name]}/24",
            )
            for at, name in enumerate(names)
        }
        pairs = [{"name": f"g{at}", "nodes": list(names[2 * at : 2 * at + 2])} for at in range(groups)]
        spec = cluster(hosts, playbook=playbook, groups=pairs)
        topology = topologies.build(spec, facts)
        return Planned(planning.build(spec, facts, topology, release=4), topology)

    return make


@pytest.fixture
def two(planned: Callable[..., Planned]) -> Planned:
    """A group of alpha and beta."""
    return planned()


@pytest.fixture
def launch(two: Planned) -> Readiness:
    """The launch of that group, from second 100."""
    return Readiness(two.plan, two.topology, now=100.0)
