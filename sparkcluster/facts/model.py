"""Typed facts. A value that could not be read is an ``Unread`` with the reason, never a default."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sparkcluster.facts.record import Number, PlannedContainer, PlannedNode, RankName, Record, Time

T = TypeVar("T")


def _valid(parse: Callable[[str], object]) -> AfterValidator:
    """Accepts texts that ``parse`` does not raise for, as they are."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


Few = Annotated[tuple[T, ...], Field(max_length=1024)]
"""As many as one machine can have of anything that is compared with all others."""
Many = Annotated[tuple[T, ...], Field(max_length=65_536)]
Device = Annotated[str, Field(pattern=r"^[^\s/\x00-\x1f]{1,64}$")]
"""Name of an interface or HCA."""
Path = Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]*$", max_length=4096)]
Port = Annotated[int, Field(ge=0, le=65_535)]
ImageId = Annotated[str, Field(pattern=r"^(sha256:)?[0-9A-Za-z]{1,128}$")]
Version = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=128)]
Prefix = Annotated[str, _valid(ipaddress.IPv4Interface)]


class Fact(BaseModel):
    """Base of all facts: immutable; unknown keys of a newer probe are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_max_length=1 << 16, allow_inf_nan=False)


class Unread(Fact):
    """A value that could not be read, and why; in JSON ``{"unread": "why"}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    unread: str


def read(value: T | Unread) -> T | None:
    """``value``, or None if it could not be read."""
    return None if isinstance(value, Unread) else value


class PythonFacts(Fact):
    """The interpreter that ran the probe."""

    executable: str
    version: Version


class OsRelease(Fact):
    """``/etc/os-release``."""

    id: str
    version: Version
    pretty_name: str


class Dgx(Fact):
    """``/etc/dgx-release`` without the serial number."""

    name: str
    platform: str | None = None
    ota_version: Version | None = None
    swbuild_version: Version | None = None


class Gpu(Fact):
    """One line of nvidia-smi; a GB10 prints ``[N/A]`` for memory, which is None here.

    ``temperature_c`` and ``vbios`` are None if the driver does not support the field.
    """

    name: str
    compute_capability: Version | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    utilization_percent: float | None = None
    temperature_c: float | None = None
    vbios: Version | None = None


class Memory(Fact):
    """``/proc/meminfo`` in bytes. CUDA can allocate MemFree; MemAvailable includes page cache, which it cannot.

    ``cma_total_bytes`` is the contiguous area for RDMA: 131072 kB on a Spark, 0 on a 7.0 kernel without ``kho=off``,
    None if the kernel does not report it.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    cached_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int
    cma_total_bytes: int | None = None


class Disk(Fact):
    """The file system of one path; ``purpose`` is state, hf_home or docker (the images)."""

    purpose: Literal["state", "hf_home", "docker"]
    path: str
    total_bytes: int
    free_bytes: int


class Docker(Fact):
    """The Docker engine, from its API.

    Attributes:
        images_dir: directory of its images: that of containerd if it stores them, else ``root_dir``.
        cdi_driver: driver version whose libraries the CDI specification mounts, None if no file names one.
        cgroup_driver: systemd or cgroupfs.
    """

    version: Version
    storage_driver: str
    root_dir: str
    images_dir: str = ""
    runtimes: Few[str]
    cdi_devices: Few[str] = ()
    containerd_store: bool = False
    snap: bool = False
    cdi_driver: Version | None = None
    cgroup_driver: str | None = None


class Interface(Fact):
    """One network interface; ``addresses`` are IPv4 with prefix, such as 192.168.177.11/24."""

    name: Device
    mac: str
    operstate: str
    carrier: bool
    mtu: int
    speed_mbps: int | None = None
    addresses: Few[Prefix] = ()
    phys_port_name: str | None = None
    driver: str | None = None
    wireless: bool = False

    def ipv4(self) -> tuple[ipaddress.IPv4Interface, ...]:
        """Its IPv4 addresses."""
        return tuple(ipaddress.IPv4Interface(address) for address in self.addresses)


class Gid(Fact):
    """One non-empty entry of an HCA's GID table."""

    index: int
    value: Annotated[str, _valid(ipaddress.IPv6Address)]
    type: str | None
    netdev: str | None

    @property
    def ipv4(self) -> str | None:
        """The mapped IPv4 address, or None."""
        mapped = ipaddress.IPv6Address(self.value).ipv4_mapped
        return None if mapped is None else str(mapped)


