"""The inventory: which Sparks, how to reach them, and which playbook they serve."""

from __future__ import annotations

import ipaddress
import shlex
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparkcluster.spec.base import (
    BesidePath,
    Capability,
    Device,
    EnvName,
    FindingCode,
    LocalPath,
    Name,
    NodePath,
    Section,
)

HostKeys = Literal["reject", "accept-new"]
Connection = Literal["auto", "ssh", "local"]
Address = Annotated[str, Field(pattern=r"^[0-9A-Za-z:][0-9A-Za-z.:%_-]*$", max_length=253)]
# Linux takes 15 characters (IFNAMSIZ - 1).
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$")]
PermittedMount = Annotated[str, Field(pattern=r'^(/|~$|~/)[^\x00-\x1f\x7f,:"]*(:rw)?$', max_length=1024)]
Hca = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]
OPEN_API = "NET-020"
"""Code of the check that an API which is open to the network requires a key."""
_OF_A_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>"}


def _arguments(written: Any) -> Any:
    """The arguments of a command that is written as a list of them, or as a string that is split into them."""
    words = written
    if isinstance(written, str):
        try:
            words = shlex.split(written)
        except ValueError as error:
            raise ValueError(f"must be a command: {str(error).lower()}") from None
        # sh -c "…" expands them itself
        used = "-c" not in words and (_OF_A_SHELL & set(words) or "$SPARKCLUSTER_" in written.replace("{", ""))
        if used:
            raise ValueError("needs a shell, and none runs it: write it as [sh, -c, '…']")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a command: a string, or a list of strings")
    if not words or not words[0]:
        raise ValueError("needs a program")
    if any("\0" in word for word in words):
        raise ValueError("must not contain a null character")
    return words


Command = Annotated[list[str], BeforeValidator(_arguments, json_schema_input_type=str | list[str])]


class Ssh(Section):
    """How to reach a node by SSH; unset keys come from ``~/.ssh/config``, as ``ssh -G`` prints it."""

    user: str | None = Field(None, pattern=r"^[a-z_][a-z0-9_.-]*\$?$", description="login name")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port of sshd")
    identity: LocalPath | None = Field(None, description="private key file on the controller")
    jump: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,%\[\]-]*$", description="ProxyJump, such as user@host:port"
    )
    known_hosts: LocalPath | None = Field(None, description="known_hosts file; default ~/.ssh/known_hosts")
    host_keys: HostKeys = Field(
        "reject", description="what to do with an unknown host key: reject it, or store it (accept-new)"
    )
    connect_timeout_s: float = Field(10, gt=0, le=300, description="timeout for connecting, in seconds")


class NodeInterconnect(Section):
    """Interconnect of one node, instead of the discovered one."""

    interfaces: list[Interface] = Field(min_length=1, description="network interfaces, one for each twin in use")
    hcas: list[Hca] = Field(default_factory=list, description="RDMA devices of these interfaces, in order")
    gid_index: int | None = Field(None, ge=0, le=255, description="RoCE v2 GID index of all its HCAs")


class Interconnect(Section):
    """The QSFP network; ``auto`` discovers it on the nodes."""

    rails: list[str] = Field(min_length=1, description="subnets of the rails, such as 192.168.177.0/24")


class Node(Section):
    """One Spark."""

    host: Address = Field(description="host name or address")
    name: Name | None = Field(None, description="short name; default: the host")
    ssh: Ssh | None = Field(None, description="overrides of the inventory's ssh section")
    connection: Connection = Field(
        "auto", description="ssh, local (no SSH), or auto: local if host is this machine's address or hostname"
    )
    interconnect: NodeInterconnect | None = Field(None, description="explicit interfaces and HCAs")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="environment of this node's ranks, over the playbook's"
    )

    def __hash__(self) -> int:
        """By name and host: ``env`` has no hash."""
        return hash((self.name, self.host))

    @property
    def label(self) -> str:
        """The node's name, or its host if it has none."""
        return self.name or self.host

    @property
    def has_address(self) -> bool:
        """Whether its host is an address, which needs no resolver."""
        try:
            ipaddress.ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        return True


class Group(Section):
    """Nodes that serve one tensor-parallel model together."""

    name: Name = Field(description="name of the group")
    nodes: list[str] = Field(min_length=1, description="names of its nodes; the first is the head")


