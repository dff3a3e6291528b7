"""A cluster of two Sparks as facts, with ranks and records as a test wants them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sparkcluster import plan as planning
from sparkcluster import topology as topologies
from sparkcluster.facts import Facts
from sparkcluster.plan.model import Plan
from sparkcluster.release.records import record
from sparkcluster.spec import Spec


@dataclasses.dataclass
class World:
    """Two Sparks, alpha and beta, and what is deployed on them."""

    spec: Spec
    facts: dict[str, Facts]

    def plan(self, release: int = 1) -> Plan:
        """What ``up`` would deploy now."""
        topology = topologies.build(self.spec, self.facts)
        return planning.build(self.spec, self.facts, topology, release=release)

    def change(self, node: str, **update: Any) -> World:
        """The same with other facts of ``node``."""
        self.facts[node] = Facts.model_validate(self.facts[node].model_dump() | update)
        return self

    def run(self, plan: Plan, *nodes: str, state: str = "running", **labels: str) -> World:
        """Let the ranks of ``plan`` be there on ``nodes``, or on all of them."""
        for name in nodes or plan.nodes:
            ranks = [
                {"name": one.name, "state": state, "labels": one.labels | labels} for one in plan.nodes[name].containers
            ]
            self.change(name, ranks=[*self.facts[name].model_dump()["ranks"], *ranks])
        return self

    def record(self, plan: Plan, number: int, *nodes: str) -> World:
        """Let ``plan`` be recorded as release ``number``."""
        document = record(self.spec, plan, number=number, operator="ann@desk", verified_at=1.0, version="0")
        fact = {"number": number, "plan_hash": plan.hash, "record": document}
        for name in nodes or plan.nodes:
            if name in self.facts:
                self.change(name, release=fact)
        return self


@pytest.fixture
def world(spark: Callable[..., Any], cluster: Callable[..., Any]) -> Callable[..., World]:
    """``world(names="alpha beta", playbook={…}, **inventory)``."""

    def make(names: str = "alpha beta", **changes: Any) -> World:
        numbers = {"alpha": 11, "beta": 12, "gamma": 13}
        hosts = {name: f"192.168.86.{numbers[name]}" for name in names.split()}
        facts = {
            name: spark(
                {
                    "enp1s0f0np0": f"192.168.177.{numbers[name]}/24",
                    "enP2p1s0f0np0": f"192.168.178.{numbers[name]}/24",
                },
                management=f"{host}/24",
            )
            for name, host in hosts.items()
        }
        return World(cluster(hosts, **changes), facts)

    return make
