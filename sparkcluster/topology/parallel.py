"""How a model is spread over a group's nodes, and by which executor. A Spark has one GPU: one rank a node."""

from __future__ import annotations

from sparkcluster import engines
from sparkcluster.engines.base import Executor
from sparkcluster.errors import PlanError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.engine import has_ray
from sparkcluster.spec.playbook import Playbook
from sparkcluster.topology.model import Group


def tensor_parallel(playbook: Playbook, group: str, nodes: int) -> int:
    """Tensor parallel size for a group of ``nodes``: with those of pipeline and data its product is their number.

    Raises:
        PlanError: they do not come out at the number of nodes.
    """
    data = playbook.args.get("data-parallel-size", 1)
    others = playbook.pipeline_parallel * (data if isinstance(data, int) else 1)
    tensor = max(1, nodes // others) if playbook.tensor_parallel == "auto" else playbook.tensor_parallel
    if tensor * others != nodes:
        raise PlanError(
            f"playbook {playbook.name} needs {tensor * others} nodes "
            f"(tensor parallel {tensor}, pipeline parallel {playbook.pipeline_parallel}), "
            f"group {group} has {nodes}",
            step="plan",
            hint="set tensor_parallel: auto in the playbook, or change the group in the inventory",
        )
    return tensor


def executor(playbook: Playbook, engine: EngineFacts | None, *, nodes: int, bring_ray: bool) -> Executor:
    """What joins the ranks; a single rank needs nothing.

    Raises:
        PlanError: the engine serves on one node only, or the playbook requires Ray and there is none.
    """
    if nodes == 1:
        return "none"
    serving = engines.engine(playbook.engine)
    usable: list[Executor] = [name for name in ("ray", "native") if name in serving.executors]
    if "ray" in usable and not (bring_ray or has_ray(engine)):
        usable.remove("ray")
    if playbook.executor in usable:
        return playbook.executor
    if usable and playbook.executor == "auto":
        return usable[0]
    if not serving.executors:
        hint = "in the inventory, give each node a group of its own"
        why = f": {serving.alone}" if serving.alone else ""
        raise PlanError(f"{serving.title} serves on one node, and a group has {nodes}{why}", step="plan", hint=hint)
    missing = {"ray": "no Ray", "native": "no multi-node backend"}.get(playbook.executor, "neither")
    raise PlanError(
        f"playbook {playbook.name} requires executor {playbook.executor}, but its engine has {missing}",
        step="plan",
        hint="set executor: auto in the playbook, which uses the backend that it has",
    )


def rendezvous(
    playbook: Playbook, group: Group, engine: EngineFacts | None, *, bring_ray: bool
) -> tuple[int, str] | None:
    """The port of the head at which the ranks of ``group`` meet, and whose it is; None where they need or have none."""
    try:
        joined_by = executor(playbook, engine, nodes=group.size, bring_ray=bring_ray)
    except PlanError:
        return None
    return {"ray": (group.ray_port, "Ray"), "native": (group.master_port, "the engine's rendezvous")}.get(joined_by)
