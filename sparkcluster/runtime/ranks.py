"""Steps that start and stop ranks. Pure; the agent on the node carries them out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sparkcluster.facts.docker import Rank
from sparkcluster.node.shared import (
    BIND_FILE,
    ENTRY_FILE,
    GRACE_S,
    LABEL_DRAIN,
    LABEL_RANK_DIR,
    LABEL_RUNTIME,
    LAUNCHER_FILE,
)
from sparkcluster.plan.model import ContainerPlan, NodePlan
from sparkcluster.runtime.change import Step

DRAIN_MOST_S = 600
"""The most seconds that requests in flight get before these, whatever a label says."""


def stop_limit_s(rank: Rank, *, drain: bool = True) -> int:
    """Seconds from SIGTERM to SIGKILL of ``rank``; with ``drain`` also those in which its requests may finish."""
    label = rank.labels.get(LABEL_DRAIN, "")
    drains = drain and rank.state == "running" and label.isdecimal() and len(label) < 10
    return (min(int(label), DRAIN_MOST_S) if drains else 0) + GRACE_S


def start_steps(
    node: NodePlan,
    *,
    entry: str,
    secrets: Mapping[str, str],
    hashes: Mapping[str, Any],
    kept_secrets: int | None = None,
) -> list[Step]:
    """Steps that start every rank of ``node``.

    ``entry`` is the source of the launcher program, ``secrets`` the values of ``node.secrets`` by name, and ``hashes``
    what a later ``up`` recognizes them by. With ``kept_secrets``, the number of a kept release, values that
    ``secrets`` has not are those that the node kept of it.
    """
    steps: list[Step] = []
    for rank in node.containers:
        steps += [{"do": "mkdir", "path": path, "shared": path in rank.shared} for path in rank.directories]
        launcher = {**rank.launcher, "secrets": hashes}
        contents = {LAUNCHER_FILE: json.dumps(launcher, sort_keys=True), ENTRY_FILE: entry}
        # Read by the user of the container, who need not be the one that writes them.
        steps += [
            {"do": "put", "path": f"{rank.rank_dir}/{name}", "content": text, "mode": 0o644}
            for name, text in contents.items()
        ]
        if len(rank.launcher["members"]) > 1:
            steps.append({"do": "build-library", "path": f"{rank.rank_dir}/{BIND_FILE}"})
        if rank.env_file and kept_secrets is not None:
            values = {name: secrets[name] for name in node.secrets if name in secrets}
            step = {"do": "restore-secrets", "number": kept_secrets, "path": rank.env_file}
            steps.append({**step, "names": list(node.secrets), "values": values})
        elif rank.env_file:
            lines = "".join(f"{name}={secrets[name]}\n" for name in node.secrets)
            steps.append({"do": "put", "path": rank.env_file, "content": lines, "mode": 0o600})
        steps.append(start_step(node, rank))
    return steps


def start_step(node: NodePlan, rank: ContainerPlan) -> Step:
    """The step that starts ``rank`` of ``node``, once its files are there."""
    start = {"name": rank.name, "argv": list(rank.argv), "rank_dir": rank.rank_dir}
    if rank.image is not None:
        return {"do": "start-container", **start, "roots": rank.roots}
    settings = {"env": dict(node.env), "env_file": rank.env_file, "labels": dict(rank.labels)}
    return {"do": "start-process", **start, **settings}


def stop_steps(ranks: Iterable[Rank], *, drain: bool = True) -> list[Step]:
    """Steps that stop and remove ``ranks`` of one node, whichever runtime holds them; ``drain`` as ``stop_limit_s``."""
    ranks = list(ranks)
    grace_s = max((stop_limit_s(rank, drain=drain) for rank in ranks), default=GRACE_S)
    directories = [rank.labels.get(LABEL_RANK_DIR, "") for rank in ranks if rank.labels.get(LABEL_RUNTIME) == "process"]
    containers = [rank.name for rank in ranks if rank.labels.get(LABEL_RUNTIME) != "process"]
    return [{"do": "stop", "containers": containers, "processes": directories, "grace_s": grace_s}] if ranks else []
