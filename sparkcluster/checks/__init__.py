"""What would make a launch fail, found before it: pure checks over spec, facts and topology."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.checks import host, image, network
from sparkcluster.checks.registry import CATALOGUE, Check, Context, run
from sparkcluster.facts.model import Facts
from sparkcluster.findings import Finding
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Topology

__all__ = ["CATALOGUE", "Check", "check_hosts", "host", "image", "network", "run_checks"]


def run_checks(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> list[Finding]:
    """Findings of every check, the gravest first.

    Args:
        spec: what the user wrote; its ``allow`` and ``ignore`` soften findings.
        facts: by name of node.
        topology: who sits where.
    """
    return run(Context(spec, facts, topology), CATALOGUE.values())


def check_hosts(spec: Spec, facts: Mapping[str, Facts]) -> list[Finding]:
    """Findings of what can be said of each node alone, where the others did not answer."""
    nothing = Topology(cluster=spec.inventory.cluster, groups=(), rails=())
    alone = [one for one in CATALOGUE.values() if one.body.__module__ == host.__name__]
    return run(Context(spec, facts, nothing), alone)
