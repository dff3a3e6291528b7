"""What would make a launch fail, found before it: pure checks over spec, facts and topology."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparkcluster.checks import (  # noqa: F401 - each registers its checks
    access,
    bandwidth,
    disks,
    docker,
    gpu,
    hashes,
    host,
    hostnames,
    image,
    memory,
    model,
    network,
    playbook,
    reachability,
    running,
    twins,
    versions,
)
from sparkcluster.checks.registry import CATALOGUE, Check, Context, Stage, load, run
from sparkcluster.facts.model import Facts
from sparkcluster.findings import Finding
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Topology

__all__ = ["CATALOGUE", "Check", "Context", "check_hosts", "check_written", "run_checks", "run_stage"]

# Whose checks judge one node without the others.
ALONE = {module.__name__ for module in (disks, docker, gpu, host, memory)}

BEFORE: tuple[Stage, ...] = ("written", "facts")


def run_checks(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> list[Finding]:
    """Findings of every check that needs one look at the nodes and no more, the gravest first.

    Args:
        spec: what the user wrote; its ``allow`` and ``ignore`` soften findings.
        facts: by name of node.
        topology: who sits where.
    """
    return run_stage(Context(spec, facts, topology), BEFORE)


def run_stage(context: Context, stages: Collection[Stage]) -> list[Finding]:
    """Findings of the checks of ``stages``, the gravest first."""
    name = context.spec.playbook.engine
    load(name)
    return run(context, (one for one in CATALOGUE.values() if one.stage in stages and one.engine in {None, name}))


def check_written(spec: Spec) -> list[Finding]:
    """Findings about what the user wrote, with no node asked."""
    only: tuple[Stage, ...] = ("written",)
    return run_stage(Context(spec, {}, _nothing(spec)), only)


def check_hosts(spec: Spec, facts: Mapping[str, Facts]) -> list[Finding]:
    """Findings of what can be said of each node alone, where the others did not answer."""
    alone = [one for one in CATALOGUE.values() if one.body.__module__ in ALONE]
    return run(Context(spec, facts, _nothing(spec)), alone)


def _nothing(spec: Spec) -> Topology:
    return Topology(cluster=spec.inventory.cluster, groups=(), rails=())