class Hca(Fact):
    """One RDMA device with port 1 (a ConnectX-7 function of a Spark has only one)."""

    name: Device
    netdev: str | None
    state: str
    phys_state: str
    rate: str | None = None
    firmware: Version | None = None
    gids: Few[Gid] = ()

    @property
    def active(self) -> bool:
        """Whether its port can carry traffic; DOWN with LINK_UP is not active."""
        return self.state == "ACTIVE"

    def roce_v2_index(self, address: str) -> int | None:
        """Index of the RoCE v2 GID for IPv4 ``address``, or None."""
        return next((gid.index for gid in self.gids if gid.type == "RoCE v2" and gid.ipv4 == address), None)


class Listener(Fact):
    """One listening TCP socket; ``process`` is None if it belongs to another user."""

    address: str
    port: Port
    process: str | None = None


class EngineFacts(Fact):
    """Software in an image, or in the engine's Python of runtime ``process``.

    Attributes:
        flags: what this `vllm serve` takes, without dashes in front; None where that was never asked.
        tool_parsers: names that --tool-call-parser takes; likewise.
        reasoning_parsers: names that --reasoning-parser takes; likewise.
        compiler: whether there is a C compiler.
    """

    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_/.][^\x00-\x1f\x7f]*$", max_length=4096)]
    python_version: Version
    platform: Version
    version: Version | None = None
    ray_version: Version | None = None
    triton_version: Version | None = None
    torch_version: Version | None = None
    nccl_version: Version | None = None
    flags: Many[str] | None = None
    tool_parsers: Many[str] | None = None
    reasoning_parsers: Many[str] | None = None
    family: Literal["upstream", "ngc", "other"] = "other"
    compiler: bool = False


class Image(Fact):
    """The playbook's image on this node. ``inside`` is None until the image itself has been asked.

    ``digest`` is the image as any node can pull it, ``name@sha256:…``; None for one that came from no registry.
    ``config_sum`` is a checksum of what a container of it starts with: environment, entry point, command, directory
    and user. It is the same in every image store, which the ID is not.
    """

    reference: str
    id: ImageId
    digest: Annotated[str, Field(pattern=r"^[A-Za-z0-9][^\s@]*@sha256:[0-9a-f]{64}$")] | None = None
    layers: Few[str] = ()
    entrypoint: Few[str] = ()
    env_names: Few[str] = ()
    config_sum: str | None = None
    architecture: str | None = None
    size_bytes: int = 0
    inside: EngineFacts | Unread | None = None


class Rank(Fact):
    """One rank that any sparkcluster started: a container or a process.

    Attributes:
        exit_code: None while it runs, or where it is unknown.
        restarts: how often Docker has started it again.
    """

    name: RankName
    state: Literal["created", "running", "restarting", "paused", "removing", "exited", "dead", "gone", "unknown"]
    exit_code: int | None = None
    oom_killed: bool = False
    restarts: int = 0
    pid: int | None = None
    image_id: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: str = ""
    labels: Annotated[dict[str, str], Field(max_length=1024)] = {}


class WeightFile(Fact):
    """One file of a model, relative to its directory."""

    name: str
    size_bytes: int


