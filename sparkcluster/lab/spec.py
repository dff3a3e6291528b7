"""What each virtual Spark is made to look like: the file behind ``lab up --spec``."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from pathlib import Path
from typing import Any, Literal

from sparkcluster.errors import Problem, SpecError, UsageError
from sparkcluster.lab.yaml_marks import Marked, read

GidRow = tuple[int, str, int]
"""Index in the table, what stands there (``mac``, ``privacy``, ``ipv4`` or an address), RoCE version."""

GID_LAYOUTS: dict[str, tuple[GidRow, ...]] = {
    "standard": ((0, "mac", 1), (1, "mac", 2), (2, "ipv4", 1), (3, "ipv4", 2)),
    "shifted": (
        (0, "mac", 1),
        (1, "mac", 2),
        (2, "privacy", 1),
        (4, "privacy", 2),
        (5, "ipv4", 1),
        (6, "ipv4", 2),
    ),
    "missing": ((0, "mac", 1), (1, "mac", 2)),
}
"""GID tables as Spark owners have posted them (MiaAI DeepSeek-v4-Flash-DSpark #10, #11)."""

CHOICES: dict[str, tuple[str, ...]] = {
    "system": ("machine", "debian-12", "debian-13"),
    "ports": ("p0", "p1", "both", "none"),
    "image": ("present", "absent", "without-ray", "upstream"),
    "model": ("present", "absent"),
    "gpu": ("present", "lost"),
}
NUMBERS = {
    "mtu": (576, 9978, 9000),
    "disk_gb": (1, 4000, 40),
    "memory_total_kb": (1, 1 << 40, 1),
    "memory_available_kb": (1, 1 << 40, 1),
    "memory_free_kb": (1, 1 << 40, 1),
}
"""Least, most and stand-in of each number."""

MANAGEMENT = "enP7s7"
WIFI = "wlP9s9"


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """One PCI function of the ConnectX-7: an HCA and its interface under the name it is born with."""

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
"""The four functions of a Spark; one cable lights the two that share its port."""


@dataclasses.dataclass(frozen=True, slots=True)
class SparkSpec:
    """One virtual Spark.

    Attributes:
        interfaces: names that differ from the ones a Spark is born with, by the latter.
        addresses: address with prefix of an interface, by the name it has here; None for no address.
        gids: rows of the GID table, by HCA.
        mtu: of the cabled interfaces, bytes.
        memory_total_kb: what /proc/meminfo says; 127,535,084 was seen on a Spark of 2026.
        nvidia_runtime: whether Docker has NVIDIA's toolkit.
        gpu: whether nvidia-smi finds the GB10.
        system: distribution of its root; ``machine`` is that of the machine the lab runs on.
    """

    name: str
    system: Literal["machine", "debian-12", "debian-13"] = "machine"
    ports: Literal["p0", "p1", "both", "none"] = "p1"
    interfaces: dict[str, str] = dataclasses.field(default_factory=dict)
    addresses: dict[str, str | None] = dataclasses.field(default_factory=dict)
    gids: dict[str, tuple[GidRow, ...]] = dataclasses.field(default_factory=dict)
    mtu: int = 9000
    driver: str = "580.95.05"
    kernel: str = "6.14.0-1015-nvidia"
    firmware: str = "28.45.4028"
    ota: str = "7.3.1"
    memory_total_kb: int = 127_535_084
    memory_available_kb: int = 121_000_000
    memory_free_kb: int = 118_000_000
    nvidia_runtime: bool = True
    gpu: Literal["present", "lost"] = "present"
    image: Literal["present", "absent", "without-ray", "upstream"] = "present"
    model: Literal["present", "absent"] = "present"
    disk_gb: int = 40

    def netdev(self, function: Function) -> str:
        """Name that the interface of ``function`` has on this Spark."""
        return self.interfaces.get(function.netdev, function.netdev)

    @property
    def management(self) -> str:
        """Name of the management interface."""
        return self.interfaces.get(MANAGEMENT, MANAGEMENT)

    @property
    def wifi(self) -> str:
        """Name of the WiFi interface, which joins nothing where cables are used."""
        return self.interfaces.get(WIFI, WIFI)

    def image_of(self, engine: str) -> str | None:
        """Name of the image that its Docker holds in a lab of ``engine``, None for none."""
        if engine == "none" or self.image == "absent":
            return None
        return engine if self.image == "present" else f"{engine}-{self.image}"

    @property
    def cabled(self) -> tuple[str, ...]:
        """Ports with a cable in them."""
        return {"none": (), "both": ("p0", "p1")}.get(self.ports, (self.ports,))


@dataclasses.dataclass(frozen=True, slots=True)
class LabSpec:
    """All virtual Sparks of a lab and how they are cabled."""

    sparks: tuple[SparkSpec, ...]
    topology: Literal["switch", "direct", "ring"] = "switch"

    def rails(self, index: int) -> dict[str, int]:
        """Rail that each cabled interface of Spark number ``index`` is on, by the name it is born with.

        On a switch (and on a direct cable) the first cabled port takes rails 0 and 1, a second one 2
        and 3, whichever port that is. In a ring the cable between Spark c and the next has rails 2c
        and 2c+1, from port 1 of the one to port 0 of the other.
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
                cable = cabled.index(function.port)
            found[function.netdev] = 2 * cable + twin
        return found

    def address(self, index: int, function: Function) -> str | None:
        """Address with prefix of one interface of Spark number ``index``, None for none."""
        spark = self.sparks[index]
        name = spark.netdev(function)
        if name in spark.addresses:
            return spark.addresses[name]
        rail = self.rails(index).get(function.netdev)
        return None if rail is None else f"192.168.{177 + rail}.{11 + index}/24"

    def as_json(self) -> dict[str, Any]:
        """The spec as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LabSpec:
        """The spec that :meth:`as_json` wrote."""
        sparks = []
        for entry in values["sparks"]:
            gids = {hca: tuple((r[0], r[1], r[2]) for r in rows) for hca, rows in entry["gids"].items()}
            sparks.append(SparkSpec(**{**entry, "gids": gids}))
        return cls(tuple(sparks), values["topology"])


def default_name(index: int) -> str:
    """Host name of Spark number ``index``, counted from 0, in the form that NVIDIA gives out."""
    return f"spark-{index + 1:04x}"


def plain(count: int) -> LabSpec:
    """``count`` healthy Sparks on a switch, cabled in port 1.

    Raises:
        UsageError: fewer than 1 or more than 32.
    """
    if not 1 <= count <= 32:
        raise UsageError(f"a lab has 1 to 32 Sparks, not {count}", hint="lab up --sparks 2")
    return LabSpec(tuple(SparkSpec(default_name(index)) for index in range(count)))


def load(path: Path, count: int | None = None) -> LabSpec:
    """Read a spec file.

    Args:
        path: the YAML file.
        count: number of Sparks asked for; None takes what the file says.

    Raises:
        SpecError: problems in the file, each with its line.
        UsageError: the file cannot be read, or says another number of Sparks than ``count``.
    """
    root = read(path)
    reader = _Reader(path)
    reader.mapping(root, {"topology", "defaults", "sparks"})
    topology = reader.choice(root.get("topology"), ("switch", "direct", "ring"), "switch")
    if root.value is None or not isinstance(root.value, dict):
        raise SpecError(reader.problems)
    defaults = root.get("defaults")
    entries = root.get("sparks")
    sparks: list[SparkSpec] = []
    if entries is not None and not isinstance(entries.value, list):
        reader.problem(entries, "a list of Sparks is wanted")
    listed = entries.items() if entries is not None else [None] * (count or 2)
    for index, entry in enumerate(listed):
        ports = "both" if topology == "ring" else "p1"
        start = reader.spark(defaults, {"name": default_name(index), "ports": ports})
        sparks.append(SparkSpec(**reader.spark(entry, start)))
    reader.whole(root, sparks, topology)
    if reader.problems:
        raise SpecError(reader.problems)
    if count is not None and count != len(sparks):
        raise UsageError(
            f"{path} describes {len(sparks)} Sparks, not {count}",
            hint="leave --sparks out, or change the file",
        )
    return LabSpec(tuple(sparks), topology)


class _Reader:
    """Turns marked YAML into values and collects what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []

    def problem(self, at: Marked, message: str, hint: str | None = None) -> None:
        """Note that something is wrong at ``at``."""
        self.problems.append(Problem(str(self.path), at.line, at.column, at.path, message, hint))

    def mapping(self, at: Marked, allowed: set[str]) -> bool:
        """Whether ``at`` is a mapping; unknown keys are noted."""
        if not isinstance(at.value, dict):
            self.problem(at, "a mapping of keys to values is wanted")
            return False
        for key, value in at.value.items():
            if key not in allowed:
                self.problem(value, f"unknown key, known are {', '.join(sorted(allowed))}")
        return True

    def choice(self, at: Marked | None, allowed: tuple[str, ...], default: str) -> Any:
        """One of ``allowed``."""
        if at is None:
            return default
        if at.value not in allowed:
            self.problem(at, f"one of {', '.join(allowed)} is wanted, not {at.value!r}")
            return default
        return at.value

    def number(self, at: Marked, low: int, high: int, default: int) -> int:
        """A whole number within limits."""
        if not isinstance(at.value, int) or isinstance(at.value, bool) or not low <= at.value <= high:
            self.problem(at, f"a whole number from {low} to {high} is wanted, not {at.value!r}")
            return default
        return at.value

    def text(self, at: Marked, pattern: str, what: str) -> str:
        """Text of a given form."""
        if not isinstance(at.value, str) or not re.fullmatch(pattern, at.value):
            self.problem(at, f"{what} is wanted, not {at.value!r}")
            return "none"
        return at.value

    def spark(self, at: Marked | None, start: dict[str, Any]) -> dict[str, Any]:
        """Values of one Spark over those of ``start``."""
        known = {field.name for field in dataclasses.fields(SparkSpec)}
        values = dict(start)
        if at is None or not self.mapping(at, known):
            return values
        for key in known & set(at.value):
            values[key] = self.field(key, at.value[key], values.get(key))
        return values

    def field(self, key: str, entry: Marked, before: Any) -> Any:
        """Value of one key of a Spark; mappings add to what the defaults said."""
        if key in CHOICES:
            return self.choice(entry, CHOICES[key], CHOICES[key][0])
        if key in NUMBERS:
            return self.number(entry, *NUMBERS[key])
        if key in ("interfaces", "addresses", "gids"):
            return {**(before or {}), **getattr(self, key)(entry)}
        if key == "name":
            return self.text(entry, r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a host name")
        if key == "nvidia_runtime":
            if not isinstance(entry.value, bool):
                self.problem(entry, "true or false is wanted")
            return bool(entry.value)
        return self.text(entry, r"[0-9A-Za-z._+-]+", "a version in quotes")

    def interfaces(self, at: Marked) -> dict[str, str]:
        """New names of interfaces."""
        if not self.mapping(at, {MANAGEMENT, WIFI, *(function.netdev for function in FUNCTIONS)}):
            return {}
        return {
            key: self.text(value, r"[A-Za-z][A-Za-z0-9_.-]{0,14}", "an interface name of up to 15 characters")
            for key, value in at.value.items()
        }

    def addresses(self, at: Marked) -> dict[str, str | None]:
        """Addresses of interfaces."""
        if not isinstance(at.value, dict):
            self.problem(at, "a mapping of interfaces to addresses is wanted")
            return {}
        found: dict[str, str | None] = {}
        for key, value in at.value.items():
            if value.value is not None:
                try:
                    ipaddress.IPv4Interface(value.value)
                except (ValueError, TypeError):
                    self.problem(value, f"an address as 192.168.177.11/24 is wanted, not {value.value!r}")
                    continue
            found[key] = value.value
        return found

    def gids(self, at: Marked) -> dict[str, tuple[GidRow, ...]]:
        """GID tables by HCA; one layout's name stands for all four."""
        names = [function.hca for function in FUNCTIONS]
        if isinstance(at.value, str):
            return dict.fromkeys(names, GID_LAYOUTS[self.choice(at, tuple(GID_LAYOUTS), "standard")])
        if not self.mapping(at, set(names)):
            return {}
        return {key: self.gid_table(value) for key, value in at.value.items()}

    def gid_table(self, at: Marked) -> tuple[GidRow, ...]:
        """One table: the name of a layout, or a mapping as ``4: ipv4 v2``."""
        if not isinstance(at.value, dict):
            return GID_LAYOUTS[self.choice(at, tuple(GID_LAYOUTS), "standard")]
        rows = []
        for key, value in at.value.items():
            parts = str(value.value).split()
            if not str(key).isdigit() or not 0 <= int(key) < 256:
                self.problem(value, "an index from 0 to 255 is wanted")
            elif len(parts) != 2 or parts[1] not in ("v1", "v2"):
                self.problem(value, f"as `ipv4 v2`, `mac v1`, `privacy v2` or `ADDRESS v2`, not {value.value!r}")
            else:
                rows.append((int(key), parts[0], int(parts[1][1])))
        return tuple(rows)

    def whole(self, root: Marked, sparks: list[SparkSpec], topology: str) -> None:
        """What can only be judged with all Sparks in view."""
        wanted = {"direct": 2, "ring": 3}.get(topology)
        if wanted is not None and len(sparks) != wanted:
            self.problem(root, f"topology {topology} needs {wanted} Sparks, not {len(sparks)}")
        if not 1 <= len(sparks) <= 32:
            self.problem(root, f"a lab has 1 to 32 Sparks, not {len(sparks)}")
        if topology == "ring" and any(spark.ports != "both" for spark in sparks):
            self.problem(root, "in a ring every Spark has `ports: both`")
        for name in sorted({s.name for s in sparks if [t.name for t in sparks].count(s.name) > 1}):
            self.problem(root, f"two Sparks are called {name}")
        for spark in sparks:
            known = {spark.netdev(function) for function in FUNCTIONS}
            for name in sorted(set(spark.addresses) - known):
                self.problem(root, f"{spark.name} has no interface {name}, only {', '.join(sorted(known))}")
            if len(known | {spark.management, spark.wifi}) != len(FUNCTIONS) + 2:
                self.problem(root, f"{spark.name} has two interfaces of one name")
