"""Types of the plan. A plan contains no secrets and no volatile facts; its hash covers its actions."""

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
        name: container name, which includes cluster and release, so that containers are never renamed.
        image: local image ID, or None with runtime ``process``.
        argv: complete command to execute on the node; with names of secrets only.
        launcher: document for the launcher in the container (rank, addresses, engine command, names of variables that
            must not be carried over); mounted as a file.
        rank_dir: directory on the node with launcher, entry program and log.
        directories: directories on the node that must exist before the start.
        env_file: file on the node (mode 0600) for the secrets, or None without secrets.
        labels: labels of the rank: io.sparkcluster.cluster, group, node, rank, release, plan, state_dir, rank_dir and
            runtime; and drain_s if it drains requests when stopped.
        roots: by path of the node that the playbook names, the directory that must contain it after links are resolved.
        shared: the ``directories`` that a user other than root writes to in the container.
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
        secrets: names of variables that are set from a file with mode 0600.
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
    """A group, which serves one replica of the model.

    Attributes:
        hash: hash of its nodes' actions, with which its ranks are labelled.
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
        """The hash of a single group, else a hash of all groups' hashes."""
        hashes = [group.hash for group in self.groups]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    @property
    def secrets(self) -> set[str]:
        """Names of the secrets of all nodes."""
        return {name for node in self.nodes.values() for name in node.secrets}

    def of_groups(self, names: Collection[str]) -> Plan:
        """The plan of the groups in ``names``."""
        groups = tuple(group for group in self.groups if group.name in names)
        nodes = {name: node for name, node in self.nodes.items() if node.group in names}
        return dataclasses.replace(self, groups=groups, nodes=nodes)

    def as_json(self) -> dict[str, Any]:
        """The plan in its stable JSON form."""
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
