"""Facts of Sparks for the pure rooms: the answer of a probe on a machine that a test describes."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparkcluster import hints
from sparkcluster import plan as planning
from sparkcluster import topology as topologies
from sparkcluster.errors import LaunchError
from sparkcluster.facts.collect import Collected
from sparkcluster.facts.engine import image_digest
from sparkcluster.facts.model import Facts
from sparkcluster.facts.parse import parse
from sparkcluster.facts.running import Reply
from sparkcluster.hosts import program
from sparkcluster.inspect.cluster import View
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import record
from sparkcluster.release.rollback_target import accepted_image, build_of, newly_recorded
from sparkcluster.report import Report
from sparkcluster.spec import Spec, consent
from sparkcluster.spec.inventory import Inventory
from sparkcluster.spec.playbook import Playbook

# Twins of both ports in the order in which ibdev2netdev often prints them, with the HCA of each.
TWINS = {
    "enp1s0f0np0": "rocep1s0f0",
    "enp1s0f1np1": "rocep1s0f1",
    "enP2p1s0f0np0": "roceP2p1s0f0",
    "enP2p1s0f1np1": "roceP2p1s0f1",
}


def pci(name: str) -> str | None:
    """PCI address of the interface ``name``."""
    found = re.match(r"en(?:P(\d+))?p(\d+)s(\d+)f(\d)", name)
    return f"{int(found[1] or 0):04x}:{int(found[2]):02x}:{int(found[3]):02x}.{found[4]}" if found else None


def describe(
    rails: dict[str, str] | None = None,
    *,
    management: str | None = "192.168.86.11/24",
    gid: int | dict[str, int | None] = 3,
    mtu: int | dict[str, int] = 9000,
    names: dict[str, str] | None = None,
    user: str = "nvidia",
    **changes: Any,
) -> dict[str, Any]:
    """Facts of a Spark as a document.

    Args:
        rails: address with prefix by interface; those twins are cabled, the others are down.
        management: address of enP7s7, None if that cable is unplugged.
        gid: RoCE v2 index of each cabled twin's IPv4 GID; None omits the GID.
        mtu: of the cabled twins.
        names: other names of interface → HCA than ``TWINS``.
        changes: facts to replace.
    """
    rails, twins = rails or {}, names or TWINS
    interfaces = [
        {"name": "lo", "mac": "00:00:00:00:00:00", "operstate": "unknown", "carrier": True, "mtu": 65536,
         "addresses": ["127.0.0.1/8"]},
        {"name": "enP7s7", "mac": "3c:6d:66:00:00:10", "operstate": "up" if management else "down",
         "carrier": bool(management), "mtu": 1500, "speed_mbps": 10000,
         "addresses": [management] if management else []},
        {"name": "wlP9s9", "mac": "3c:6d:66:00:00:20", "operstate": "up", "carrier": True, "mtu": 1500,
         "addresses": ["192.168.50.7/24"], "wireless": True},
        {"name": "docker0", "mac": "02:42:00:00:00:01", "operstate": "down", "carrier": False, "mtu": 1500,
         "addresses": ["172.17.0.1/16"]},
    ]  # fmt: skip
    hcas = []
    for place, (name, hca) in enumerate(twins.items() if rails else ()):
        address = rails.get(name)
        interfaces.append(
            {"name": name, "mac": f"4c:bb:47:2d:1a:{place:02x}", "operstate": "up" if address else "down",
             "carrier": address is not None, "speed_mbps": 200000 if address else None,
             "mtu": (mtu.get(name, 9000) if isinstance(mtu, dict) else mtu) if address else 1500,
             "addresses": [address] if address else [],
             "phys_port_name": "p0" if "f0" in name else "p1", "driver": "mlx5_core", "pci": pci(name)}
        )  # fmt: skip
        own = f"fe80:0000:0000:0000:4ebb:47ff:fe2d:1a{place:02x}"
        gids = [
            {"index": 0, "value": own, "type": "IB/RoCE v1", "netdev": name},
            {"index": 1, "value": own, "type": "RoCE v2", "netdev": name},
        ]
        index = gid.get(name, 3) if isinstance(gid, dict) else gid
        if address and index is not None:
            low = int(ipaddress.IPv4Interface(address).ip)
            value = f"0000:0000:0000:0000:0000:ffff:{low >> 16:04x}:{low & 0xFFFF:04x}"
            gids += [
                {"index": index - 1, "value": value, "type": "IB/RoCE v1", "netdev": name},
                {"index": index, "value": value, "type": "RoCE v2", "netdev": name},
            ]
        hcas.append(
            {"name": hca, "netdev": name, "state": "ACTIVE" if address else "DOWN",
             "phys_state": "LINK_UP" if address else "DISABLED",
             "firmware": "28.45.4028", "pcie": "Gen5 x4", "gids": gids}
        )  # fmt: skip
    home = f"/home/{user}"
    document: dict[str, Any] = {
        "hostname": "spark-1a2b",
        "user": user,
        "uid": 1000,
        "groups": [user, "docker"],
        "home": home,
        "python": {"executable": "/usr/bin/python3", "version": "3.12.3"},
        "architecture": "aarch64",
        "kernel": "6.14.0-1015-nvidia",
        "clock_s": 1763690000.0,
        "os": {"id": "ubuntu", "version": "24.04"},
        "dgx": {"name": "DGX Spark", "platform": "DGX Server for KVM", "ota_version": "7.3.1"},
        "driver": "580.95.05",
        "gpus": [{"name": "NVIDIA GB10", "compute_capability": "12.1"}],
        "memory": {"total_bytes": 128526278656, "free_bytes": 117500000000, "available_bytes": 123500000000,
                   "cached_bytes": 6000000000, "swap_total_bytes": 0, "swap_free_bytes": 0},
        "disks": [
            {"purpose": purpose, "path": path, "total_bytes": 3936000000000, "free_bytes": 3000000000000}
            for purpose, path in (("state", home), ("hf_home", home), ("docker", "/var/lib/docker"))
        ],
        "docker": {"version": "29.1.3", "storage_driver": "overlay2", "root_dir": "/var/lib/docker",
                   "runtimes": ["nvidia", "runc"]},
        "interfaces": interfaces,
        "hcas": hcas,
        "infiniband_devices": bool(hcas),
        "listeners": [{"address": "0.0.0.0", "port": 22, "process": "sshd"}],
        "image": IMAGE,
        "engine": None,
        "ranks": [],
        "weights": None,
        "state_dir": f"{home}/.local/state/sparkcluster",
        "hf_home": f"{home}/.cache/huggingface",
        "release": None,
        "lease": None,
        "probe_s": 0.4,
    }  # fmt: skip
    return document | changes


IMAGE: dict[str, Any] = {
    "reference": "vllm/vllm-openai:v0.18.0",
    "id": "sha256:" + "5a" * 32,
    "layers": ["sha256:" + "01" * 32],
    "entrypoint": ["vllm", "serve"],
    "env_names": ["PATH", "VLLM_USAGE_SOURCE"],
    "architecture": "arm64",
    "size_bytes": 20000000000,
    "inside": {"python": "/usr/bin/python3", "python_version": "3.12.11", "platform": "linux_aarch64",
               "version": "0.18.0", "ray_version": "2.53.0",
               "nccl_loaded": "2.30.7", "verbs": "yes", "family": "upstream"},
}  # fmt: skip

WEIGHTS: dict[str, Any] = {
    "path": "/home/nvidia/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/" + "ab" * 20,
    "revision": "ab" * 20,
    "files": [{"name": "model.safetensors", "size_bytes": 16000000000}],
}


@pytest.fixture(autouse=True)
def separate_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands' state, on this machine and in this process, is separate for each test; commands create the folder."""
    hints.command_line = hints.CommandLine()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{uuid.uuid4()}"))


