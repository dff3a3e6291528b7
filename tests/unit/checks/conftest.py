"""Facts of a cluster of healthy Sparks; a test breaks one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import CATALOGUE, Context, load
from sparkcluster.facts.docker import Rank
from sparkcluster.findings import Finding
from sparkcluster.node.shared import LABEL_CLUSTER, LABEL_RANK

load()

PORT_0 = ("enp1s0f0np0", "enP2p1s0f0np0")


def rails(number: int) -> dict[str, str]:
    """Both twins of port 0 of node ``number``, each in a separate subnet."""
    return {PORT_0[0]: f"192.168.177.{number}/24", PORT_0[1]: f"192.168.178.{number}/24"}


def reported(findings: Sequence[Finding]) -> list[tuple[str, str, str | None]]:
    """Code, severity and node of each finding."""
    return sorted((finding.code, finding.severity, finding.node) for finding in findings)


@pytest.fixture
def see(spark: Callable[..., Any], cluster: Callable[..., Any]) -> Callable[..., list[Finding]]:
    """Findings from the facts of ``names``.

    Args of the returned function:
        changes: facts to replace, by node.
        described: arguments of ``describe``, by node.
        playbook, inventory: keys over the plain ones.
    """

    def look(
        changes: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        names: Sequence[str] = ("alpha", "beta"),
        described: Mapping[str, Mapping[str, Any]] | None = None,
        playbook: Mapping[str, Any] | None = None,
        **inventory: Any,
    ) -> list[Finding]:
        facts = {}
        for number, name in enumerate(names, 11):
            own = {"rails": rails(number), "management": f"192.168.86.{number}/24", **(described or {}).get(name, {})}
            facts[name] = spark(**own).model_copy(update=dict((changes or {}).get(name, {})))
        hosts = {name: f"192.168.86.{number}" for number, name in enumerate(names, 11)}
        spec = cluster(hosts, playbook=playbook, **inventory)
        findings = checks.run_stage(Context(spec, facts, topology.build(spec, facts)), ("facts",))
        order = ("info", "warning", "error")
        for finding in findings:
            if finding.code in CATALOGUE:
                assert order.index(finding.severity) <= order.index(CATALOGUE[finding.code].severity), finding
            assert finding.remedy, finding
            assert finding.seen, finding
            assert not finding.summary.endswith("."), finding
        return findings

    return look


def running_rank(cluster: str) -> Rank:
    """The running first rank of ``cluster``."""
    labels = {LABEL_CLUSTER: cluster, LABEL_RANK: "0"}
    return Rank(name=f"sparkcluster-{cluster}-1-r0", state="running", pid=4711, labels=labels)
