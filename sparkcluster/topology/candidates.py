"""Which interfaces of one node may belong to the interconnect, and by which it is managed."""

from __future__ import annotations

import dataclasses
import ipaddress

from sparkcluster.errors import PlanError
from sparkcluster.facts.model import Facts, Interface, Unread, read
from sparkcluster.node.shared import VIRTUAL_INTERFACES
from sparkcluster.spec.inventory import Node, NodeInterconnect

Network = ipaddress.IPv4Network

LINK_LOCAL = Network("169.254.0.0/16")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One interface with the address by which it could serve.

    Attributes:
        hca: RDMA device whose network device it is, or None.
        gid_index: RoCE v2 index of ``address`` on that device, or None.
        wireless: whether it is WiFi, which serves for management alone.
    """

    interface: str
    address: ipaddress.IPv4Address
    network: Network
    mtu: int
    speed_mbps: int | None
    hca: str | None
    gid_index: int | None
    wireless: bool = False

    @property
    def link_local(self) -> bool:
        """Whether nobody ever gave it an address (169.254/16, as NVIDIA's netplan leaves it)."""
        return self.address in LINK_LOCAL


def is_up(interface: Interface) -> bool:
    """Whether it can carry traffic; some drivers never say more than ``unknown`` of their state."""
    return interface.carrier and interface.operstate.lower() in {"up", "unknown"}


def interfaces_of(name: str, facts: Facts) -> tuple[Interface, ...]:
    """The node's interfaces.

    Raises:
        PlanError: they could not be read.
    """
    if isinstance(facts.interfaces, Unread):
        raise PlanError(
            f"the interfaces of {name} could not be read: {facts.interfaces.unread}",
            node=name,
            step="topology",
            hint=f"see that `ip -j addr` works on {name}",
        )
    return facts.interfaces


def automatic(name: str, facts: Facts) -> list[Candidate]:
    """Interfaces that are up, have an address and an HCA: on a Spark these are the cabled twins."""
    found = []
    for interface in interfaces_of(name, facts):
        hca = facts.hca_of(interface.name)
        if hca is not None and is_up(interface):
            found += _candidates(interface, facts)
    return found


def on_rails(name: str, facts: Facts, rails: list[Network]) -> list[Candidate]:
    """Interfaces with an address in one of ``rails``, which the inventory names; RDMA or not, up or not.

    Raises:
        PlanError: the node has no address on any of them.
    """
    found = [
        dataclasses.replace(candidate, network=rail)
        for interface in interfaces_of(name, facts)
        for candidate in _candidates(interface, facts)
        for rail in rails
        if candidate.address in rail
    ]
    if not found:
        raise PlanError(
            f"{name} has no address on any of the rails {', '.join(map(str, rails))}; it has {_seen(facts)}",
            node=name,
            step="topology",
            hint="give its interface an address there, or correct interconnect.rails in the inventory",
        )
    return found


def explicit(name: str, facts: Facts, wanted: NodeInterconnect) -> list[Candidate]:
    """What the inventory says of this node, completed with addresses from its facts.

    Raises:
        PlanError: an interface is not there or has no address, or an HCA is not there.
    """
    interfaces = {interface.name: interface for interface in interfaces_of(name, facts)}
    known = {hca.name: hca for hca in read(facts.hcas) or ()}
    found = []
    for position, label in enumerate(wanted.interfaces):
        interface = interfaces.get(label)
        if interface is None or not interface.addresses:
            what = "has no IPv4 address" if interface else "is not there"
            raise PlanError(
                f"interface {label} of {name} {what}; it has {_seen(facts)}",
                node=name,
                step="topology",
                hint=f"correct interconnect.interfaces of {name} in the inventory",
            )
        candidate = _candidates(interface, facts)[0]
        if position < len(wanted.hcas):
            hca = wanted.hcas[position]
            if hca not in known:
                raise PlanError(
                    f"HCA {hca} of {name} is not there; it has {', '.join(sorted(known)) or 'none'}",
                    node=name,
                    step="topology",
                    hint=f"correct interconnect.hcas of {name} in the inventory",
                )
            index = known[hca].roce_v2_index(str(candidate.address))
            candidate = dataclasses.replace(candidate, hca=hca, gid_index=index)
        if wanted.gid_index is not None and candidate.hca:
            candidate = dataclasses.replace(candidate, gid_index=wanted.gid_index)
        found.append(candidate)
    return found


def management(node: Node, facts: Facts, taken: set[str]) -> list[Candidate]:
    """Addresses by which the node may be met apart from the interconnect, the best first.

    The address by which we reach it comes first, since that is known to work; then wired interfaces, then
    wireless ones. Otherwise interfaces in ``taken`` (on the rails), of an HCA and virtual ones are left out.
    """
    everything = [
        (interface, candidate)
        for interface in read(facts.interfaces) or ()
        for candidate in _candidates(interface, facts)
    ]
    reached = [candidate for _, candidate in everything if str(candidate.address) == node.host]
    reached = [candidate for candidate in reached if not candidate.address.is_loopback]
    usable = [
        candidate
        for interface, candidate in everything
        if is_up(interface)
        and not interface.name.startswith(VIRTUAL_INTERFACES)
        and interface.name not in taken
        and candidate.hca is None
        and candidate not in reached
    ]
    ordered = sorted(usable, key=lambda one: (one.link_local, one.wireless, one.interface, one.address))
    return reached + ordered


def _candidates(interface: Interface, facts: Facts) -> list[Candidate]:
    hca = facts.hca_of(interface.name)
    return [
        Candidate(
            interface=interface.name,
            address=own.ip,
            network=own.network,
            mtu=interface.mtu,
            speed_mbps=interface.speed_mbps,
            hca=hca.name if hca else None,
            gid_index=hca.roce_v2_index(str(own.ip)) if hca else None,
            wireless=interface.wireless,
        )
        for own in sorted(interface.ipv4())
    ]


def _seen(facts: Facts) -> str:
    described = [
        f"{interface.name} ({', '.join(interface.addresses) or 'no address'})"
        for interface in sorted(read(facts.interfaces) or (), key=lambda one: one.name)
        if not interface.name.startswith(VIRTUAL_INTERFACES)
    ]
    return ", ".join(described) or "no interface"
