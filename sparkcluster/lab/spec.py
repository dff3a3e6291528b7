"""The spec file of ``lab up --spec``: what each virtual Spark looks like."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.spec.base import Section
from sparkcluster.spec.document import Document, shown
from sparkcluster.spec.load import read, validate

GidTable = dict[int, str]
"""By index, the kind of entry (``mac``, ``privacy``, ``ipv4`` or an address) and its RoCE version: ``ipv4 v2``."""

GID_LAYOUTS: dict[str, GidTable] = {
    "standard": {0: "mac v1", 1: "mac v2", 2: "ipv4 v1", 3: "ipv4 v2"},
    "shifted": {0: "mac v1", 1: "mac v2", 2: "privacy v1", 4: "privacy v2", 5: "ipv4 v1", 6: "ipv4 v2"},
    "missing": {0: "mac v1", 1: "mac v2"},
}
"""GID tables posted by owners of Sparks (MiaAI DeepSeek-v4-Flash-DSpark #10, #11)."""

Topology = Literal["switch", "direct", "pairs", "ring", "crossed"]

MANAGEMENT = "enP7s7"


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A PCI function of the ConnectX-7: an HCA and the factory name of its interface."""

    hca: str
    netdev: str
    port: Literal["p0", "p1"]
    pci: str
    mac_tail: int


FUNCTIONS = (
    Function("rocep1s0f0", "enp1s0f0np0", "p0", "0000:01:00.0", 0),
    Function("rocep1s0f1", "enp1s0f1np1", "p1", "0000:01:00.1", 1),
    Function("roceP2p1s0f0", "enP2p1s0f0np0", "p0", "0002:01:00.0", 4),
    Function("roceP2p1s0f1", "enP2p1s0f1np1", "p1", "0002:01:00.1", 5),
)
"""The four functions of a Spark; the two functions of a port share its cable."""


def _text(pattern: str, kind: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {kind}, is {shown(value)}")
        return value

    return AfterValidator(check)


def _among(*words: str) -> AfterValidator:
    return _text("|".join(words), f"one of {', '.join(words)}")


def _address(value: str) -> str:
    try:
        ipaddress.IPv4Interface(value)
    except ValueError:
        raise ValueError(f"must be an address such as 192.168.177.11/24, is {shown(value)}") from None
    return value


def _index(value: Any) -> int:
    if not str(value).isdecimal() or int(value) > 255:
        raise ValueError("must be an index from 0 to 255")
    return int(value)


def _layout(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    if str(value) not in GID_LAYOUTS:
        raise ValueError(f"must be {', '.join(GID_LAYOUTS)} or a mapping")
    return dict(GID_LAYOUTS[str(value)])


def _every_hca(value: Any) -> Any:
    return value if isinstance(value, dict) else {function.hca: _layout(value) for function in FUNCTIONS}


HostName = Annotated[str, _text(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a host name")]
Version = Annotated[str, _text(r"[0-9A-Za-z._+-]+", "a version")]
Netdev = Annotated[str, _text(r"[A-Za-z][A-Za-z0-9_.-]{0,14}", "an interface name of up to 15 characters")]
Address = Annotated[str, AfterValidator(_address)]
Gids = Annotated[
    dict[
        Annotated[int, BeforeValidator(_index)],
        Annotated[str, _text(r"\S+ v[12]", "`ipv4 v2`, `mac v1`, `privacy v2` or `ADDRESS v2`")],
    ],
    BeforeValidator(_layout),
]
FactoryNetdev = Annotated[str, _among(MANAGEMENT, *(function.netdev for function in FUNCTIONS))]
Hca = Annotated[str, _among(*(function.hca for function in FUNCTIONS))]
Kilobytes = Annotated[int, Field(ge=1, le=1 << 40)]


class SparkSpec(Section):
    """A virtual Spark.

    Attributes:
        system: distribution of its root; ``machine`` is the distribution of the lab's machine.
        docker: image store of its Docker.
        interfaces: changed interface names, by factory name.
        addresses: address with prefix of an interface, by its name on this Spark; None for no address.
        gids: GID table by HCA.
        mtu: MTU of the cabled interfaces, in bytes.
        memory_total_kb: as in /proc/meminfo; 127,535,084 was seen on a Spark in 2026.
        memory_available_kb, memory_free_kb: before anything runs; memory used by its processes is subtracted.
        memory_scale: factor for memory used by its processes, so that little memory fills a Spark.
        nvidia_runtime: whether Docker has NVIDIA's toolkit.
        login: for a bare Spark, what its sshd accepts for the user ``spark``.
        sudo: for a bare Spark, whether that user may use sudo without a password, with a password, or not at all.
        gpu: whether nvidia-smi finds the GB10.
    """

    name: HostName = ""
    system: Literal["machine", "debian-12", "debian-13", "debian-14"] = "machine"
    docker: Literal["overlay2", "containerd"] = "overlay2"
    ports: Literal["p0", "p1", "both", "none"] = "p1"
    interfaces: dict[FactoryNetdev, Netdev] = Field(default_factory=dict)
    addresses: dict[str, Address | None] = Field(default_factory=dict)
    gids: Annotated[dict[Hca, Gids], BeforeValidator(_every_hca)] = Field(default_factory=dict)
    mtu: int = Field(9000, ge=576, le=9978)
    driver: Version = "580.95.05"
    kernel: Version = "6.14.0-1015-nvidia"
    firmware: Version = "28.45.4028"
    ota: Version = "7.3.1"
    memory_total_kb: Kilobytes = 127_535_084
    memory_available_kb: Kilobytes = 121_000_000
    memory_free_kb: Kilobytes = 118_000_000
    memory_scale: int = Field(1, ge=1, le=256)
    nvidia_runtime: bool = True
    gpu: Literal["present", "lost"] = "present"
    image: Literal["present", "absent"] = "present"
    model: Literal["present", "absent"] = "present"
    disk_gb: int = Field(40, ge=1, le=4000)
    login: Literal["key", "password"] = "key"
    sudo: Literal["free", "password", "refused"] = "free"

    def netdev(self, function: Function) -> str:
        """Name of the interface of ``function`` on this Spark."""
        return self.interfaces.get(function.netdev, function.netdev)

    @property
    def management(self) -> str:
        """Name of the management interface."""
        return self.interfaces.get(MANAGEMENT, MANAGEMENT)

    @property
    def containerd(self) -> bool:
        """Whether its Docker keeps images in containerd's store."""
        return self.docker == "containerd"

    @property
    def cabled(self) -> tuple[str, ...]:
        """Ports with a cable."""
        return {"none": (), "both": ("p0", "p1")}.get(self.ports, (self.ports,))

    @property
    def functions(self) -> tuple[Function, ...]:
        """Functions of its ConnectX-7, which is absent if no port has a cable."""
        return FUNCTIONS if self.cabled else ()


@dataclasses.dataclass(frozen=True, slots=True)
class LabSpec:
    """All virtual Sparks of a lab and their cabling.

    ``pairs``: direct cables between the first two, the next two and so on, each pair with the same addresses.
    ``crossed``: two cables between two Sparks, each from port 0 of one to port 1 of the other. ``bare``: Sparks in
    factory state, whose rails have only the addresses in their specs.
    """

    sparks: tuple[SparkSpec, ...]
    topology: Topology = "switch"
    bare: bool = False

    def rails(self, index: int) -> dict[str, int]:
        """Rail of each cabled interface of Spark number ``index``, by factory name.

        On a switch or a direct cable, the first cabled port has rails 0 and 1 and a second one rails 2 and 3, whichever
        ports these are. In a ring, the cable from port 1 of Spark c to port 0 of the next Spark has rails 2c and 2c+1.
        The first pair has rails 0 to 3, the next pair 4 to 7, and so on. Crossed cables are numbered by the ports of
        the first Spark.
        """
        found: dict[str, int] = {}
        cabled = self.sparks[index].cabled
        for function in FUNCTIONS:
            if function.port not in cabled:
                continue
            twin = 0 if function.pci.startswith("0000") else 1
            if self.topology == "ring":
                cable = index if function.port == "p1" else (index - 1) % len(self.sparks)
            else:
                pair = index // 2 if self.topology == "pairs" else 0
                cable = 2 * pair + cabled.index(function.port)
                if self.topology == "crossed" and index == 1:
                    cable = 1 - cable
            found[function.netdev] = 2 * cable + twin
        return found

    def wires(self, index: int) -> dict[str, str]:
        """The wire of each cabled interface of Spark number ``index``: the switch, or a cable.

        A broadcast on a wire reaches everything on it, on bare Sparks as on real ones: both twins of the port at the
        other end of a cable, or every port on the switch. Linux then also answers ARP for an address of one twin from
        the other twin. In a ready lab each rail is a separate wire, so that it is certain which twin a frame takes.
        """
        if not self.bare:
            return {name: f"rail{rail}" for name, rail in self.rails(index).items()}
        switched = self.topology == "switch"
        return {name: "switch" if switched else f"cable{rail // 2}" for name, rail in self.rails(index).items()}

    def address(self, index: int, function: Function) -> str | None:
        """Address with prefix of an interface of Spark number ``index``; None for none."""
        spark = self.sparks[index]
        name = spark.netdev(function)
        if name in spark.addresses:
            return spark.addresses[name]
        rail = self.rails(index).get(function.netdev)
        if rail is None or self.bare:
            return None
        if self.topology == "pairs":
            return f"192.168.{177 + rail % 4}.{11 + index % 2}/24"
        return f"192.168.{177 + rail}.{11 + index}/24"


def _default_name(index: int) -> str:
    # As named by NVIDIA, counted from 1.
    return f"spark-{index + 1:04x}"


def plain(count: int, *, bare: bool = False) -> LabSpec:
    """A spec with ``count`` healthy Sparks on a switch, cabled in port 1.

    Raises:
        UsageError: fewer than 1 or more than 32.
    """
    if not 1 <= count <= 32:
        raise UsageError(f"a lab has 1 to 32 Sparks, not {count}", hint="sparkcluster lab up --sparks 2")
    sparks = tuple(_merged(_initial(index, bare=bare)) for index in range(count))
    return LabSpec(sparks, bare=bare)


def _initial(index: int, *, bare: bool, ports: str = "p1") -> dict[str, Any]:
    """Initial values of Spark number ``index``, before its file is read: a bare Spark has the kernel's MTU."""
    return {"name": _default_name(index), "ports": ports, **({"mtu": 1500} if bare else {})}


def with_access(found: LabSpec, login: str | None, sudo: str | None) -> LabSpec:
    """Set ``login`` and ``sudo`` (None: unchanged) for all Sparks whose file does not set them.

    Raises:
        UsageError: the Sparks are not bare.
    """
    values = {key: value for key, value in (("login", login), ("sudo", sudo)) if value is not None}
    if values and not found.bare:
        flag = f"--{next(iter(values))}"
        raise UsageError(f"{flag} is for bare Sparks", hint=f"lab up --bare {flag} {next(iter(values.values()))}")

    def changed(spark: SparkSpec) -> SparkSpec:
        return spark.model_copy(
            update={key: value for key, value in values.items() if key not in spark.model_fields_set}
        )

    return dataclasses.replace(found, sparks=tuple(map(changed, found.sparks)))


class _File(Section):
    topology: Topology = "switch"
    bare: bool = False
    defaults: SparkSpec = SparkSpec()
    sparks: list[SparkSpec] | None = None


def load(path: Path, count: int | None = None, *, bare: bool = False) -> LabSpec:
    """Read a spec file; ``count`` is the expected number of Sparks, None for any; ``bare`` makes all Sparks bare.

    Raises:
        SpecError: errors in the file, each with its line.
        UsageError: the file cannot be read, or its number of Sparks differs from ``count``.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file", hint="docs/lab.md describes spec files")
    document = read(path)
    file, problems = validate(document, _File)
    if file is None:
        raise SpecError(problems)
    ports = "both" if file.topology in ("ring", "crossed") else "p1"
    bare = bare or file.bare
    entries = [SparkSpec()] * (count or 2) if file.sparks is None else file.sparks
    sparks = tuple(
        _merged(_initial(index, bare=bare, ports=ports), file.defaults, entry) for index, entry in enumerate(entries)
    )
    found = LabSpec(sparks, file.topology, bare)
    problems = list(_inconsistent(document, found))
    if problems:
        raise SpecError(problems)
    if count is not None and count != len(sparks):
        raise UsageError(
            f"{path} describes {len(sparks)} Sparks, not {count}",
            hint="remove --sparks, or change the file",
        )
    return found


def _merged(values: dict[str, Any], *layers: SparkSpec) -> SparkSpec:
    """Merge ``layers`` over ``values``, the last one wins; mappings are merged by key."""
    for layer in layers:
        for key in layer.model_fields_set:
            value = getattr(layer, key)
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    if values.get("docker", "overlay2") != "overlay2":
        values.setdefault("system", "debian-13")
    return SparkSpec(**values)


def _inconsistent(document: Document, found: LabSpec) -> Iterator[Problem]:
    """Errors that involve several Sparks or several keys of a Spark."""
    sparks, topology = found.sparks, found.topology

    def problem(message: str) -> Problem:
        return document.problem((), message)

    yield from map(problem, _wrongly_cabled(sparks, topology))
    for name in sorted({s.name for s in sparks if [t.name for t in sparks].count(s.name) > 1}):
        yield problem(f"two Sparks are named {name}")
    if not found.bare:
        named = [(spark.name, key) for spark in sparks for key in ("login", "sudo") if key in spark.model_fields_set]
        yield from (problem(f"{name}: `{key}` is for bare Sparks, `bare: true`") for name, key in named)
    for spark in sparks:
        if spark.docker != "overlay2" and spark.system not in ("debian-13", "debian-14"):
            yield problem(f"{spark.name}: `docker: {spark.docker}` needs `system: debian-13` or newer")
        names = {spark.netdev(function) for function in FUNCTIONS}
        for name in sorted(set(spark.addresses) - names):
            yield problem(f"{spark.name} has no interface {name}, only {', '.join(sorted(names))}")
        if len(names | {spark.management}) != len(FUNCTIONS) + 1:
            yield problem(f"{spark.name} has two interfaces of the same name")


def _wrongly_cabled(sparks: Sequence[SparkSpec], topology: str) -> Iterator[str]:
    """Errors in the number of Sparks or their cabling."""
    fits, needed = {
        "direct": (len(sparks) == 2, "2"),
        "crossed": (len(sparks) == 2, "2"),
        "ring": (len(sparks) == 3, "3"),
        "pairs": (len(sparks) % 2 == 0, "an even number of"),
    }.get(topology, (True, ""))
    if not fits:
        yield f"topology {topology} needs {needed} Sparks, not {len(sparks)}"
    if not 1 <= len(sparks) <= 32:
        yield f"a lab has 1 to 32 Sparks, not {len(sparks)}"
    if topology in ("ring", "crossed") and any(spark.ports != "both" for spark in sparks):
        yield f"topology {topology} requires `ports: both` for every Spark"