@pytest.fixture
def spark() -> Callable[..., Facts]:
    """Makes the facts of one Spark; arguments as ``describe``."""
    return lambda *args, **kwargs: Facts.model_validate(describe(*args, **kwargs))


@pytest.fixture
def cluster() -> Callable[..., Spec]:
    """Makes a spec: hosts by node name, and further keys of inventory and playbook."""

    def make(
        hosts: dict[str, str], *, playbook: dict[str, Any] | None = None, nodes: dict[str, Any] | None = None,
        **inventory: Any,
    ) -> Spec:  # fmt: skip
        written = {
            "cluster": "atlas",
            "nodes": [{"name": name, "host": host, **(nodes or {}).get(name, {})} for name, host in hosts.items()],
            "playbook": "qwen",
            **inventory,
        }
        served = {"name": "qwen", "model": {"id": "Qwen/Qwen3-8B"}, "image": "vllm/vllm-openai:v0.18.0"}
        return Spec(
            inventory=Inventory.model_validate(written),
            playbook=Playbook.model_validate(served | (playbook or {})),
            inventory_path=Path("inventory.yaml"),
            playbook_path=Path("playbook.yaml"),
        )

    return make


def accepted(spec: Spec) -> Spec:
    """``spec`` as a user of this machine has accepted it."""
    return consent.accept(spec, Report(), yes=True)


