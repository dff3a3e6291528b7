"""Everything that a node reports in one round trip."""

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
    """One line of nvidia-smi; None for what it does not report, as ``[N/A]``."""

    name: str
    compute_capability: Version | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    utilization_percent: float | None = None
    vbios: Version | None = None


class Memory(Fact):
    """``/proc/meminfo`` in bytes. CUDA can allocate MemFree; MemAvailable includes page cache, which it cannot.

    ``cma_total_bytes`` is the contiguous area for RDMA: 131072 kB on a Spark, 0 on a 7.0 kernel without ``kho=off``,
    None if the kernel does not report it. ``anonymous_bytes`` is what programs hold themselves.
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
    """The file system of one path; ``purpose`` is state, hf_home or docker (the images)."""

    purpose: Literal["state", "hf_home", "docker"]
    path: str
    total_bytes: int
    free_bytes: int


class ReleaseFact(Fact):
    """The newest release recorded on the node; ``record`` is the whole document."""

    number: ReleaseNumber
    plan_hash: str
    record: Record = Field(default_factory=Record)

    @property
    def nodes(self) -> dict[str, PlannedNode]:
        """Nodes of its plan; none in a record of an older version."""
        return self.record["plan"]["nodes"] if "plan" in self.record else {}

    def containers(self) -> Iterator[tuple[str, PlannedNode, PlannedContainer]]:
        """Every container of its plan: name of the node, the node, the container."""
        return ((name, node, container) for name, node in self.nodes.items() for container in node["containers"])


class LeaseFact(Fact):
    """Who may change the cluster, or stage for it, as this node knows it.

    Attributes:
        operation: the command that took the lease (``up``, ``down``, ``stage``, ``measure``); None where it is not
            recorded.
        since: when it was taken, in seconds since 1970 by the node's clock.
        cluster: of the start lock, which all clusters of a node share: who has it.
        at_work: whether what was begun under it goes on on this node, held or not.
    """

    epoch: Number
    held: bool
    at_work: bool = False
    operator: str | None = None
    operation: str | None = None
    since: Time | None = None
    cluster: str | None = None

    def describe(self, cluster: str, now_s: float | None = None) -> str:
        """Who is doing what to ``cluster``, and with ``now_s`` (seconds since 1970) since when."""
        if not self.held and self.at_work:
            return f"what {self.operator or 'an operator'} stages for {cluster} goes on without them"
        doing = f"is running {self.operation} on" if self.operation else "is changing"
        ago = "" if self.since is None or now_s is None else f", started {max(0, round(now_s - self.since))} s ago"
        return f"{self.operator or 'another operator'} {doing} {cluster}{ago}"


class EnabledFact(Fact):
    """The guard of a cluster that is enabled on the node.

    Attributes:
        stopped: whether ``down`` stopped the cluster, so that the guard starts nothing.
        waits: what it waits for.
        on_demand: whether it starts its rank only while the gateway asks for that.
        events: how often each of ``GUARD_EVENTS`` is in its journal, which on all nodes but the head has none.
    """

    runs: bool
    stopped: bool = False
    waits: str | None = None
    on_demand: bool = False
    events: Annotated[dict[str, Number], Field(max_length=16)] = Field(default_factory=dict)

    @property
    def trouble(self) -> str | None:
        """Why it would not bring its rank back now, or None."""
        if not self.runs:
            return "it is not running"
        return None if self.stopped or self.waits is None else self.gave_up or f"it waits: {self.waits}"

    @property
    def gave_up(self) -> str | None:
        """Why it starts nothing until an operator does, with the command for that; None unless it gave up."""
        return self.waits if self.runs and self.waits and self.waits.startswith(GAVE_UP) else None


class Facts(Machine):
    """Everything that the probe read of one node in one round trip.

    Attributes:
        clock_offset_s: how far the node's clock is ahead of the controller's; set by the controller.
        clock_error_s: error of that offset (half the round trip); likewise.
        names: IPv4 addresses that the inventory's host names resolve to on this node; empty for an unknown name (such
            as an alias of ~/.ssh/config), Unread if the resolver failed or hung.
        remove_ipc: whether logind removes a user's IPC objects at the last logout (RemoveIPC, yes by default); None
            without systemd. It does not affect users with uid < 1000, such as root and its containers, nor users who
            ``linger``.
        lingers: whether ``loginctl enable-linger`` is set for this user.
        driver_module: version of the nvidia module on disk for the running kernel, empty if it has none; None without a
            module.
        firewall: ufw if active; else None, even with nftables rules set by hand.
        kernel_log: at most 200 lines of the kernel about GPU, memory, ConnectX and its own failures, newest last, each
            after its time (UTC) and without serial numbers; None unless requested.
        boot_before: the last 20 such lines of the boot before; None where that ended by a shutdown, or not requested.
        compiler: path of the node's C compiler; None without one.
        layers: of images in the Docker engine; None where that or the playbook's image could not be read.
        vocabularies: names of the complete vocabularies that were staged beside the model.
        files: marks of what was staged from beside playbooks, and is whole.
        rays: names of the complete Rays that were brought to images without, as ``plan.image.ray_name`` makes them.
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
        """The HCA that sends for ``interface``: its network device, or one on top of that with GIDs, such as a VLAN."""
        return next((hca for hca in read(self.hcas) or () if interface in hca.netdevs), None)
