"""Two or more nodes on this machine's loopback, each with its rails, as facts and as hosts."""

from __future__ import annotations

import os

import pytest

from sparkcluster import topology
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost

# Ports of a launch are fixed, and tests run concurrently.
NET = f"127.{1 + os.getpid() % 250}"
PORTS = ("enp1s0f1np1", "enP2p1s0f1np1")


class Loopback:
    """``names`` on 77.0/24 and 78.0/24 of ``NET``, from .11 on."""

    def __init__(self, spec, facts):
        self.spec = spec
        self.facts = facts
        self.topology = topology.build(spec, facts)
        self.fleet = Fleet({name: LocalHost(name) for name in facts})

    def change(self, name, **facts):
        self.facts[name] = self.facts[name].model_copy(update=facts)


@pytest.fixture
def loopback(spark, cluster, tmp_path):
    def make(*names, playbook=None, rails=2, **described):
        facts = {
            name: spark(
                {port: f"{NET}.{77 + rail}.{11 + place}/24" for rail, port in enumerate(PORTS[:rails])},
                management=f"192.168.86.{11 + place}/24",
                **described,
            )
            for place, name in enumerate(names)
        }
        hosts = {name: f"192.168.86.{11 + place}" for place, name in enumerate(names)}
        return Loopback(cluster(hosts, playbook=playbook, state_dir=str(tmp_path)), facts)

    return make
