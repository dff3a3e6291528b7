"""Turns addresses into hosts: over SSH, or this machine."""

from __future__ import annotations

import dataclasses
import getpass
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet, all_values
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.resolve import SshSettings, SshTarget, resolve

if TYPE_CHECKING:
    from sparkcluster.hosts.handshake import Prompts
    from sparkcluster.hosts.ssh import SshHost


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """How to reach a node.

    Attributes:
        host: hostname or IP address.
        connection: ``ssh``, ``local`` (no SSH), or ``auto``: local if ``host`` is this machine's address or hostname.
        ssh: SSH settings.
    """

    host: str
    connection: Literal["auto", "ssh", "local"] = "auto"
    ssh: SshSettings = dataclasses.field(default_factory=SshSettings)


def connect(nodes: Mapping[str, Address], prompts: Prompts | None = None) -> Fleet:
    """Return a host for each of ``nodes``, by name. A host connects at its first use.

    ``prompts`` asks the operator about unknown host keys and for passwords; without it both are errors.

    Raises:
        UsageError: ssh_config cannot be used.
    """
    # ssh -G is a process per node: run them in parallel
    resolving = Calls(ssh_target, nodes)
    if any(node.connection != "local" and node.host != "localhost" for node in nodes.values()):
        import sparkcluster.hosts.ssh  # noqa: F401 - imported while those processes run
    targets = all_values(resolving.wait(30))
    jumps: dict[SshTarget, SshHost] = {}
    hosts = {name: _host(name, target, jumps, prompts) for name, target in targets.items()}
    return Fleet(hosts, others=jumps.values())


def behind(jump: Host, name: str, node: Address, prompts: Prompts | None = None) -> Host:
    """Return a host that is reached through ``jump``, which resolves ``node.host``, such as ``fe80::1%eth0``.

    Raises:
        UsageError: ssh_config cannot be used.
    """
    from sparkcluster.hosts.ssh import SshHost

    target = resolve(node.host, node.ssh)
    if not isinstance(jump, SshHost):
        return SshHost(name, target, prompts=prompts)
    return SshHost(name, dataclasses.replace(target, jump=jump.target, proxy_command=None), jump, prompts=prompts)


def store_keys(name: str, node: Address, keys: Iterable[str]) -> None:
    """Store host keys of ``node``, each as ``type base64``, in its known_hosts file; ``name`` is for messages.

    Raises:
        UsageError: ssh_config cannot be used, or the known_hosts file cannot be written.
    """
    from sparkcluster.hosts.handshake import Login

    login = Login(name, resolve(node.host, node.ssh))
    for key in keys:
        kind, _, blob = key.partition(" ")
        login.store(kind, blob)


def ssh_target(node: Address) -> SshTarget | None:
    """How to reach ``node`` by SSH; None if it is this machine. Contacts nothing.

    Raises:
        UsageError: ssh_config cannot be used.
    """
    if node.connection == "local":
        return None
    target = resolve(node.host, node.ssh)
    if node.connection == "ssh":
        return target
    return None if is_here(target, explicit_port=node.ssh.port is not None) else target


def _host(name: str, target: SshTarget | None, jumps: dict[SshTarget, SshHost], prompts: Prompts | None) -> Host:
    if target is None:
        return LocalHost(name)
    from sparkcluster.hosts.ssh import SshHost

    if target.jump is not None and target.jump not in jumps:
        jumps[target.jump] = SshHost(name, target.jump, prompts=prompts)
    return SshHost(name, target, jumps[target.jump] if target.jump is not None else None, prompts=prompts)


def is_here(target: SshTarget, *, explicit_port: bool = False) -> bool:
    """Whether ``target`` is this machine and the current user.

    DNS answers do not count: any machine in the network can answer an mDNS query with a loopback address. Three kinds
    of target are reached by SSH in any case: an address behind a jump host, which is in another network; a loopback
    address or name with an explicit port, which is a tunnel; and another user, who has another home and other rights.
    """
    if target.jump is not None or target.proxy_command or target.user != getpass.getuser():
        return False
    tunnel = explicit_port and target.port != 22
    try:
        address = ipaddress.ip_address(target.host.partition("%")[0])
    except ValueError:
        return not tunnel and _own_name(target.host.rstrip(".").lower())
    return not tunnel if address.is_loopback else address in own_addresses()


def _own_name(name: str) -> bool:
    """Whether ``name`` is localhost or this machine's hostname: as set, first label, in .local, or qualified."""
    hostname = socket.gethostname().lower()
    label = hostname.partition(".")[0]
    if name in {"localhost", hostname, label, f"{label}.local"}:
        return True
    return name.startswith(f"{label}.") and name == socket.getfqdn().lower()


def own_addresses() -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Every address of this machine's interfaces."""
    import netifaces

    return {
        ipaddress.ip_address(entry["addr"].partition("%")[0])
        for interface in netifaces.interfaces()
        for family, entries in netifaces.ifaddresses(interface).items()
        if family in (netifaces.AF_INET, netifaces.AF_INET6)
        for entry in entries
    }
