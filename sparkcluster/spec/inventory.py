"""The inventory: which Sparks there are, how to reach them, and which playbook they serve."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sparkcluster.spec.base import EnvName, FindingCode, LocalPath, Name, NodePath, Section

HostKeys = Literal["reject", "accept-new"]
Connection = Literal["auto", "ssh", "local"]
Address = Annotated[str, Field(pattern=r"^[0-9A-Za-z:][0-9A-Za-z.:%_-]*$", max_length=253)]
# Linux takes 15 characters (IFNAMSIZ - 1).
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$")]
Hca = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$")]


class Ssh(Section):
    """How to reach a node by SSH; what is left out comes from ``~/.ssh/config``, as ``ssh -G`` has it."""

    user: str | None = Field(None, pattern=r"^[a-z_][a-z0-9_.-]*\$?$", description="login name")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port of sshd")
    identity: LocalPath | None = Field(None, description="private key file; ~ is expanded here")
    jump: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,%\[\]-]*$", description="ProxyJump, as user@host:port"
    )
    known_hosts: LocalPath | None = Field(None, description="known_hosts file; default ~/.ssh/known_hosts")
    host_keys: HostKeys = Field(
        "reject", description="what to do with a host key never seen: refuse it, or store it (accept-new)"
    )
    connect_timeout_s: float = Field(10, gt=0, le=300, description="limit for connecting, in seconds")


class NodeInterconnect(Section):
    """Explicit interconnect of one node, for who knows better than the discovery."""

    interfaces: list[Interface] = Field(min_length=1, description="network interfaces, one per twin in use")
    hcas: list[Hca] = Field(default_factory=list, description="RDMA devices of these interfaces, in order")
    gid_index: int | None = Field(None, ge=0, le=255, description="RoCE v2 GID index that all its HCAs share")


class Interconnect(Section):
    """The QSFP network; ``auto`` finds it from what the nodes say of themselves."""

    rails: list[str] = Field(min_length=1, description="subnets of the rails, as 192.168.177.0/24")


class Node(Section):
    """One Spark."""

    host: Address = Field(description="name or address by which it is reached")
    name: Name | None = Field(None, description="short name; default: host")
    ssh: Ssh | None = Field(None, description="overrides of the inventory's ssh section, key by key")
    connection: Connection = Field(
        "auto", description="ssh, local (no SSH), or auto: local when the address is this machine's"
    )
    interconnect: NodeInterconnect | None = Field(None, description="explicit interfaces and HCAs")

    @property
    def label(self) -> str:
        """The node's name, or its host where none was given."""
        return self.name or self.host


class Group(Section):
    """Nodes that hold one tensor-parallel model together."""

    name: Name = Field(description="name of the group")
    nodes: list[str] = Field(min_length=1, description="names of its nodes; the first is the head")


class ApiKey(Section):
    """Where the API key comes from; never written into the inventory itself."""

    env: EnvName | None = Field(None, description="environment variable of the controller that holds the key")
    file: LocalPath | None = Field(None, description="file on the controller that holds the key alone")

    @model_validator(mode="after")
    def _one_source(self) -> ApiKey:
        if (self.env is None) == (self.file is None):
            raise ValueError("give either env or file")
        return self


class Api(Section):
    """Where the OpenAI-compatible endpoint listens, on the head of each group."""

    host: str = Field(
        "127.0.0.1",
        pattern=r"^(management|interconnect|[0-9A-Fa-f.:]+)$",
        description="address to listen on; 'management' or 'interconnect' stand for the head's own",
    )
    port: int = Field(8000, ge=1, le=65535, description="TCP port of the endpoint")
    key: ApiKey | None = Field(None, description="key that clients have to show; default: none is asked for")


class Runtime(Section):
    """What holds a rank: a container, or for machines without Docker a plain process."""

    kind: Literal["docker", "process"] = Field("docker", description="docker, or process: no container at all")
    python: NodePath | None = Field(None, description="process only: the engine's Python; default: the node's")


class Inventory(Section):
    """What the cluster is."""

    cluster: Name = Field(description="name of the cluster; labels on the nodes carry it")
    nodes: list[Node] = Field(min_length=1, description="the Sparks")
    ssh: Ssh = Field(default_factory=lambda: Ssh.model_validate({}), description="defaults for every node")
    interconnect: Literal["auto"] | Interconnect = Field(
        "auto", description="the QSFP network: auto finds it, a section names its rails"
    )
    playbook: str = Field(
        min_length=1,
        max_length=1024,
        description="name or path; looked up beside the inventory, then among the bundled",
    )
    groups: list[Group] = Field(default_factory=list, description="default: one group over all nodes")
    runtime: Runtime = Field(
        default_factory=lambda: Runtime.model_validate({}), description="what holds a rank on a node"
    )
    api: Api = Field(
        default_factory=lambda: Api.model_validate({}), description="where the endpoint of each group listens"
    )
    hf_home: NodePath = Field("~/.cache/huggingface", description="Hugging Face cache on every node")
    state_dir: NodePath = Field("~/.local/state/sparkcluster", description="where records lie on every node")
    ignore: list[FindingCode] = Field(default_factory=list, description="codes of findings that shall not stop")

    def node_ssh(self, node: Node) -> Ssh:
        """The SSH section that holds for ``node``: its own keys over the inventory's."""
        own = node.ssh.model_dump(exclude_unset=True) if node.ssh else {}
        return Ssh.model_validate({**self.ssh.model_dump(exclude_unset=True), **own})