@dataclasses.dataclass
class World:
    """Two Sparks, alpha and beta, and the cluster deployed on them."""

    spec: Spec
    facts: dict[str, Facts]
    histories: dict[str, dict[int, Any]] = dataclasses.field(default_factory=dict)
    secrets: dict[str, set[int]] = dataclasses.field(default_factory=dict)

    def plan(self, release: int = 1) -> Plan:
        """The plan that ``up`` would deploy now."""
        topology = topologies.build(self.spec, self.facts)
        return planning.build(self.spec, self.facts, topology, release=release)

    def change(self, node: str, **update: Any) -> World:
        """The same world with changed facts of ``node``."""
        self.facts[node] = parse(node, self.facts[node].model_dump() | update)
        return self

    def staged(self) -> World:
        """The same world with the weights on every node."""
        for name in self.facts:
            self.change(name, weights=WEIGHTS)
        return self

    def run(self, plan: Plan, *nodes: str, state: str = "running", **labels: str) -> World:
        """Make the ranks of ``plan`` run on ``nodes``, or on all nodes."""
        for name in nodes or plan.nodes:
            ranks = [
                {"name": one.name, "state": state, "labels": one.labels | labels} for one in plan.nodes[name].containers
            ]
            self.change(name, ranks=[*self.facts[name].model_dump()["ranks"], *ranks])
        return self

    def document(
        self, plan: Plan, number: int, *, answered: Sequence[str] | None = None, secrets: Any = None, **took: float
    ) -> dict[str, Any]:
        """The record of ``plan`` as release ``number``, for which the groups ``answered`` (or all) started.

        ``took`` are the measurements of the start.
        """
        topology = topologies.build(self.spec, self.facts)
        came_up = [group.name for group in plan.groups] if answered is None else answered
        outcomes = {
            group.name: Reply(group.name, "alpha", ttft_s=0.5, tokens_per_s=20.0, footprint=took)
            if group.name in came_up
            else LaunchError("it did not come up")
            for group in plan.groups
        }
        view = View(self.spec, Collected(self.facts, {}), self.facts, topology=topology, plan=plan)
        groups = newly_recorded(view, outcomes, secrets or {})
        for group in groups:
            consent.remember([accepted_image(self.spec, build_of(group))])
        return record(
            accepted(self.spec),
            groups,
            number=number,
            plan_hash=plan.hash,
            operator="ann@desk",
            verified_at=1.0,
            version="0",
            image_digest=image_digest(self.facts.values()),
        )

    def record(self, plan: Plan, number: int, *nodes: str, **more: Any) -> World:
        """Record ``plan`` as release ``number``."""
        document = self.document(plan, number, **more)
        fact = {"number": number, "plan_hash": plan.hash, "record": document}
        for name in nodes or plan.nodes:
            if name in self.facts:
                self.change(name, release=fact)
                self.histories.setdefault(name, {})[number] = document
                self.secrets.setdefault(name, set()).add(number)
        return self


@pytest.fixture
def world(spark: Callable[..., Any], cluster: Callable[..., Any]) -> Callable[..., World]:
    """``world(names="alpha beta", playbook={…}, **inventory)``."""

    def make(names: str = "alpha beta", **changes: Any) -> World:
        numbers = {"alpha": 11, "beta": 12, "gamma": 13, "delta": 14}
        hosts = {name: f"192.168.86.{numbers[name]}" for name in names.split()}
        facts = {
            name: spark(
                {
                    "enp1s0f0np0": f"192.168.177.{numbers[name]}/24",
                    "enP2p1s0f0np0": f"192.168.178.{numbers[name]}/24",
                },
                management=f"{host}/24",
            )
            for name, host in hosts.items()
        }
        return World(cluster(hosts, **changes), facts)

    return make


@pytest.fixture
def set_source(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, str], str]], None]:
    """``set_source(function)``: other sources of node programs, only for this test: none stays in a cache."""
    uncached = program._packed.__wrapped__

    def replace(source: Callable[[str, str], str]) -> None:
        monkeypatch.setattr(program, "source", lambda module, engine="", _package="node": source(module, engine))
        monkeypatch.setattr(program, "_packed", uncached)

    return replace


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int | str], Path]]:
    """Creates a file system of ``size`` bytes, or KiB with ``k``; needs root."""
    if os.geteuid():
        pytest.skip("needs root")
    made: list[Path] = []

    def make(size: int | str) -> Path:
        made.append(tmp_path / f"disk{len(made)}")
        made[-1].mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", made[-1]], check=True)
        return made[-1]

    yield make
    for each in made:
        subprocess.run(["umount", "-l", each], check=True)
