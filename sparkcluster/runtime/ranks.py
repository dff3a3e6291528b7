"""Builds the steps that start and stop ranks. Pure functions; the agent on the node runs the steps."""

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
"""Limit in seconds for requests in flight to finish, whatever a label says."""


def stop_limit_s(rank: Rank, *, drain: bool = True) -> int:
    """Seconds from SIGTERM to SIGKILL of ``rank``; with ``drain`` they include the time for its requests to finish."""
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
    the hashes by which a later ``up`` recognizes them. ``kept_secrets`` is the number of a kept release: secrets
    that are missing in ``secrets`` are restored from it.
    """
    steps: list[Step] = []
    for rank in node.containers:
        steps += [{"do": "mkdir", "path": path, "shared": path in rank.shared} for path in rank.directories]
        launcher = {**rank.launcher, "secrets": hashes}
        contents = {LAUNCHER_FILE: json.dumps(launcher, sort_keys=True), ENTRY_FILE: entry}
        # The user of the container reads it, who may differ from the user who writes it.
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
    """The step that starts ``rank`` of ``node`` after its files are written."""
    start = {"name": rank.name, "argv": list(rank.argv), "rank_dir": rank.rank_dir}
    if rank.image is not None:
        return {"do": "start-container", **start, "roots": rank.roots}
    settings = {"env": dict(node.env), "env_file": rank.env_file, "labels": dict(rank.labels)}
    return {"do": "start-process", **start, **settings}


def stop_steps(ranks: Iterable[Rank], *, drain: bool = True) -> list[Step]:
    """Steps that stop and remove ``ranks`` of one node, of any runtime; ``drain`` as in ``stop_limit_s``."""
    ranks = list(ranks)
    grace_s = max((stop_limit_s(rank, drain=drain) for rank in ranks), default=GRACE_S)
    directories = [rank.labels.get(LABEL_RANK_DIR, "") for rank in ranks if rank.labels.get(LABEL_RUNTIME) == "process"]
    containers = [rank.name for rank in ranks if rank.labels.get(LABEL_RUNTIME) != "process"]
    return [{"do": "stop", "containers": containers, "processes": directories, "grace_s": grace_s}] if ranks else []
