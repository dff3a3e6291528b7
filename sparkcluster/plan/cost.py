"""The cost of each difference between the running group and the present spec. Pure.

::

    class      what differs                                                cost
    image      the image                                                   download if a node lacks it, else restart
    weights    model, revision, companion repositories                     download if a node lacks it, else restart
    arguments  engine flags, environment, options of the container,        restart; download if a node lacks files
               members of the group                                        that they need
    secrets    names and values of secrets                                 restart
    addresses  addresses, interfaces and GID indices                       restart
    text       verify, and descriptive keys                                nothing

``restart``: the group restarts, and is unavailable for seconds to minutes. ``download``: files are copied while the
group serves, then it restarts. ``nothing``: no restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from sparkcluster.facts.base import read
from sparkcluster.facts.engine import expected_images
from sparkcluster.facts.model import Facts
from sparkcluster.facts.weights import Weights
from sparkcluster.plan.diff import Change, Class
from sparkcluster.plan.image import has_brought_ray, without_ray
from sparkcluster.report import count
from sparkcluster.spec import Spec
from sparkcluster.topology import vocabularies
from sparkcluster.topology.model import Topology

Cost = Literal["nothing", "restart", "download"]
# Descriptive keys of a playbook; other keys affect the plan, or locate the playbook.
TEXT = ("description", "use", "purposes", "source", "overlays", "goal", "figures", "request", "allow")


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """Differences of one class in one group, with their cost.

    Attributes:
        kind: the class.
        lines: one per difference.
    """

    kind: Class
    group: str
    lines: tuple[str, ...]
    cost: Cost

    def as_json(self) -> dict[str, Any]:
        """The difference as JSON."""
        return {"class": self.kind, "group": self.group, "lines": list(self.lines), "cost": self.cost}

    @property
    def brief(self) -> str:
        """The first line, the number of others, and the cost."""
        more = f", and {count(len(self.lines) - 1, 'more line')}" if len(self.lines) > 1 else ""
        return f"{self.lines[0]}{more}  ({self.kind}: {self.cost})"

    def shown(self) -> list[str]:
        """All lines with class and cost."""
        return [f"{line}  ({self.kind}: {self.cost})" for line in self.lines]


def classed(group: str, changes: Sequence[Change], missing: Collection[Class]) -> tuple[Difference, ...]:
    """``changes`` of a group by class, with their costs; ``missing`` is from ``missing_on``.

    If a node lacks files of a class that has no restarting difference here, every restart costs a download.
    """
    restarting = {change.kind for change in changes if change.restarts}
    unclaimed = set(missing) - restarting
    found = []
    for kind in get_args(Class):
        lines = tuple(change.text for change in changes if change.kind == kind)
        cost: Cost = "download" if unclaimed or kind in missing else "restart"
        if lines:
            found.append(Difference(kind, group, lines, cost if kind in restarting else "nothing"))
    return tuple(found)


def edited(recorded: Mapping[str, Any], spec: Spec, *, verify: bool) -> list[Change]:
    """Edits of the ``recorded`` playbook that need no restart; ``verify``: whether that section was edited."""
    now = spec.playbook.model_dump(mode="json", exclude_defaults=True)
    names = [name for name in TEXT if recorded.get(name) != now.get(name)] if recorded else []
    return [
        Change("text", f"{name} in the playbook was edited", restarts=False)
        for name in [*(["verify"] if verify else []), *names]
    ]


def missing_on(
    spec: Spec, facts: Mapping[str, Facts], topology: Topology, names: Sequence[str], *, bring_ray: bool
) -> set[Class]:
    """Classes of files that a node in ``names`` lacks: image, weights, or files that arguments need."""
    nodes = {name: facts[name] for name in names if name in facts}
    missing: set[Class] = set()
    there = expected_images(spec, facts, topology.by_rank)
    if spec.inventory.runtime.kind == "docker" and nodes.keys() - there.keys():
        missing.add("image")
    if not all(_has_weights(spec, node) for node in nodes.values()) or len(_revisions(nodes)) > 1:
        missing.add("weights")
    rays = [name for name in without_ray(spec, facts, topology) if name in nodes] if bring_ray else []
    if (
        any(vocabularies.lacking(spec, node) for node in nodes.values())
        or any(each.mark not in node.files for each in spec.files.values() for node in nodes.values())
        or not all(has_brought_ray(nodes[name]) for name in rays)
    ):
        missing.add("arguments")
    return missing


def _has_weights(spec: Spec, node: Facts) -> bool:
    """Whether a node has the complete model and its companion repositories."""
    beside = read(node.companions) or {}
    loaded = [read(node.weights), *(beside.get(str(each.id)) for each in spec.playbook.companions)]
    return all(isinstance(weights, Weights) and weights.complete for weights in loaded)


def _revisions(nodes: Mapping[str, Facts]) -> set[str | None]:
    return {weights.revision for node in nodes.values() if (weights := read(node.weights)) is not None}
