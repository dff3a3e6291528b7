"""The inventory: the Sparks, how to reach them, and the playbook that they serve."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import re
import shlex
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sparkcluster.spec.base import (
    BesidePath,
    Capability,
    Device,
    EnvName,
    FindingCode,
    LocalPath,
    Name,
    NodePath,
    PermittedMount,
    PlaybookKey,
    Section,
    form,
)
from sparkcluster.spec.document import shown
from sparkcluster.spec.playbook import Image, ServedName

HostKeys = Literal["reject", "accept-new"]
Connection = Literal["auto", "ssh", "local"]


def _whole(host: str) -> str:
    """``host``, a name or address; text that looks like an address must be one, without a port."""
    if ":" in host or re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(f"{host} is not an address", "a port goes under port") from None
    return host


def _subnet(rail: str) -> str:
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(rail)
        if str(network) == rail and network.num_addresses > 1:
            return rail
    raise ValueError(f"{shown(rail)} is not a subnet", "write it as 192.168.177.0/24, with host bits 0")


def _apart(rails: list[str]) -> list[str]:
    for rail, other in itertools.combinations(map(ipaddress.ip_network, rails), 2):
        if rail.overlaps(other):
            message = f"{other} overlaps {rail}: twins in one subnet hang NCCL or halve its speed"
            raise ValueError(message, "give every rail its own subnet")
    return rails


_HOST = r"^[0-9A-Za-z:][0-9A-Za-z.:%_-]*$"
Address = Annotated[str, form(_HOST, "a name or address without user and port", max_length=253), AfterValidator(_whole)]
_LISTEN = r"^(management|interconnect|[0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f.:]*)$"
Listen = Annotated[str, form(_LISTEN, "an address, management or interconnect"), AfterValidator(_whole)]
Login = Annotated[str, form(r"^[a-z_][a-z0-9_.-]*\$?$", "a login name")]
Jump = Annotated[str, form(r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:,%\[\]-]*$", "user@host:port, several with commas")]
Rails = Annotated[list[Annotated[str, AfterValidator(_subnet)]], AfterValidator(_apart)]
# Linux takes 15 characters (IFNAMSIZ - 1).
Interface = Annotated[str, form(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$", "an interface, such as enp1s0f0np0")]
Hca = Annotated[str, form(r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$", "an RDMA device, such as rocep1s0f0")]
OPEN_API = "NET-020"
"""Code of the check that an exposed API requires a key."""
_VARIABLE = re.compile(r"\$\{?SPARKCLUSTER_")
_OF_A_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>"}


def _arguments(written: Any) -> Any:
    """The arguments of a command, written as a list or as a string to split."""
    try:
        words = shlex.split(written) if isinstance(written, str) else written
    except ValueError as error:
        raise ValueError(f"must be a command: {str(error).lower()}") from None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not any(words[:1]):
        raise ValueError("must be a command: a string, or a list of strings that starts with a program")
    # sh -c "…" expands variables itself
    if isinstance(written, str) and "-c" not in words and (_OF_A_SHELL & {*words} or _VARIABLE.search(written)):
        raise ValueError("needs a shell: write it as [sh, -c, '…']")
    return words


Command = Annotated[list[str], BeforeValidator(_arguments, json_schema_input_type=str | list[str])]


class Ssh(Section):
    """How to reach a node by SSH; unset keys come from ``~/.ssh/config``, as shown by ``ssh -G``."""

    user: Login | None = Field(None, description="login name")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port of sshd")
    identity: LocalPath | None = Field(None, description="private key file on this machine")
    jump: Jump | None = Field(None, description="ProxyJump, such as user@host:port")
    known_hosts: LocalPath | None = Field(None, description="known_hosts file; default ~/.ssh/known_hosts")
    host_keys: HostKeys = Field("reject", description="unknown host keys: reject them, or store them (accept-new)")
    connect_timeout_s: float = Field(10, gt=0, le=300, description="timeout for connecting, in seconds")


class NodeInterconnect(Section):
    """Interconnect of one node; replaces discovery."""

    interfaces: list[Interface] = Field(min_length=1, description="network interfaces, one per twin in use")
    hcas: list[Hca] = Field([], description="RDMA devices of these interfaces, in order")
    gid_index: int | None = Field(None, ge=0, le=255, description="RoCE v2 GID index of all its HCAs")

    @model_validator(mode="after")
    def _paired(self) -> NodeInterconnect:
        twice = any(len(names) > len(set(names)) for names in (self.interfaces, self.hcas))
        if twice or len(self.hcas) not in {0, len(self.interfaces)}:
            message = "must list each interface once, and under hcas one RDMA device per interface, in the same order"
            raise ValueError(message, "remove hcas to derive them from the interfaces")
        return self


class Interconnect(Section):
    """The QSFP network; ``auto`` discovers it on the nodes."""

    rails: Rails = Field(min_length=1, description="subnets of the rails, such as 192.168.177.0/24")


class Node(Section):
    """One Spark."""

    host: Address = Field(description="host name or address")
    name: Name | None = Field(None, description="short name; default: the host")
    ssh: Ssh | None = Field(None, description="overrides keys of the inventory's ssh")
    connection: Connection = Field("auto", description="ssh, local (no SSH), or auto: local if host is this machine")
    interconnect: NodeInterconnect | None = Field(None, description="explicit interfaces and HCAs")
    env: dict[EnvName, str] = Field({}, description="environment of this node's ranks; overrides the playbook's")

    def __hash__(self) -> int:
        """By name and host: ``env`` has no hash."""
        return hash((self.name, self.host))

    @property
    def label(self) -> str:
        """The node's name, or its host if it has none."""
        return self.name or self.host

    @property
    def has_address(self) -> bool:
        """Whether its host is an IP address."""
        try:
            ipaddress.ip_address(self.host.partition("%")[0])
        except ValueError:
            return False
        return True