class ApiKey(Section):
    """Source of the API key, which is never written in the inventory."""

    env: EnvName | None = Field(None, description="environment variable of the controller that holds the key")
    file: LocalPath | None = Field(None, description="file on the controller that holds only the key")

    @model_validator(mode="after")
    def _one_source(self) -> ApiKey:
        if (self.env is None) == (self.file is None):
            raise ValueError("must have either env or file")
        return self


class Api(Section):
    """Where the OpenAI-compatible endpoint listens on the head of each group."""

    host: str = Field(
        "127.0.0.1",
        pattern=r"^(management|interconnect|[0-9A-Fa-f.:]+)$",
        description="address to listen on, or management or interconnect for the head's address there",
    )
    port: int = Field(8000, ge=1, le=65535, description="TCP port of the endpoint")
    key: ApiKey | None = Field(None, description="key that clients must send; default: none")

    @property
    def open_without_key(self) -> bool:
        """Whether it requires no key, and listens on more than loopback and the interconnect."""
        if self.key is not None or self.host == "interconnect":
            return False
        return self.host == "management" or not ipaddress.ip_address(self.host).is_loopback


class Runtime(Section):
    """How a rank runs: in a container, or as a process on machines without Docker."""

    kind: Literal["docker", "process"] = Field("docker", description="docker, or process: without a container")
    python: NodePath | None = Field(None, description="process only: the engine's Python; default: the node's")


class Staging(Section):
    """How weights go from node to node, in ``stage`` and ``up``; flags of ``stage`` come first."""

    encrypt: bool = Field(False, description="encrypt them on the cables too, for who shares the switch with others")
    limit_mb_s: float | None = Field(
        None, ge=0.001, le=1_000_000, description="the most that each node sends, in 10^6 bytes per second"
    )


class Permit(Section):
    """What a playbook may have beyond what serving needs; nothing else permits it."""

    mounts: list[PermittedMount] = Field(
        default_factory=list, description="directories of the nodes, and all below; writable if it ends in :rw"
    )
    capabilities: list[Capability] = Field(default_factory=list, description="Linux capabilities beside SYS_NICE")
    devices: list[Device] = Field(default_factory=list, description="device files of the nodes")
    secrets: list[EnvName] = Field(default_factory=list, description="variables of the controller's environment")
    builds: list[BesidePath] = Field(
        default_factory=list,
        description="build contexts of the playbook, as it names them: what they run is root there",
    )


class Inventory(Section):
    """The cluster."""

    cluster: Name = Field(description="name of the cluster, in labels and paths on the nodes")
    nodes: list[Node] = Field(min_length=1, description="the Sparks")
    ssh: Ssh = Field(default_factory=Ssh, description="defaults for every node")
    interconnect: Literal["auto"] | Interconnect = Field(
        "auto", description="the QSFP network: auto discovers it, a section lists its rails"
    )
    playbook: str = Field(
        min_length=1,
        max_length=1024,
        description="name, path or model on Hugging Face; searched beside the inventory, then among the bundled ones",
    )
    groups: list[Group] = Field(default_factory=list, description="default: one group of all nodes")
    runtime: Runtime = Field(default_factory=Runtime, description="how a rank runs on a node")
    api: Api = Field(default_factory=Api, description="where the endpoint of each group listens")
    hf_home: NodePath = Field("~/.cache/huggingface", description="Hugging Face cache on every node")
    state_dir: NodePath = Field(
        "~/.local/state/sparkcluster", description="directory for records and caches on every node"
    )
    staging: Staging = Field(default_factory=Staging, description="how weights go from node to node")
    permit: Permit = Field(default_factory=Permit, description="what the playbook may have beyond serving")
    after_ready: list[Command] = Field(
        default_factory=list,
        max_length=64,
        description="commands for the controller to run after a change that ended verified: each a list of arguments, "
        "or a string that is split into them; without a shell",
    )
    after_ready_timeout_s: float = Field(
        60, gt=0, le=86_400, description="timeout of each of these commands, in seconds"
    )
    ignore: list[FindingCode] = Field(
        default_factory=list,
        description="codes of findings to ignore: their errors count as warnings, their warnings as notes",
    )

    def node_env(self, label: str) -> dict[str, str]:
        """Variables that the inventory sets for the ranks of one node."""
        return next((node.env for node in self.nodes if node.label == label), {})

    def node_ssh(self, node: Node) -> Ssh:
        """The SSH section of ``node``: its keys over the inventory's."""
        overrides = node.ssh.model_dump(exclude_unset=True) if node.ssh else {}
        return Ssh.model_validate({**self.ssh.model_dump(exclude_unset=True), **overrides})
