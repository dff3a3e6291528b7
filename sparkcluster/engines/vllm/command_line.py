"""The command line of a rank."""

from __future__ import annotations

from sparkcluster.engines.base import Rank
from sparkcluster.engines.words import flag, program
from sparkcluster.spec.playbook import Playbook


def serve(rank: Rank) -> list[str]:
    """Command that serves the playbook's model on ``rank``.

    With Ray only the head runs it; with vLLM's own multi-node backend every rank runs it, with the same arguments. A
    ``command`` in the playbook replaces it.
    """
    playbook, group, member = rank.playbook, rank.group, rank.member
    if playbook.command is not None:
        return list(playbook.command)
    argv = [program("vllm", rank.python), "serve", rank.model]
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


def arguments(playbook: Playbook) -> list[str]:
    """The playbook's ``args`` as flags, in its order."""
    return [word for name, value in playbook.args.items() for word in flag(name.replace("_", "-"), value)]
