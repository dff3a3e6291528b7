"""The command line of a rank."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from sparkcluster.engines.base import Rank
from sparkcluster.spec.playbook import ArgumentValue, Playbook


def serve(rank: Rank) -> list[str]:
    """Command that serves the playbook's model on ``rank``.

    With Ray only the head runs it; with vLLM's own multi-node backend every rank does, with the same arguments
    everywhere. A whole ``command`` in the playbook takes its place.
    """
    playbook, group, member = rank.playbook, rank.group, rank.member
    if playbook.command is not None:
        return list(playbook.command)
    argv = [program(rank.python), "serve", rank.model]
    if playbook.model.id is not None and playbook.model.revision != "main":
        argv += ["--revision", playbook.model.revision]
    argv += ["--host", group.api_host, "--port", str(group.api_port)]
    argv += ["--served-model-name", playbook.model_name, *playbook.aliases]
    argv += ["--tensor-parallel-size", str(rank.tensor_parallel)]
    argv += ["--pipeline-parallel-size", str(rank.playbook.pipeline_parallel)]
    if rank.executor == "ray":
        argv += ["--distributed-executor-backend", "ray"]
    elif rank.executor == "native":
        argv += ["--distributed-executor-backend", "mp", "--nnodes", str(len(group.members))]
        argv += ["--node-rank", str(member.rank)]
        argv += ["--master-addr", group.head.address, "--master-port", str(group.master_port)]
    argv += arguments(playbook)
    if rank.executor == "native" and member.rank > 0:
        argv.append("--headless")
    return argv


def program(python: str | None) -> str:
    """How vLLM is called: the script beside its Python, which need not be on PATH."""
    directory = PurePosixPath(python or "").parent
    return str(directory / "vllm") if directory.is_absolute() else "vllm"


def arguments(playbook: Playbook) -> list[str]:
    """The playbook's ``args`` as flags, in its order."""
    return [word for name, value in playbook.args.items() for word in flag(name.replace("_", "-"), value)]


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
