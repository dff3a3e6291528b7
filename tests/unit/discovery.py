"""Machines as ``discover`` surveys them, and a network of them in place of SSH."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from sparkcluster.errors import HostRefused, SparkclusterError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.connect import Address
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.setup import discover


def mac(number: int, twin: int) -> str:
    """Hardware address of a twin of Spark ``number``: +0, +1, +4 and +5 as on a real card."""
    return f"4c:bb:47:2d:{number:02x}:{0x60 + (0, 1, 4, 5)[twin]:02x}"


def machine(
    number: int,
    *addresses: str,
    heard: tuple[tuple[str, str, str | None], ...] = (),
    cabled: tuple[str, ...] = ("p1",),
    **changes: Any,
) -> dict[str, Any]:
    """Survey of Spark ``number``, as its program answers.

    Args:
        addresses: of enP7s7, with prefix; none: no cable in it.
        heard: interface, hardware address and address of machines that answer on QSFP ports.
        cabled: QSFP ports with a link.
        changes: facts to replace.
    """
    twins = [("enp1s0f0np0", "p0"), ("enp1s0f1np1", "p1"), ("enP2p1s0f0np0", "p0"), ("enP2p1s0f1np1", "p1")]
    interfaces = [
        {"name": "lo", "mac": "00:00:00:00:00:00", "operstate": "unknown", "carrier": True, "mtu": 65536,
         "addresses": ["127.0.0.1/8"]},
        {"name": "enP7s7", "mac": f"3c:6d:66:00:00:{number:02x}", "operstate": "up" if addresses else "down",
         "carrier": bool(addresses), "mtu": 1500, "addresses": list(addresses)},
        *({"name": name, "mac": mac(number, twin), "operstate": "up" if port in cabled else "down",
           "carrier": port in cabled, "mtu": 1500, "phys_port_name": port, "driver": "mlx5_core",
           "pci": f"000{0 if twin < 2 else 2}:01:00.{twin % 2}"} for twin, (name, port) in enumerate(twins)),
    ]  # fmt: skip
    return {
        "hostname": f"spark-{number:04x}", "user": "nvidia", "uid": 1000, "groups": ["nvidia"], "home": "/home/nvidia",
        "machine": hashlib.sha256(str(number).encode()).hexdigest(), "architecture": "aarch64",
        "kernel": "6.14.0-1015-nvidia", "sudo": "password", "hf_home": "/home/nvidia/hf",
        "os": {"id": "ubuntu", "version": "24.04", "pretty_name": "Ubuntu 24.04.3 LTS"},
        "dgx": {"name": "DGX Spark", "platform": "DGX Server for KVM", "ota_version": "7.3.1"},
        "interfaces": interfaces, "host_keys": [f"ssh-ed25519 {'A' * 40}{number:04d}"],
        "neighbours": [{"interface": name, "mac": seen, "address": address} for name, seen, address in heard],
        **changes,
    }  # fmt: skip


NO_SPARK = {"unread": "/etc/dgx-release: no such file"}


class Network:
    """Machines by the address or name at which they answer; ``tried`` are all that were contacted, in order."""

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, Any] | SparkclusterError] = {}
        self.tried: list[str] = []
        self.addresses: list[Address] = []
        self.prompts: list[Any] = []
        self.jumps: dict[str, str] = {}
        self.user = "nvidia"

    def put(self, *hosts: str, answer: dict[str, Any] | SparkclusterError) -> None:
        """Let ``answer`` answer at ``hosts``."""
        self.machines |= dict.fromkeys(hosts, answer)

    def host(self, name: str, address: Address) -> FakeHost:
        """The machine at ``address``, or one that fails."""
        self.tried.append(address.host)
        self.addresses.append(address)
        host = FakeHost(name)
        host.user = address.ssh.user or self.user
        answer = self.machines.get(
            address.host, HostRefused(f"{name}: {address.host} port 22: connection refused", node=name)
        )

        def survey(request: dict[str, Any]) -> dict[str, Any]:
            if isinstance(answer, SparkclusterError):
                raise answer
            return answer

        host.program("survey", survey)
        return host

    def connect(self, nodes: Mapping[str, Address], prompts: Any = None) -> Fleet:
        """In place of ``hosts.connect.connect``."""
        self.prompts.append(prompts)
        return Fleet({name: self.host(name, address) for name, address in nodes.items()})

    def behind(self, jump: Host, name: str, address: Address, prompts: Any = None) -> FakeHost:
        """In place of ``hosts.connect.behind``."""
        self.jumps[address.host] = jump.name
        return self.host(name, address)


def replace_ssh(monkeypatch: pytest.MonkeyPatch) -> Network:
    """A network in place of SSH."""
    made = Network()
    monkeypatch.setattr(discover, "connect", made.connect)
    monkeypatch.setattr(discover, "behind", made.behind)
    return made
