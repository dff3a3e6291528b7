"""Selects a node's interfaces for the interconnect and for management."""

from __future__ import annotations

import dataclasses
import ipaddress

from sparkcluster.errors import PlanError
from sparkcluster.facts.base import Unread, read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.node.shared import VIRTUAL_INTERFACES
from sparkcluster.spec.inventory import Node, NodeInterconnect
from sparkcluster.topology.model import Link

Network = ipaddress.IPv4Network

LINK_LOCAL = Network("169.254.0.0/16")


def refused(node: str, message: str, hint: str = "") -> PlanError:
    """The error if ``node`` prevents a topology."""
    return PlanError(message, node=node, step="topology", hint=hint or None)


def is_up(interface: Interface) -> bool:
    """Whether it can carry traffic; some drivers always report the state ``unknown``."""
    return interface.carrier and interface.operstate.lower() in {"up", "unknown"}


def order_on_bus(interface: Interface) -> tuple[str, bool, str]:
    """Sort key: the PCI address; without PCI addresses the name, with the card of domain 0 first."""
    return interface.pci or "", "P" in interface.name, interface.name


def interfaces_of(name: str, facts: Facts) -> tuple[Interface, ...]:
    """Interfaces of the node.

    Raises:
        PlanError: they could not be read.
    """
    if isinstance(facts.interfaces, Unread):
        problem = f"the interfaces of {name} could not be read: {facts.interfaces.unread}"
        raise refused(name, problem, f"check that `ip -j addr` works on {name}")
    return facts.interfaces


def automatic(name: str, facts: Facts) -> list[Link]:
    """Interfaces that are up and have an address and an HCA: the cabled twins of a Spark."""
    up = [interface for interface in interfaces_of(name, facts) if is_up(interface)]
    return [link for interface in up for link in _links(interface, facts) if link.hca]


def on_rails(name: str, facts: Facts, rails: list[Network]) -> list[Link]:
    """Interfaces with an address in one of ``rails`` of the inventory, with or without RDMA, up or down.

    Raises:
        PlanError: the node has no address on any rail.
    """
    found = [
        dataclasses.replace(link, subnet=str(rail))
        for interface in interfaces_of(name, facts)
        for link in _links(interface, facts)
        for rail in rails
        if link.ip in rail
    ]
    if not found:
        problem = f"{name} has no address on any of the rails {', '.join(map(str, rails))}; it has {_described(facts)}"
        hint = "give its interface an address on a rail, or fix interconnect.rails in the inventory"
        raise refused(name, problem, hint)
    return found


def explicit(name: str, facts: Facts, written: NodeInterconnect) -> list[Link]:
    """Interfaces and HCAs that the inventory lists for this node, with addresses from its facts.

    Raises:
        PlanError: an interface does not exist or has no address, or an HCA does not exist.
    """
    interfaces = {interface.name: interface for interface in interfaces_of(name, facts)}
    hcas = {hca.name: hca for hca in read(facts.hcas) or ()}
    found = []
    for position, label in enumerate(written.interfaces):
        interface = interfaces.get(label)
        if interface is None or not interface.addresses:
            problem = "has no IPv4 address" if interface else "does not exist"
            message = f"interface {label} of {name} {problem}; it has {_described(facts)}"
            raise refused(name, message, f"fix interconnect.interfaces of {name} in the inventory")
        link = _links(interface, facts)[0]
        if position < len(written.hcas):
            hca = written.hcas[position]
            if hca not in hcas:
                problem = f"HCA {hca} of {name} does not exist; it has {', '.join(sorted(hcas)) or 'none'}"
                raise refused(name, problem, f"fix interconnect.hcas of {name} in the inventory")
            link = dataclasses.replace(link, hca=hca, gid_index=hcas[hca].roce_v2_index(link.address))
        if written.gid_index is not None and link.hca:
            link = dataclasses.replace(link, gid_index=written.gid_index)
        found.append(link)
    return found


def management(node: Node, facts: Facts, rails: set[str]) -> list[Link]:
    """Addresses at which other nodes can reach the node outside of the interconnect, the best first.

    The address that SSH uses comes first, since it works; then wired interfaces, then wireless ones. Interfaces in
    ``rails``, interfaces of an HCA, and virtual ones are skipped.
    """
    links = [(link, interface) for interface in read(facts.interfaces) or () for link in _links(interface, facts)]
    reached = [link for link, _ in links if link.address == node.host and not link.ip.is_loopback]
    usable = [
        (link.ip in LINK_LOCAL, interface.wireless, link.interface, link.ip, link)
        for link, interface in links
        if is_up(interface)
        and not interface.name.startswith(VIRTUAL_INTERFACES)
        and interface.name not in rails
        and link.hca is None
        and link not in reached
    ]
    return reached + [link for *_, link in sorted(usable, key=lambda each: each[:4])]


def _links(interface: Interface, facts: Facts) -> list[Link]:
    hca = facts.hca_of(interface.name)
    return [
        Link(
            interface=interface.name,
            address=str(address.ip),
            subnet=str(address.network),
            mtu=interface.mtu,
            speed_mbps=interface.speed_mbps,
            hca=hca.name if hca else None,
            gid_index=hca.roce_v2_index(str(address.ip)) if hca else None,
        )
        for address in sorted(interface.ipv4())
    ]


def _described(facts: Facts) -> str:
    described = [
        f"{interface.name} ({', '.join(interface.addresses) or 'no address'})"
        for interface in sorted(read(facts.interfaces) or (), key=lambda interface: interface.name)
        if not interface.name.startswith(VIRTUAL_INTERFACES)
    ]
    return ", ".join(described) or "no interface"
