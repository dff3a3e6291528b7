"""Ray for nodes whose image lacks it, as a step of ``up`` and ``stage``."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.staging import ray as staging
from sparkcluster.staging.run import Copied
from sparkcluster.topology.model import Topology


def bring(changer: Changer, spec: Spec, facts: Mapping[str, Facts], topology: Topology, report: Report) -> list[Copied]:
    """Copy Ray to the nodes of ``topology`` that lack it; what was copied.

    Raises:
        StageError: it could not be fetched, or did not reach a node.
    """
    lacking = staging.find_missing(spec, facts, topology)
    if lacking is None or not lacking.missing:
        return []
    report.step("ray", f"{lacking.name} for {', '.join(name for name, _ in lacking.missing)}")
    return staging.stage(changer, facts, topology, lacking, progress=report.progress)


def can_do_without(spec: Spec, error: StageError) -> bool:
    """Whether executor native may replace Ray where it could not be fetched.

    Not where a copy to a node failed: that is an error to fix.
    """
    return spec.playbook.executor == "auto" and error.node is None
