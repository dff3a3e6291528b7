"""Surveys of machines for ``discover``, and a network of them that replaces SSH."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sparkcluster.errors import HostRefused, SparkclusterError
from sparkcluster.hosts import known_hosts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.connect import Address
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.setup import discover
from tests.unit.setup import wired


def mac(number: int, twin: int) -> str:
    """MAC address of a twin of Spark ``number``."""
    return wired.mac(number, list(wired.PCI)[twin])


def machine(
    number: int,
    *addresses: str,
    heard: tuple[tuple[str, str, str | None], ...] = (),
    cabled: tuple[str, ...] = ("p1",),
    **changes: Any,
) -> dict[str, Any]:
    """Survey of Spark ``number``, as answered by its program.

    Args:
        addresses: of enP7s7, with prefix; empty: without a cable.
        heard: interface, MAC address and address of machines that answer on QSFP ports.
        cabled: QSFP ports with a link.
        changes: facts to replace.
    """
    document = wired.survey(f"spark-{number:04x}", number, cabled, sudo="password")
    up = {"operstate": "up" if addresses else "down", "carrier": bool(addresses), "addresses": list(addresses)}
    document["interfaces"][0].update(up)
    document["host_keys"] = [f"ssh-ed25519 {'A' * 40}{number:04d}"]
    document["neighbours"] = [{"interface": name, "mac": seen, "address": address} for name, seen, address in heard]
    return document | changes


NO_SPARK = {"unread": "/etc/dgx-release: no such file"}


class Network:
    """Machines by address or name; ``tried`` are all contacted ones, in order."""

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, Any] | SparkclusterError] = {}
        self.tried: list[str] = []
        self.addresses: list[Address] = []
        self.prompts: list[Any] = []
        self.jumps: dict[str, str] = {}
        self.user = "nvidia"

    def put(self, *hosts: str, answer: dict[str, Any] | SparkclusterError) -> None:
        """Make ``answer`` the answer at ``hosts``."""
        self.machines |= dict.fromkeys(hosts, answer)

    def host(self, name: str, address: Address) -> FakeHost:
        """The machine at ``address``, or a failing one."""
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
        """Replaces ``hosts.connect.connect``."""
        self.prompts.append(prompts)
        return Fleet({name: self.host(name, address) for name, address in nodes.items()})

    def behind(self, jump: Host, name: str, address: Address, prompts: Any = None) -> FakeHost:
        """Replaces ``hosts.connect.behind``."""
        self.jumps[address.host] = jump.name
        self.prompts.append(prompts)
        return self.host(name, address)

    def store_keys(self, _name: str, address: Address, keys: Iterable[str]) -> None:
        """Replaces ``hosts.connect.store_keys``: writes the files in the address, never the user's."""
        file = address.ssh.new_keys or address.ssh.known_hosts
        for key in keys if file else ():
            known_hosts.store(Path(str(file)), address.host, *key.split(" "))


def replace_ssh(monkeypatch: pytest.MonkeyPatch) -> Network:
    """A network that replaces SSH."""
    made = Network()
    monkeypatch.setattr(discover, "connect", made.connect)
    monkeypatch.setattr(discover, "behind", made.behind)
    monkeypatch.setattr(discover, "store_keys", made.store_keys)
    return made
