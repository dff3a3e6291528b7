"""From a playbook and what is known of its model to an answer: the one way by which command, check and plan ask."""

from __future__ import annotations

import dataclasses
import math

from sparkcluster.engines.vllm import arguments
from sparkcluster.engines.vllm.fit import GIB, Fit, Machine, fit
from sparkcluster.errors import UsageError
from sparkcluster.models import weights
from sparkcluster.models.config import ModelConfig, parse
from sparkcluster.models.given import Source
from sparkcluster.models.weights import Weights
from sparkcluster.spec.playbook import Playbook


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A playbook's memory on one node.

    Attributes:
        playbook: its name.
        auto: whether the utilization was left to us.
        left_out: what is not counted, and should be thought of.
    """

    playbook: str
    config: ModelConfig
    fit: Fit
    auto: bool
    left_out: tuple[str, ...] = ()

    def parts(self) -> list[tuple[str, str, int]]:
        """A node's memory as sign, name and bytes of each part, in order; they add up to what is installed."""
        one = self.fit
        firmware = one.machine.installed_bytes - one.machine.visible_bytes
        kept = ("W", "weights" + ("" if one.weights.measured else ", estimated"), one.weights.rank_bytes)
        runs = ("r", "a step, driver, CUDA graphs (estimate)", one.runtime_bytes)
        if one.pool_bytes < 0:
            return [kept, runs]
        pool = ("K", "KV cache", one.pool_bytes)
        host = ("h", "the engine's processes (estimate)", one.host_bytes)
        rest = max(0, one.left_bytes)
        system = ("s", "system", min(rest, one.machine.system_bytes))
        free = (".", "free", rest - system[2])
        return [kept, runs, pool, host, system, free, ("x", "kept by firmware", firmware)]


def nodes_of(playbook: Playbook) -> int:
    """Nodes that a playbook asks for by itself: its tensor parallel size, where it has one, by its stages."""
    tensor = 1 if playbook.tensor_parallel == "auto" else playbook.tensor_parallel
    return tensor * playbook.pipeline_parallel


def of_playbook(
    written: Playbook,
    model: Source,
    machine: Machine,
    *,
    nodes: int = 1,
    version: str | None = None,
    context: int | None = None,
    wanted: int = 1,
    size_bytes: int | None = None,
) -> Planned:
    """What a playbook needs on each of ``nodes``.

    Args:
        written: the playbook.
        model: its config.json, and its tensors where they are known.
        machine: memory of each node.
        nodes: that share the model.
        version: of vLLM, where it is known.
        context: in place of --max-model-len.
        wanted: requests of full context at once.
        size_bytes: of the checkpoint's files, where nothing else is known of its tensors.

    Raises:
        UsageError: the model is not known, or cannot be started so.
    """
    config = parse(model.config, model.name)
    stages = written.pipeline_parallel
    if nodes % stages:
        raise UsageError(
            f"pipeline_parallel {stages} does not divide {nodes} nodes", hint="set --nodes to a multiple of it"
        )
    engine = arguments.engine(written, config, ranks=nodes // stages, stages=stages, version=version, context=context)
    drafts = engine.own_drafts
    held: Weights
    if model.tensors is not None:
        held = weights.counted(model.tensors, config, ranks=engine.ranks, stages=stages, drafts=drafts)
    elif size_bytes:
        held = weights.of_size(size_bytes, ranks=engine.ranks, stages=stages)
    else:
        held = weights.estimated(config, ranks=engine.ranks, stages=stages, drafts=drafts)
    auto = arguments.wants_auto(written)
    taken = None if auto else arguments.utilization(written, engine.version)
    left_out = []
    if not held.measured:
        left_out.append("weights are estimated from config.json alone: --config DIR with the tensors counts them")
    if arguments.draft_model(written):
        left_out.append(f"weights and cache of the draft model {arguments.draft_model(written)} are not counted")
    pool = arguments.pool_bytes(written)
    found = fit(config, engine, held, machine, utilization=taken, wanted=wanted, pool_bytes=pool)
    return Planned(written.name, config, found, auto, tuple(left_out))


def automatic_utilization(
    written: Playbook, model: Source, total_bytes: int, *, nodes: int, version: str | None, size_bytes: int | None
) -> float:
    """--gpu-memory-utilization in place of ``auto``: the smallest that holds --max-num-seqs requests of full context.

    Nothing that changes by itself is asked: of memory only what is built in, in whole GiB, so that another kernel of
    the same node comes to the same figure. ``MARGIN`` is for what a step needs, which is an estimate.

    Args:
        written: the playbook.
        model: as :func:`of_playbook`.
        total_bytes: MemTotal of the smallest node.
        nodes: that share the model.
        version: of vLLM, where it is known.
        size_bytes: of the checkpoint's files, as :func:`of_playbook`.

    Raises:
        UsageError: it does not fit, or the model is not known.
    """
    visible = total_bytes // GIB * GIB
    machine = Machine(visible, visible)
    wanted = arguments.asked(written)
    planned = of_playbook(written, model, machine, nodes=nodes, version=version, wanted=wanted, size_bytes=size_bytes)
    taken = math.ceil((planned.fit.smallest + MARGIN) * 100) / 100
    if planned.fit.problems or taken > MOST:
        told = planned.fit.problems or (f"it takes gpu-memory-utilization {taken:.2f}, and {MOST:.2f} is safe",)
        raise UsageError(
            f"{written.name} does not fit with {wanted} requests at once: {told[0]}",
            hint=(planned.fit.advice or ("set max-num-seqs or max-model-len lower in the playbook",))[0],
        )
    return taken


MARGIN = 0.02
MOST = 0.90
