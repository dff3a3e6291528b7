"""Whether Ray is brought to an image without one: decided from facts alone, so that two looks agree."""

from __future__ import annotations

from collections.abc import Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts, ReleaseFact
from sparkcluster.plan.image import has_brought_ray, without_ray
from sparkcluster.release.records import Holding
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.staging import Copied
from sparkcluster.staging import ray as staging
from sparkcluster.topology.model import Topology


def decided(
    spec: Spec, facts: Mapping[str, Facts], topology: Topology, held: Holding, newest: ReleaseFact | None
) -> bool:
    """Whether the ranks will meet in a Ray that is brought to them. Pure.

    With executor ``ray`` there is no other way. With ``auto`` what runs and is recorded was decided when it was
    started, and is not decided anew: nobody wants another plan because a package index answers today. Otherwise
    Ray is brought if a node has it, since the others can copy it; and as long as nothing runs, it is
    expected to be had.
    """
    wanting = without_ray(spec, facts, topology)
    if not wanting:
        return False
    if spec.playbook.executor == "ray":
        return True
    if newest is not None and held.hashes() == {newest.plan_hash}:
        return recorded(newest)
    return any(has_brought_ray(facts[name]) for name in wanting) or not held.anything


def recorded(release: ReleaseFact) -> bool:
    """Whether the ranks of ``release`` got a Ray that was brought to them."""
    nodes = release.record.get("plan", {}).get("nodes", {})
    return any(one["launcher"].get("ray_path") for node in nodes.values() for one in node["containers"])


def bring(changer: Changer, spec: Spec, facts: Mapping[str, Facts], topology: Topology, report: Report) -> list[Copied]:
    """Bring Ray to the nodes of ``topology`` that lack it; what was copied.

    Raises:
        StageError: it cannot be had, or does not reach a node.
    """
    lacking = staging.lacking(spec, facts, topology)
    if lacking is None or not lacking.missing:
        return []
    report.step("ray", f"{lacking.name} for {', '.join(name for name, _ in lacking.missing)}")
    return staging.bring(changer, facts, topology, lacking, progress=report.progress)


def can_do_without(spec: Spec, error: StageError) -> bool:
    """Whether vLLM's own multi-node backend may take Ray's place, where Ray could not be fetched.

    Not where it could not be brought from here to a node: that is to be mended, not avoided.
    """
    return spec.playbook.executor == "auto" and error.node is None
