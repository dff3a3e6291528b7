"""The engine's command line, under vLLM's own flag names."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sparkcluster.errors import PlanError
from sparkcluster.spec.playbook import ArgumentValue, Playbook
from sparkcluster.topology.model import Group, Member
from sparkcluster.topology.parallel import Executor, Parallel

# Flags that follow from inventory, topology and the playbook's own keys, and where each is set.
OURS = {
    "model": "model in the playbook",
    "revision": "model.revision in the playbook",
    "host": "api.host in the inventory",
    "port": "api.port in the inventory",
    "api-key": "api.key in the inventory, which keeps it out of every command line",
    "served-model-name": "served_name in the playbook",
    "tensor-parallel-size": "tensor_parallel in the playbook",
    "pipeline-parallel-size": "pipeline_parallel in the playbook",
    "distributed-executor-backend": "executor in the playbook",
    "nnodes": "groups in the inventory",
    "node-rank": "groups in the inventory",
    "master-addr": "groups in the inventory",
    "master-port": "groups in the inventory",
    "headless": "groups in the inventory",
}


def serve(
    playbook: Playbook,
    group: Group,
    member: Member,
    parallel: Parallel,
    *,
    program: Sequence[str],
    model: str,
    executor: Executor,
) -> list[str]:
    """Command that serves the playbook's model on ``member``.

    With Ray only the head runs it; with vLLM's own multi-node backend every rank does, with the same engine
    flags everywhere. A whole ``command`` in the playbook takes its place.

    Args:
        playbook: what to serve.
        group: the member's group.
        member: the rank that runs the command.
        parallel: tensor and pipeline parallel size.
        program: how vLLM is called, without ``serve``.
        model: repository or directory, as the engine sees it.
        executor: what joins the ranks.

    Raises:
        PlanError: an argument belongs to another key.
    """
    if playbook.command is not None:
        return list(playbook.command)
    argv = [*program, "serve", model]
    if playbook.model.id is not None and playbook.model.revision != "main":
        argv += ["--revision", playbook.model.revision]
    argv += ["--host", group.api_host, "--port", str(group.api_port)]
    argv += ["--served-model-name", playbook.model_name]
    argv += ["--tensor-parallel-size", str(parallel.tensor)]
    argv += ["--pipeline-parallel-size", str(parallel.pipeline)]
    if executor == "ray":
        argv += ["--distributed-executor-backend", "ray"]
    elif executor == "native":
        argv += ["--distributed-executor-backend", "mp", "--nnodes", str(len(group.members))]
        argv += ["--node-rank", str(member.rank)]
        argv += ["--master-addr", group.head.address, "--master-port", str(group.master_port)]
    argv += arguments(playbook)
    if executor == "native" and member.rank > 0:
        argv.append("--headless")
    return argv


def arguments(playbook: Playbook) -> list[str]:
    """The playbook's ``args`` as flags, in its order.

    Raises:
        PlanError: an argument belongs to another key.
    """
    argv: list[str] = []
    for written, value in playbook.args.items():
        name = written.replace("_", "-")
        if name in OURS:
            raise PlanError(
                f"args of playbook {playbook.name} may not hold {written}",
                step="plan",
                hint=f"set {OURS[name]} instead",
            )
        argv += flag(name, value)
    return argv


def flag(name: str, value: ArgumentValue) -> list[str]:
    """One argument: true is the bare flag, false its negation, null nothing, a mapping compact JSON."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    text = str(value)
    # argparse would take a value that begins with a dash for the next flag.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
