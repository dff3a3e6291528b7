"""The plan's types. A plan holds no secret and no volatile fact; its hash is over what it would do."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection
from typing import Any, Literal

Role = Literal["head", "worker"]


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerPlan:
    """One rank.

    Attributes:
        name: container name; carries cluster and release, so that nothing is ever renamed.
        image: local image ID, or None with runtime ``process``.
        argv: the complete command that is executed on the node; of secrets the names only.
        launcher: the document that the launcher inside reads (rank, addresses, engine command, names of
            variables that must not be carried over); mounted as a file.
        rank_dir: directory on the node with launcher, entry program and log.
        directories: directories on the node that have to exist before, as caches and mounts of ours.
        env_file: file on the node (mode 0600) that the secrets are written to, or None without secrets.
        labels: what the rank is labelled with: io.sparkcluster.cluster, group, node, rank, release, plan,
            state_dir, rank_dir and runtime; and drain_s where it lets requests finish when it is stopped.
        roots: of each path of the node that the playbook names, the directory that it has to be in when links are
            resolved.
        shared: those of ``directories`` that a user who is not root writes to in the container.
    """

    name: str
    image: str | None
    argv: tuple[str, ...]
    launcher: dict[str, Any]
    rank_dir: str
    directories: tuple[str, ...] = ()
    env_file: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    roots: dict[str, str] = dataclasses.field(default_factory=dict)
    shared: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node runs.

    Attributes:
        env: variables of the rank without secrets.
        secrets: names of variables that are set from a file that only the node's user may read.
    """

    node: str
    group: str
    role: Role
    rank: int
    env: dict[str, str]
    secrets: tuple[str, ...]
    containers: tuple[ContainerPlan, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupPlan:
    """One replica.

    Attributes:
        hash: over what its nodes would do; its ranks are labelled with it.
    """

    name: str
    nodes: tuple[str, ...]
    endpoint: str
    executor: Literal["none", "ray", "native"]
    hash: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything that ``up`` will run."""

    cluster: str
    engine: str
    model: str
    image: str | None
    groups: tuple[GroupPlan, ...]
    nodes: dict[str, NodePlan]

    @property
    def hash(self) -> str:
        """Of a single group its own, else over those of all groups."""
        hashes = [group.hash for group in self.groups]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    @property
    def secrets(self) -> set[str]:
        """Names of the secrets of all nodes."""
        return {name for node in self.nodes.values() for name in node.secrets}

    def of_groups(self, names: Collection[str]) -> Plan:
        """The plan of some of its groups."""
        groups = tuple(group for group in self.groups if group.name in names)
        nodes = {name: node for name, node in self.nodes.items() if node.group in names}
        return dataclasses.replace(self, groups=groups, nodes=nodes)

    def as_json(self) -> dict[str, Any]:
        """The plan in the shape that other programs may rely on."""
        return {
            "cluster": self.cluster,
            "hash": self.hash,
            "model": self.model,
            "image": self.image,
            "endpoints": {group.name: group.endpoint for group in self.groups},
            "groups": [list(group.nodes) for group in self.groups],
            "nodes": {
                name: {
                    **_part(node, "group", "role", "rank", "env", "secrets"),
                    "containers": [_part(r, "name", "image", "argv", "launcher", "env_file") for r in node.containers],
                }
                for name, node in self.nodes.items()
            },
        }


def _part(planned: NodePlan | ContainerPlan, *names: str) -> dict[str, Any]:
    values = {name: getattr(planned, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