class Weights(Fact):
    """The model on the node.

    ``config`` is its parsed config.json, or Mistral's params.json; None without one of at most 256 KiB.
    ``other_revisions`` are complete commits in Hugging Face's cache, where the wanted revision is not there.
    """

    path: Path | None
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")] | None = None
    config: dict[str, Any] | None = None
    files: Many[WeightFile] = ()
    missing: Many[str] = ()
    truncated: Many[str] = ()
    other_revisions: Annotated[tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")], ...], Field(max_length=16)] = ()

    @property
    def complete(self) -> bool:
        """Whether all files listed in config and index exist at full length."""
        return self.path is not None and bool(self.files) and not self.missing and not self.truncated

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


class ReleaseFact(Fact):
    """The newest release recorded on the node; ``record`` is the whole document."""

    number: Number
    plan_hash: str
    record: Record = {}

    @property
    def nodes(self) -> dict[str, PlannedNode]:
        """Nodes of its plan; none in a record of an older version."""
        return self.record["plan"]["nodes"] if "plan" in self.record else {}

    def containers(self) -> Iterator[tuple[str, PlannedNode, PlannedContainer]]:
        """Every container of its plan: name of the node, the node, the container."""
        return ((name, node, container) for name, node in self.nodes.items() for container in node["containers"])


class LeaseFact(Fact):
    """Who may change the cluster, as this node knows it.

    Attributes:
        operation: the command that took the lease (``up``, ``down``, ``stage``, ``measure``); None where it is not
            recorded.
        since: when it was taken, in seconds since 1970 by the node's clock.
    """

    epoch: Number
    held: bool
    operator: str | None = None
    operation: str | None = None
    since: Time | None = None

    def describe(self, cluster: str, now_s: float | None = None) -> str:
        """Who is doing what to ``cluster``, and with ``now_s`` (seconds since 1970) since when."""
        doing = f"is running {self.operation} on" if self.operation else "is changing"
        ago = "" if self.since is None or now_s is None else f", started {max(0, round(now_s - self.since))} s ago"
        return f"{self.operator or 'another operator'} {doing} {cluster}{ago}"


class Facts(Fact):
    """Everything that the probe read of one node in one round trip.

    Attributes:
        reached_at: the node's address of the SSH connection; None without SSH.
        clock_offset_s: how far the node's clock is ahead of the controller's; set by the controller.
        clock_error_s: error of that offset (half the round trip); likewise.
        names: IPv4 addresses that the inventory's host names resolve to on this node; empty for an unknown name (such
            as an alias of ~/.ssh/config), Unread if the resolver failed or hung.
        remove_ipc: whether logind removes a user's IPC objects at the last logout (RemoveIPC, yes by default); None
            without logind. It does not affect users with uid < 1000, such as root and its containers, nor users who
            ``linger``.
        lingers: whether ``loginctl enable-linger`` is set for this user.
        driver_module: version of the nvidia module on disk for the running kernel, ``present`` if it has none, None
            without a module; Unread if the node has no modules for this kernel.
        firewall: ufw or firewalld if active; else None, even with nftables rules set by hand.
        kernel_log: at most 200 lines of the kernel about NVRM, Xid, out of memory and mlx5, newest last and without
            serial numbers; None unless requested.
        compiler: path of the node's C compiler; None without one.
        rays: names of the complete Rays that were brought to images without, as ``plan.image.ray_name`` makes them.
    """

    hostname: str
    user: str
    uid: int
    groups: Few[str]
    home: Path
    python: PythonFacts
    architecture: str
    kernel: str
    clock_s: Time
    os: OsRelease | Unread
    dgx: Dgx | Unread
    driver: Version | Unread
    cuda: Version | Unread
    gpus: Few[Gpu] | Unread
    memory: Memory | Unread
    disks: Few[Disk] | Unread
    docker: Docker | Unread
    interfaces: Few[Interface] | Unread
    hcas: Few[Hca] | Unread
    infiniband_devices: bool
    listeners: Many[Listener] | Unread
    image: Image | Unread | None
    engine: EngineFacts | Unread | None
    ranks: Few[Rank] | Unread
    weights: Weights | Unread | None
    rays: Few[str] = ()
    reached_at: str | None = None
    clock_offset_s: float | None = None
    clock_error_s: float | None = None
    names: Annotated[dict[str, Few[str] | Unread], Field(max_length=1024)] = {}
    remove_ipc: bool | Unread | None = None
    lingers: bool = False
    driver_module: Version | Unread | None = None
    firewall: str | None = None
    compiler: str | None = None
    kernel_log: Few[str] | Unread | None = None
    state_dir: Path
    hf_home: Path
    release: ReleaseFact | Unread | None
    lease: LeaseFact | Unread | None
    probe_s: Annotated[float, Field(ge=0, le=86_400)]

    def interface(self, name: str) -> Interface | None:
        """The interface called ``name``."""
        return next((interface for interface in read(self.interfaces) or () if interface.name == name), None)

    def interface_of(self, address: str) -> Interface | None:
        """The interface that carries IPv4 ``address``."""
        interfaces = read(self.interfaces) or ()
        return next((each for each in interfaces if address in {str(ipv4.ip) for ipv4 in each.ipv4()}), None)

    def hca(self, name: str) -> Hca | None:
        """The HCA called ``name``."""
        return next((hca for hca in read(self.hcas) or () if hca.name == name), None)

    def hca_of(self, interface: str) -> Hca | None:
        """The HCA whose network device is ``interface``."""
        return next((hca for hca in read(self.hcas) or () if hca.netdev == interface), None)
