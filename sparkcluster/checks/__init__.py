"""Pure checks over spec, facts and topology that find what would make a launch fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparkcluster.checks import (  # noqa: F401 - each registers its checks
    access,
    bandwidth,
    crossed,
    disks,
    docker,
    gpu,
    hashes,
    host,
    hostnames,
    image,
    image_rdma,
    kernel,
    members,
    memory,
    model,
    network,
    playbook,
    reachability,
    running,
    symptoms,
    twins,
    versions,
)
from sparkcluster.checks.registry import CATALOGUE, Context, Stage, load, run
from sparkcluster.facts.model import Facts
from sparkcluster.findings import Finding
from sparkcluster.spec import Spec
from sparkcluster.topology.model import EMPTY, Topology

# Modules whose checks judge each node by itself.
ALONE = {module.__name__ for module in (disks, docker, gpu, host, memory)}


def run_checks(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> list[Finding]:
    """Findings of every check that needs only facts, errors first; ``allow`` and ``ignore`` lower severities."""
    return run_stage(Context(spec, facts, topology), ("written", "facts"))


def run_stage(context: Context, stages: Collection[Stage]) -> list[Finding]:
    """Findings of the checks of ``stages``, errors first."""
    name = context.spec.playbook.engine
    load(name)
    chosen = (check for check in CATALOGUE.values() if check.stage in stages and check.engine in {None, name})
    return run(context, chosen)


def check_written(spec: Spec) -> list[Finding]:
    """Findings about inventory and playbook, without contacting a node."""
    return run_stage(Context(spec, {}, EMPTY), ["written"])


def check_hosts(spec: Spec, facts: Mapping[str, Facts]) -> list[Finding]:
    """Findings about each node by itself, if no topology can be made."""
    alone = [check for check in CATALOGUE.values() if check.body.__module__ in ALONE]
    return run(Context(spec, facts, EMPTY), alone)
