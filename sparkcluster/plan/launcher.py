"""The launcher document of a rank, which ``node/launcher.py`` reads."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from sparkcluster.plan import ray
from sparkcluster.topology.model import Group, Member
from sparkcluster.topology.parallel import Executor

# Once the containers run, a rank joins within seconds; an image that unpacks lazily takes minutes.
JOIN_TIMEOUT_S = 300


def build(
    cluster: str,
    group: Group,
    member: Member,
    *,
    runtime: str,
    executor: Executor,
    engine: Sequence[str],
    model: dict[str, str],
    setup: Sequence[str],
    carry_over: Sequence[str],
    token: bool,
    ray_path: str | None,
) -> dict[str, Any]:
    """The launcher document of one rank.

    Args:
        cluster: its name.
        group: the member's group.
        member: the rank.
        runtime: ``docker`` or ``process``; only in a container may the launcher change what is installed.
        executor: what joins the ranks.
        engine: the engine's command; of a Ray worker its program alone, by which the launcher finds the
            Python that has Ray.
        model: ``path``, or ``id`` and ``revision`` in Hugging Face's cache: what /sparkcluster/model is linked to.
        setup: the playbook's shell lines.
        carry_over: names of variables that stay as this node has them.
        token: whether Ray requires a token.
        ray_path: directory with a Ray that was brought along, as the rank sees it.
    """
    address = f"{group.head.address}:{group.ray_port}"
    return {
        "version": 1,
        "cluster": cluster,
        "group": group.name,
        "node": member.name,
        "rank": member.rank,
        "role": "head" if member.rank == 0 else "worker",
        "runtime": runtime,
        "executor": executor,
        "address": member.address,
        "members": [peer.address for peer in group.members],
        "ray": {
            "port": group.ray_port,
            "address": address,
            "start": ray.start(group, member),
            "token": token,
        }
        if executor == "ray"
        else None,
        # Ports that may listen on every address, as the inventory says; no other port may.
        "open_ports": [group.api_port] if ipaddress.ip_address(group.api_host).is_unspecified else [],
        "join_timeout_s": JOIN_TIMEOUT_S,
        "engine": list(engine),
        "model": model,
        "setup": list(setup),
        "carry_over": list(carry_over),
        "ptxas": runtime == "docker",
        "ray_path": ray_path,
    }
