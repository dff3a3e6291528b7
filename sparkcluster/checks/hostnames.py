"""Checks of host names and addresses: names that resolve to another machine, and routes over WiFi."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator

from sparkcluster.checks.check import Context, Seen, check, node_check
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.findings import edit, on_node
from sparkcluster.node.shared import VIRTUAL_INTERFACES
from sparkcluster.printable import word
from sparkcluster.topology.candidates import is_up


@dataclasses.dataclass(frozen=True, slots=True)
class Resolution:
    """Addresses to which the host ``name`` of ``node`` resolves on node ``on``."""

    on: str
    node: str
    name: str
    addresses: tuple[ipaddress.IPv4Address, ...]


@node_check(
    "NET-016",
    "Nodes with a wired connection are reached by wire",
    severity="warning",
    source="practitioners' reports: a .local name that resolves to the WiFi address",
    remedy=[edit("set host of {node} in the inventory to {wired}")],
)
def reached(_: Context, name: str, facts: Facts) -> Iterator[Seen]:
    """All traffic to the node is slow: staging, logs, and API responses if the API listens on that address.

    Info if WiFi is the node's only network.
    """
    interface = facts.interface_of(facts.reached_at) if facts.reached_at else None
    if interface is not None and interface.wireless:
        wired = _wired(facts)
        cable = f"connect {name} by a network cable, and set host in the inventory to its address"
        yield Seen(
            f"SSH reaches {name} over WiFi",
            f"{facts.reached_at} on {interface.name}",
            None if wired else [cable],
            severity="warning" if wired else "info",
            values={"wired": wired},
        )


@check(
    "NET-017",
    "The host name of a node resolves to that node everywhere, and to a wired address",
    severity="warning",
    source="practitioners' reports: outdated DHCP leases and hosts files; mDNS names in .local"
    " that resolve to the WiFi address",
    remedy=(
        on_node("getent ahostsv4 {name}"),
        on_node("sudo sed -i.bak '/[[:space:]]{name}$/d' /etc/hosts && echo '{wired} {name}' | sudo tee -a /etc/hosts"),
        edit("set host of {node} in the inventory to {wired}", instead=True),
    ),
)
def resolves(context: Context) -> Iterator[Seen]:
    """Programs that use the name (ssh, rsync, Ray's tools) reach another machine, none, or this one over WiFi.

    Reports addresses of other nodes, and addresses in the node's networks that the node does not have. Addresses in
    other networks (a jump host, a router) are ignored.
    """
    for each in _resolutions(context):
        facts = context.facts[each.node]
        interfaces = [facts.interface_of(str(address)) for address in each.addresses]
        if (wrong := _elsewhere(context, each)) is not None:
            owner = next((name for name, other in context.facts.items() if other.interface_of(str(wrong))), None)
            whose = f"an address of {owner}" if owner and not wrong.is_loopback else f"which {each.node} does not have"
            yield _seen(context, each, f"{each.name} does not resolve to {each.node} on {each.on}", f"{wrong}, {whose}")
        elif all(interface is not None and interface.wireless for interface in interfaces) and _wired(facts):
            summary = f"{each.name} resolves on {each.on} to the WiFi address of {each.node}"
            yield _seen(context, each, summary, ", ".join(sorted(map(str, each.addresses))))


def _elsewhere(context: Context, resolution: Resolution) -> ipaddress.IPv4Address | None:
    """The first wrong address, if the name resolves to no address of its node."""
    addresses = _addresses(context.facts[resolution.node])
    assigned = {address.ip for _, address in addresses}
    if assigned & set(resolution.addresses) or not assigned:
        return None
    networks = [address.network for interface, address in addresses if not _virtual(interface)]
    others = [facts for name, facts in context.facts.items() if name != resolution.node]
    for address in resolution.addresses:
        of_other = any(facts.interface_of(str(address)) for facts in others)
        if of_other or address.is_loopback or any(address in network for network in networks):
            return address
    return None


def _seen(context: Context, resolution: Resolution, summary: str, seen: str) -> Seen:
    """A finding for the node on which the name resolves wrongly; commands only with a name that needs no quoting."""
    wired, name = _wired(context.facts[resolution.node]), resolution.name
    plain = wired is not None and word(name) == name
    values = {"name": name, "wired": wired, "node": resolution.node}
    remedy = None if plain else [on_node("getent hosts {name}")]
    return Seen(summary, seen, remedy, node=resolution.on, values=values)


def _resolutions(context: Context) -> Iterator[Resolution]:
    """The IPv4 addresses to which host names of the inventory resolve on every other node."""
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
    """Addresses of the node with their interfaces, except loopback."""
    return [
        (interface, address)
        for interface in read(facts.interfaces) or ()
        for address in interface.ipv4()
        if not address.ip.is_loopback
    ]


def _wired(facts: Facts) -> str | None:
    """A wired address of the node; the management network is preferred to rails."""
    found = [
        (facts.hca_of(interface.name) is not None, str(address.ip))
        for interface, address in _addresses(facts)
        if is_up(interface) and not interface.wireless and not _virtual(interface) and not address.ip.is_link_local
    ]
    return min(found)[1] if found else None


def _virtual(interface: Interface) -> bool:
    return interface.name.startswith(VIRTUAL_INTERFACES)
