"""All facts that a node reports in one round trip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from sparkcluster.facts.base import Fact, Few, Measure, Number, Path, Time, Unread, Version, read
from sparkcluster.facts.docker import Docker, EngineFacts, Image, Layers, OtherContainer, Rank
from sparkcluster.facts.machine import Machine
from sparkcluster.facts.network import Hca, Interface, Listener
from sparkcluster.facts.release_record import PlannedContainer, PlannedNode, Record, ReleaseNumber, SwitchDocument
from sparkcluster.facts.weights import Weights
from sparkcluster.node.shared import GAVE_UP


class PythonFacts(Fact):
    """The interpreter that ran the probe."""

    executable: str
    version: Version


class Gpu(Fact):
    """A line of nvidia-smi; None for values that it reports as ``[N/A]``."""

    name: str
    compute_capability: Version | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    utilization_percent: float | None = None
    vbios: Version | None = None


class Memory(Fact):
    """``/proc/meminfo`` in bytes. CUDA can allocate MemFree, but not the page cache that MemAvailable includes.

    ``cma_total_bytes`` is the contiguous area for RDMA: 131072 kB on a Spark, 0 on a 7.0 kernel without ``kho=off``,
    None if the kernel does not report it. ``anonymous_bytes`` is memory of processes.
    """

    total_bytes: Annotated[int, Field(gt=0)]
    free_bytes: int
    available_bytes: int
    cached_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int
    cma_total_bytes: int | None = None
    anonymous_bytes: int | None = None


class Disk(Fact):
    """The file system of a path; ``purpose`` is state, hf_home or docker (its images)."""

    purpose: Literal["state", "hf_home", "docker"]
    path: str
    total_bytes: int
    free_bytes: int


class ReleaseFact(Fact):
    """The newest release recorded on the node; ``record`` is the complete document."""

    number: ReleaseNumber
    plan_hash: str
    record: Record = Field(default_factory=Record)

    @property
    def nodes(self) -> dict[str, PlannedNode]:
        """Nodes of its plan; empty for a record of an older version."""
        return self.record["plan"]["nodes"] if "plan" in self.record else {}

    def containers(self) -> Iterator[tuple[str, PlannedNode, PlannedContainer]]:
        """Every container of its plan, as (node name, node, container)."""
        return ((name, node, container) for name, node in self.nodes.items() for container in node["containers"])


class LeaseFact(Fact):
    """The lease on this node: who may change the cluster, or stage for it.

    Attributes:
        operation: the command that took the lease (``up``, ``down``, ``stage``, ``measure``); None if not recorded.
        since: when it was taken, in seconds since 1970 by the node's clock.
        cluster: the holder of the start lock, which all clusters of a node share.
        at_work: whether work started under it is still running on this node, whether the lease is held or not.
    """

    epoch: Number
    held: bool
    at_work: bool = False
    operator: str | None = None
    operation: str | None = None
    since: Time | None = None
    cluster: str | None = None

    def describe(self, cluster: str, now_s: float | None = None) -> str:
        """Who is doing what to ``cluster``, and for how long if ``now_s`` (seconds since 1970) is given."""
        if not self.held and self.at_work:
            return f"staging of {cluster}, started by {self.operator or 'an operator'}, is still running"
        doing = f"is running {self.operation} on" if self.operation else "is changing"
        ago = "" if self.since is None or now_s is None else f", started {max(0, round(now_s - self.since))} s ago"
        return f"{self.operator or 'another operator'} {doing} {cluster}{ago}"


class EnabledFact(Fact):
    """The guard of an enabled cluster on the node.

    Attributes:
        stopped: whether ``down`` stopped the cluster; then the guard starts nothing.
        waits: the reason why it is waiting.
        on_demand: whether it starts its rank only when the gateway requests the model.
        events: count of each of ``GUARD_EVENTS`` in its journal; empty except on the head.
    """

    runs: bool
    stopped: bool = False
    waits: str | None = None
    on_demand: bool = False
    events: Annotated[dict[str, Number], Field(max_length=16)] = Field(default_factory=dict)

    @property
    def trouble(self) -> str | None:
        """Why it would not restart its rank now, or None."""
        if not self.runs:
            return "it is not running"
        return None if self.stopped or self.waits is None else self.gave_up or f"it is waiting: {self.waits}"

    @property
    def gave_up(self) -> str | None:
        """Why it has given up, with the command to start the cluster; None unless it gave up."""
        return self.waits if self.runs and self.waits and self.waits.startswith(GAVE_UP) else None


class Facts(Machine):
    """All facts that the probe read from one node in one round trip.

    Attributes:
        clock_offset_s: how far the node's clock is ahead of the controller's; set by the controller.
        clock_error_s: error of that offset (half the round trip); set by the controller.
        names: IPv4 addresses of the inventory's hostnames, as resolved on this node; empty for an unknown name (such
            as an alias in ~/.ssh/config), Unread if the resolver failed or hung.
        remove_ipc: whether logind removes a user's IPC objects at the last logout (RemoveIPC, yes by default); None
            without systemd. It does not affect users with uid < 1000, such as root and its containers, nor users who
            ``linger``.
        lingers: whether ``loginctl enable-linger`` is set for this user.
        driver_module: version of the nvidia module on disk for the running kernel, empty if it has no version; None
            without a module.
        firewall: ufw if active; else None, even with manual nftables rules.
        kernel_log: at most 200 kernel messages about GPU, memory, ConnectX and kernel failures, newest last, each
            with its time (UTC) and without serial numbers; None unless requested.
        boot_before: the last 20 such messages of the previous boot; None if it was shut down cleanly, or not requested.
        compiler: path of the node's C compiler; None without one.
        layers: of images in Docker; None if Docker or the playbook's image could not be read.
        vocabularies: names of the complete vocabularies that were staged with the model.
        files: marks of staged playbook files that are complete.
        rays: names of the complete copies of Ray for images without it, see ``plan.image.ray_name``.
    """

    python: PythonFacts
    clock_s: Time
    driver: Version | Unread
    gpus: Few[Gpu] | Unread
    memory: Memory | Unread
    disks: Few[Disk] | Unread
    docker: Docker | Unread
    hcas: Few[Hca] | Unread
    infiniband_devices: bool = False
    listeners: tuple[Listener, ...] | Unread
    image: Image | Unread | None
    layers: Layers | Unread | None = None
    engine: EngineFacts | Unread | None
    ranks: Few[Rank] | Unread
    weights: Weights | Unread | None
    containers: Few[OtherContainer] = ()
    companions: dict[str, Weights] | Unread = Field(default_factory=dict)
    rays: Few[str] = ()
    vocabularies: Few[str] = ()
    files: Few[str] = ()
    clock_offset_s: float | None = None
    clock_error_s: float | None = None
    names: dict[str, Few[str] | Unread] = Field(default_factory=dict)
    remove_ipc: bool | Unread | None = None
    lingers: bool = False
    driver_module: Version | Unread | None = None
    firewall: str | None = None
    compiler: str | None = None
    kernel_log: Few[str] | Unread | None = None
    boot_before: Few[str] | Unread | None = None
    state_dir: Path
    release: ReleaseFact | Unread | None
    switch: SwitchDocument | Unread | None = None
    enabled: EnabledFact | Unread | None = None
    lease: LeaseFact | Unread | None
    staging: LeaseFact | Unread | None = None
    probe_s: Measure

    def interface(self, name: str) -> Interface | None:
        """The interface with this name."""
        return next((interface for interface in read(self.interfaces) or () if interface.name == name), None)

    def interface_of(self, address: str) -> Interface | None:
        """The interface with IPv4 ``address``."""
        interfaces = read(self.interfaces) or ()
        return next((each for each in interfaces if address in {str(ipv4.ip) for ipv4 in each.ipv4()}), None)

    def hca(self, name: str) -> Hca | None:
        """The HCA with this name."""
        return next((hca for hca in read(self.hcas) or () if hca.name == name), None)

    def hca_of(self, interface: str) -> Hca | None:
        """The HCA that sends for ``interface``: its network device, or a VLAN on top of it with GIDs."""
        return next((hca for hca in read(self.hcas) or () if interface in hca.netdevs), None)
