"""From the inventory to hosts: by SSH, or this machine itself."""

from __future__ import annotations

import getpass
import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sparkcluster.errors import UsageError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.resolve import SshTarget, resolve
from sparkcluster.spec.inventory import Inventory, Node

if TYPE_CHECKING:
    from sparkcluster.hosts.ssh import SshHost


def connect(inventory: Inventory, names: Iterable[str] | None = None) -> Fleet:
    """Hosts of all nodes, or of those called ``names``. Nothing is connected before its first use.

    Raises:
        UsageError: a name is not in the inventory, or ssh_config makes no sense.
    """
    nodes = {node.label: node for node in inventory.nodes}
    chosen = list(nodes) if names is None else list(names)
    unknown = [name for name in chosen if name not in nodes]
    if unknown:
        raise UsageError(f"there is no node {unknown[0]} in the inventory", hint=f"it has {', '.join(nodes)}")
    # ssh -G is a process per node: side by side
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = pool.map(lambda name: _target(inventory, nodes[name]), chosen)
        if any(_far(nodes[name]) for name in chosen):
            import sparkcluster.hosts.ssh  # noqa: F401 - which takes as long as those processes
        targets = dict(zip(chosen, found, strict=True))
    jumps: dict[SshTarget, SshHost] = {}
    return Fleet({name: _host(name, targets[name], jumps) for name in chosen}, others=jumps.values())


def _far(node: Node) -> bool:
    """Whether ``node`` is likely to be reached by SSH."""
    return node.connection != "local" and node.host not in {"localhost", "127.0.0.1", "::1"}


def _target(inventory: Inventory, node: Node) -> SshTarget | None:
    """How to get to ``node`` by SSH, or None where it is this machine."""
    if node.connection == "local":
        return None
    ssh = inventory.node_ssh(node)
    target = resolve(node.host, ssh)
    if node.connection == "ssh":
        return target
    return None if is_here(target, explicit_port=ssh.port is not None) else target


def _host(name: str, target: SshTarget | None, jumps: dict[SshTarget, SshHost]) -> Host:
    if target is None:
        return LocalHost(name)
    from sparkcluster.hosts.ssh import SshHost

    if target.jump is not None and target.jump not in jumps:
        jumps[target.jump] = SshHost(name, target.jump)
    return SshHost(name, target, jumps[target.jump] if target.jump is not None else None)


def is_here(target: SshTarget, *, explicit_port: bool = False) -> bool:
    """Whether ``target`` is this machine and the user who runs us.

    An address behind a jump is another network's, a loopback address with a port of its own is a tunnel's
    end, and another user has another home and other rights: these go by SSH.
    """
    if target.jump is not None or target.proxy_command or target.user != getpass.getuser():
        return False
    try:
        found = socket.getaddrinfo(target.host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False  # connecting will say so, with the node's name
    addresses = {ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found}
    if any(address.is_loopback for address in addresses):
        return not (explicit_port and target.port != 22)
    return bool(addresses & own_addresses())


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
