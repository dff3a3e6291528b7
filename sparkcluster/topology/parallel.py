"""How a model is distributed over a group's nodes, and by which executor. A Spark has one GPU: one rank per node."""

from __future__ import annotations

from sparkcluster import engines
from sparkcluster.engines.base import Executor
from sparkcluster.errors import PlanError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.engine import has_ray
from sparkcluster.spec.playbook import Playbook
from sparkcluster.topology.model import Group


def tensor_parallel(playbook: Playbook, group: str, nodes: int) -> int:
    """Tensor parallel size for a group of ``nodes``, which pipeline and data parallel sizes must divide.

    Raises:
        PlanError: the product differs from the number of nodes.
    """
    others = playbook.parts
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
    """The executor that connects the ranks; a single rank needs none.

    Raises:
        PlanError: the engine supports only one node, or the playbook requires Ray and it is missing.
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
        hint = "put each node into its own group in the inventory"
        why = f": {serving.alone}" if serving.alone else ""
        raise PlanError(f"{serving.title} runs on one node, but a group has {nodes}{why}", step="plan", hint=hint)
    missing = {"ray": "no Ray", "native": "no multi-node backend"}.get(playbook.executor, "neither")
    raise PlanError(
        f"playbook {playbook.name} requires executor {playbook.executor}, but its engine has {missing}",
        step="plan",
        hint="set executor: auto in the playbook, which uses an available backend",
    )


def rendezvous(
    playbook: Playbook, group: Group, engine: EngineFacts | None, *, bring_ray: bool
) -> tuple[int, str] | None:
    """The head's port at which the ranks of ``group`` connect, and the program that uses it; None without one."""
    try:
        joined_by = executor(playbook, engine, nodes=group.size, bring_ray=bring_ray)
    except PlanError:
        return None
    return {"ray": (group.ray_port, "Ray"), "native": (group.master_port, "the engine's rendezvous")}.get(joined_by)