class GroupEntry(Section):
    """Nodes that together serve one copy of the model."""

    name: Name = Field(description="name of the group")
    nodes: list[str] = Field(min_length=1, description="names of its nodes; the first is the head")


class OnDemand(Section):
    """A model that is loaded by the first request and stopped when idle."""

    idle_s: float = Field(1200, ge=10, le=31_536_000, description="stop after this many seconds without a request")


class ModelEntry(Section):
    """One of several models on the same Sparks."""

    playbook: str = Field(min_length=1, max_length=1024, description="playbook of the model, by name or path")
    name: Name | None = Field(
        None, description="name for --model, also a suffix of its cluster name; default: the playbook's name"
    )
    nodes: list[str] = Field([], description="names of its nodes, head first; default: all")
    groups: list[GroupEntry] = Field([], description="replicas of the model, instead of nodes")
    image: Image | None = Field(None, description="container image; replaces the playbook's")
    set: dict[PlaybookKey, Any] = Field({}, description="playbook keys to override")
    aliases: list[ServedName] = Field([], max_length=64, description="additional names of the model in the API")
    port: int | None = Field(None, ge=1, le=65535, description="TCP port; default: the next free port from api.port")
    victim: int | None = Field(
        None, ge=1, le=64, description="order in which models are stopped when memory runs out: 1 first; default: last"
    )
    on_demand: OnDemand | None = Field(
        None, description="load on the first request and stop when idle; {} for defaults; needs gateway"
    )


class ApiKey(Section):
    """Source of the API key; the key itself is never written in the inventory."""

    env: EnvName | None = Field(None, description="environment variable on this machine that holds the key")
    file: LocalPath | None = Field(None, description="file on this machine that contains only the key")

    @model_validator(mode="after")
    def _one_source(self) -> ApiKey:
        if (self.env is None) == (self.file is None):
            raise ValueError("must have either env or file")
        return self


class GatewayKey(ApiKey):
    """An additional key, for clients that may use some of the models."""

    models: list[str] | None = Field(None, min_length=1, description="names of the models that it allows; default: all")


class Gateway(Section):
    """One endpoint for all models, at ``api.host`` on one node; engines listen on loopback or the interconnect."""

    port: int = Field(8000, ge=1, le=65535, description="TCP port of the gateway, which no engine gets")
    image: Image | None = Field(
        None, description="image with aiohttp and prometheus_client; default: image of a model on the gateway's node"
    )
    keys: dict[Name, GatewayKey] = Field({}, max_length=64, description="more keys, each {env or file, models: [NAME]}")


def bracketed(address: str) -> str:
    """``address`` for URLs and ``ssh -L``."""
    return f"[{address}]" if ":" in address else address


class Api(Section):
    """The OpenAI-compatible endpoint, on the head of each group or on the gateway's node."""

    host: Listen = Field("127.0.0.1", description="address; management or interconnect: the head's address there")
    port: int = Field(8000, ge=1, le=65535, description="TCP port of the first model; 7999 if the gateway has 8000")
    key: ApiKey | None = Field(None, description="key that clients must send; default: none")

    @property
    def for_nodes_only(self) -> bool:
        """Whether it listens on the interconnect, which only nodes can reach."""
        return self.host == "interconnect"

    @property
    def open_without_key(self) -> bool:
        """Whether it requires no key and is reachable beyond loopback and the interconnect."""
        if self.key is not None or self.for_nodes_only:
            return False
        return self.host == "management" or not ipaddress.ip_address(self.host).is_loopback

    def addresses(self, management: str | None, interconnect: str | None) -> tuple[str | None, str | None]:
        """Listening address on a head with these addresses, and the address for clients; None if unknown."""
        named = {"management": management, "interconnect": interconnect}
        if self.host in named:
            return named[self.host], named[self.host]
        return self.host, (management or "127.0.0.1") if ipaddress.ip_address(self.host).is_unspecified else self.host

    def url(self, address: str) -> str:
        """The API's URL at ``address``."""
        return f"http://{bracketed(address)}:{self.port}/v1"


