"""Checks of host names and addresses of the nodes: names that resolve to another machine, and routes over WiFi."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator

from sparkcluster.checks.lists import listed
from sparkcluster.checks.registry import Context, Each, Seen, check, node_check
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.node.shared import VIRTUAL_INTERFACES
from sparkcluster.printable import shell
from sparkcluster.topology.candidates import is_up


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """What the inventory's host ``name`` of ``node`` resolves to on node ``on``."""

    on: str
    node: str
    name: str
    addresses: tuple[ipaddress.IPv4Address, ...]


resolution_check = Each(lambda context: ((each.on, each) for each in _resolutions(context)))


@node_check(
    "NET-016",
    "Nodes with a wired connection are reached by wire",
    severity="warning",
    source="practitioners' reports: a .local name that resolves to the WiFi address",
    remedy="set host to the wired address in the inventory",
)
def reached(_: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """Everything sent to the node is slow: staging, logs, and API responses if the API listens on that address.

    Only for information if the node has no network but WiFi.
    """
    interface = facts.interface_of(facts.reached_at) if facts.reached_at else None
    if interface is None or not interface.wireless:
        return
    wired = _wired(facts)
    yield Seen(
        f"SSH reaches {name} over WiFi",
        f"{facts.reached_at} on {interface.name}",
        (f"set host of {name} in the inventory to {wired}",)
        if wired
        else (f"connect {name} by a network cable, and set host in the inventory to its address",),
        severity="warning" if wired else "info",
    )


@resolution_check(
    "NET-017",
    "The host name of a node resolves to that node everywhere",
    severity="warning",
    source="practitioners' reports: DHCP leases and hosts files that outlived a machine's address",
    remedy="put the right address in /etc/hosts, or set host: ADDRESS in the inventory",
)
def resolves(context: Context, on: str, resolution: Resolution) -> Iterator[Seen]:
    """Programs that use the name reach another machine or none: ssh and rsync by hand, and Ray's tools.

    Reported are addresses of other nodes of the inventory, and addresses in the node's networks that it does not have.
    Addresses elsewhere (a jump host, a router) are ignored.
    """
    facts = context.facts[resolution.node]
    addresses = _addresses(facts)
    assigned = {address.ip for _, address in addresses}
    if assigned & set(resolution.addresses) or not assigned:
        return
    networks = [address.network for interface, address in addresses if not _virtual(interface)]
    for address in resolution.addresses:
        owner = next((name for name, other in context.facts.items() if other.interface_of(str(address))), None)
        elsewhere = owner in {None, resolution.node} and not any(address in network for network in networks)
        if elsewhere and not address.is_loopback:
            continue
        belongs = owner and not address.is_loopback
        yield Seen(
            f"{resolution.name} does not resolve to {resolution.node} on {on}",
            f"{address}, {f'an address of {owner}' if belongs else f'which {resolution.node} does not have'}",
            _fix_hosts(resolution, facts),
        )
        break


@resolution_check(
    "NET-018",
    "The host name of a node resolves to a wired address",
    severity="warning",
    source="practitioners' reports: mDNS names in .local that resolve to the WiFi address",
    remedy="put the wired address in /etc/hosts, or set host: ADDRESS in the inventory",
)
def resolves_to_wire(context: Context, on: str, resolution: Resolution) -> Iterator[Seen]:
    """Programs that use the name are slowed down by WiFi, and so is Ray if it is given the name."""
    facts = context.facts[resolution.node]
    interfaces = [facts.interface_of(str(address)) for address in resolution.addresses]
    wireless = all(interface is not None and interface.wireless for interface in interfaces)
    if wireless and _wired(facts):
        yield Seen(
            f"{resolution.name} resolves on {on} to the WiFi address of {resolution.node}",
            ", ".join(map(str, resolution.addresses)),
            _fix_hosts(resolution, facts),
        )


@check(
    "NET-019",
    "The host name of a node resolves to the same address on every node",
    severity="info",
    source="practitioners' reports",
    remedy="put the same line in /etc/hosts of every node",
)
def resolves_alike(context: Context) -> Iterator[Seen]:
    """Logs and links that contain the name refer to different addresses, so they cannot be compared.

    In a ring this is necessary, since each pair of nodes has its own subnets.
    """
    by_name: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for resolution in _resolutions(context):
        facts = context.facts[resolution.node]
        addresses = tuple(sorted(map(str, resolution.addresses)))
        interfaces = [facts.interface_of(address) for address in addresses]
        if any(each and not each.wireless for each in interfaces):
            by_name.setdefault((resolution.node, resolution.name), {})[resolution.on] = addresses
    for (node, name), resolved in by_name.items():
        if len(resolved) > 1 and not set.intersection(*(set(addresses) for addresses in resolved.values())):
            yield Seen(
                f"{name} resolves to different addresses of {node}",
                "; ".join(f"{', '.join(addresses)} on {on}" for on, addresses in resolved.items()),
                (f"give {name} one address in /etc/hosts of {listed(resolved)}",),
                node=node,
            )


def _resolutions(context: Context) -> Iterator[Resolution]:
    """What the host names of the inventory resolve to on every other node, if that is an IPv4 address."""
    for node in context.spec.inventory.nodes:
        if node.label not in context.facts or node.has_address:
            continue
        for on, facts in context.facts.items():
            found = map(_ipv4, read(facts.names.get(node.host, ())) or ())
            addresses = tuple(address for address in found if address is not None)
            if addresses and on != node.label:
                yield Resolution(on, node.label, node.host, addresses)


def _ipv4(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _addresses(facts: Facts) -> list[tuple[Interface, ipaddress.IPv4Interface]]:
    """Addresses of the node with their interfaces, without loopback."""
    return [
        (interface, address)
        for interface in read(facts.interfaces) or ()
        for address in interface.ipv4()
        if not address.ip.is_loopback
    ]


def _wired(facts: Facts) -> str | None:
    """A wired address at which other nodes may reach the node, management before rails."""
    found = [
        (facts.hca_of(interface.name) is not None, str(address.ip))
        for interface, address in _addresses(facts)
        if is_up(interface) and not interface.wireless and not _virtual(interface) and not address.ip.is_link_local
    ]
    return min(found)[1] if found else None


def _virtual(interface: Interface) -> bool:
    return interface.name.startswith(VIRTUAL_INTERFACES)


def _fix_hosts(resolution: Resolution, facts: Facts) -> tuple[str, ...]:
    wired = _wired(facts)
    name = resolution.name
    look = shell("getent hosts", name)
    if wired is None or look != f"getent hosts {name}":
        return (f"{look}   on {resolution.on}",)
    return (
        f"getent ahostsv4 {name}",
        f"sudo sed -i.bak '/[[:space:]]{name}$/d' /etc/hosts && echo '{wired} {name}' | sudo tee -a /etc/hosts",
        f"or set host of {resolution.node} in the inventory to {wired}",
    )
