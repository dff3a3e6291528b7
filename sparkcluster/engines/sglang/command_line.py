"""The command line of a rank."""

from __future__ import annotations

from sparkcluster.engines.base import Rank
from sparkcluster.engines.sglang import WATCHDOG, WATCHDOG_S
from sparkcluster.engines.sglang.flags import NEGATED, arguments
from sparkcluster.engines.words import flag


def serve(rank: Rank) -> list[str]:
    """Implements ``Engine.serve``; a complete ``command`` in the playbook replaces the command.

    Every rank but the first starts a server for probes only (``launch_dummy_health_check_server`` in utils/common.py).
    It listens on the loopback, since the address of the API belongs to the head.
    """
    playbook, group, member = rank.playbook, rank.group, rank.member
    if playbook.command is not None:
        return list(playbook.command)
    argv = [rank.python or "python3", "-m", "sglang.launch_server", "--model-path", rank.model]
    if playbook.model.id is not None and playbook.model.revision != "main":
        argv += ["--revision", playbook.model.revision]
    host = group.api_host if member.rank == 0 else "127.0.0.1"
    argv += ["--served-model-name", playbook.model_name, "--host", host, "--port", str(group.api_port)]
    argv += ["--tp-size", str(rank.tensor_parallel), "--pp-size", str(playbook.pipeline_parallel)]
    if rank.executor == "native":
        argv += ["--nnodes", str(len(group.members)), "--node-rank", str(member.rank)]
        argv += ["--dist-init-addr", f"{group.head.address}:{group.master_port}"]
    argv += ["--enable-metrics", f"--{WATCHDOG}", str(max(WATCHDOG_S, int(playbook.ready_timeout_s)))]
    args = arguments(playbook).items()
    return argv + [word for name, value in args for word in flag(name, value, negation=name in NEGATED)]