class Runtime(Section):
    """How ranks run: in containers, or as processes on machines without Docker."""

    kind: Literal["docker", "process"] = Field("docker", description="docker, or process (without a container)")
    python: NodePath | None = Field(None, description="process only: the engine's Python; default: the node's")

    @model_validator(mode="after")
    def _without_container(self) -> Runtime:
        if self.kind == "docker" and self.python is not None:
            raise ValueError("python applies to kind: process only; containers use the image's Python", "remove python")
        return self


class Staging(Section):
    """How ``stage`` and ``up`` copy weights between nodes; flags of ``stage`` override it."""

    encrypt: bool = Field(False, description="encrypt copies over cables, too; for switches shared with others")
    limit_mb_s: float | None = Field(
        None, ge=0.001, le=1_000_000, description="maximum send rate of each node, in 10^6 bytes per second"
    )


class Permit(Section):
    """What a playbook may do beyond serving; everything else is refused."""

    mounts: list[PermittedMount] = Field([], description="directories of the nodes; with :rw at the end, writable")
    capabilities: list[Capability] = Field([], description="Linux capabilities in addition to SYS_NICE")
    devices: list[Device] = Field([], description="device files of the nodes")
    secrets: list[EnvName] = Field([], description="environment variables on this machine")
    builds: list[BesidePath] = Field([], description="build contexts of the playbook; builds run as root on a node")


ONLY_GROUP = "default"
"""Name of the group of all nodes if the inventory has no groups."""


class Inventory(Section):
    """The cluster."""

    cluster: Name = Field(description="name of the cluster, in labels and paths on the nodes")
    nodes: list[Node] = Field(min_length=1, description="the Sparks")
    ssh: Ssh = Field(default_factory=Ssh, description="defaults for every node")
    interconnect: Literal["auto"] | Interconnect = Field(
        "auto", description="the QSFP network: auto discovers it; a mapping lists its rails"
    )
    playbook: str = Field(
        min_length=1,
        max_length=1024,
        description="name, path or Hugging Face model of the playbook; searched in the inventory's directory, then "
        "among bundled playbooks; for several models, use models instead",
    )
    image: Image | None = Field(None, description="container image; replaces the playbook's")
    set: dict[PlaybookKey, Any] = Field({}, description="playbook keys to override, such as args.max-model-len: 65536")
    groups: list[GroupEntry] = Field([], description="replicas; every node is in one; default: one group of all nodes")
    models: list[ModelEntry] = Field(
        [], max_length=64, description="several models; replaces playbook, image, set and groups"
    )
    gateway: Gateway | None = Field(None, description="one endpoint for all models; needs models")
    runtime: Runtime = Field(default_factory=Runtime, description="how ranks run on a node")
    api: Api = Field(default_factory=Api, description="where the endpoint of each group listens")
    hf_home: NodePath = Field("~/.cache/huggingface", description="Hugging Face cache on every node")
    state_dir: NodePath = Field("~/.local/state/sparkcluster", description="records and caches on every node")
    staging: Staging = Field(default_factory=Staging, description="how weights are copied between nodes")
    permit: Permit = Field(default_factory=Permit, description="what the playbook may do beyond serving")
    after_ready: list[Command] = Field(
        [],
        max_length=64,
        description="commands that run on this machine after a verified change: each a list of arguments, or a string "
        "to split; without a shell",
    )
    after_ready_timeout_s: float = Field(60, gt=0, le=86_400, description="timeout of each command, in seconds")
    on_event: Command | None = Field(
        None,
        description="command that the guard on a head runs when its group is dead or hangs, a rank was killed to free "
        "memory, the guard gave up, or a load on demand failed: a list of arguments, or a string to split; without a "
        "shell",
    )
    ignore: list[FindingCode] = Field([], description="accepted findings: errors become warnings, warnings become info")

    @property
    def selected(self) -> dict[str, Any]:
        """The selection of the inventory: ``playbook`` and overridden keys, including ``image``."""
        return {"playbook": self.playbook, **({"image": self.image} if self.image else {}), **self.set}

    @property
    def group_sizes(self) -> Collection[int]:
        """Numbers of nodes of its groups."""
        return {len(group.nodes) for group in self.groups} or {len(self.nodes)}

    def called(self, group: str) -> str:
        """Display name of ``group``: the cluster name for an implicit group."""
        return group if self.groups or group != ONLY_GROUP else self.cluster

    def node_env(self, label: str) -> dict[str, str]:
        """Environment of one node's ranks from the inventory."""
        return next((node.env for node in self.nodes if node.label == label), {})

    def node_ssh(self, node: Node) -> Ssh:
        """The SSH section of ``node``, merged over the inventory's."""
        overrides = node.ssh.model_dump(exclude_unset=True) if node.ssh else {}
        return Ssh.model_validate({**self.ssh.model_dump(exclude_unset=True), **overrides})
