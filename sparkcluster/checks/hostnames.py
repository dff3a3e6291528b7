"""Checks of how nodes are named and reached: names that mean another machine, and detours over WiFi."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator

from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.checks.wording import listed
from sparkcluster.facts.model import Facts, Interface, read
from sparkcluster.node.shared import VIRTUAL_INTERFACES
from sparkcluster.spec.inventory import Node
from sparkcluster.topology.candidates import is_up


@dataclasses.dataclass(frozen=True, slots=True)
class Naming:
    """What ``asker`` takes ``name``, the inventory's name of ``node``, to mean."""

    asker: str
    node: str
    name: str
    addresses: tuple[ipaddress.IPv4Address, ...]


@check(
    "NET-016",
    "Nodes are reached by wire where they have one",
    severity="warning",
    source="practitioners' reports: a name in .local that means the WiFi",
    remedy="host: the wired address, in the inventory",
)
def reached(context: Context) -> Iterator[Seen]:
    """Everything that goes to the node crawls: staging, logs, and what the API answers, where it listens there.

    A node that has no other network than WiFi is told for information alone.
    """
    for name, facts in context.facts.items():
        interface = facts.interface_of(facts.reached_at) if facts.reached_at else None
        if interface is None or not interface.wireless:
            continue
        wired = _wired(facts)
        yield Seen(
            name,
            f"SSH reaches {name} over WiFi",
            f"{facts.reached_at} on {interface.name}",
            (f"set host of {name} in the inventory to {wired}",)
            if wired
            else (f"plug a network cable into {name}, and set host in the inventory to its address",),
            severity="warning" if wired else "info",
        )


@check(
    "NET-017",
    "A node's name means that node, wherever it is asked",
    severity="warning",
    source="practitioners' reports: leases and hosts files that outlived a machine's address",
    remedy="the right address in /etc/hosts, or host: ADDRESS in the inventory",
)
def named(context: Context) -> Iterator[Seen]:
    """Whoever goes by the name reaches another machine, or nobody: ssh and rsync by hand, and Ray's own tools.

    Judged are addresses that another node of the inventory has, and those in a network of the node that are not
    its own. Names that mean something beyond (a jump host's, a router's) are left alone.
    """
    for one in _namings(context):
        facts = context.facts[one.node]
        own = {
            address.ip
            for interface in read(facts.interfaces) or ()
            for address in interface.ipv4()
            if not address.ip.is_loopback
        }
        if one.asker == one.node or own & set(one.addresses) or not own:
            continue
        networks = [
            address.network
            for interface in read(facts.interfaces) or ()
            if not interface.name.startswith(VIRTUAL_INTERFACES)
            for address in interface.ipv4()
            if not address.ip.is_loopback
        ]
        for address in one.addresses:
            owner = next((name for name, has in context.facts.items() if has.interface_of(str(address))), None)
            inside = any(address in network for network in networks)
            if not inside and (owner is None or owner == one.node) and not address.is_loopback:
                continue
            whose = f"which is {owner}'s" if owner and not address.is_loopback else f"which {one.node} does not have"
            yield Seen(
                one.asker,
                f"{one.name} means another address on {one.asker} than {one.node} has",
                f"{address}, {whose}",
                _hosts(one, facts),
            )
            break


@check(
    "NET-018",
    "A node's name means its wire, not its WiFi",
    severity="warning",
    source="practitioners' reports: mDNS names in .local that resolve to WiFi",
    remedy="the wired address in /etc/hosts, or host: ADDRESS in the inventory",
)
def wired_name(context: Context) -> Iterator[Seen]:
    """Whoever goes by the name crawls over WiFi, and Ray that is given the name meets the others there."""
    found = []
    for one in _namings(context):
        facts = context.facts[one.node]
        meant = [facts.interface_of(str(address)) for address in one.addresses]
        if one.asker != one.node and meant and all(each is not None and each.wireless for each in meant):
            found.append(one)
    for one in found:
        facts = context.facts[one.node]
        if _wired(facts):
            yield Seen(
                one.asker,
                f"{one.name} means the WiFi of {one.node} on {one.asker}",
                ", ".join(map(str, one.addresses)),
                _hosts(one, facts),
            )


@check(
    "NET-019",
    "A node's name means the same on every node",
    severity="info",
    source="practitioners' reports",
    remedy="the same line in /etc/hosts of every node",
)
def agreed(context: Context) -> Iterator[Seen]:
    """Logs and links that hold the name lead to unlike addresses, each right and none comparable.

    In a ring it has to be so, where each pair of nodes has subnets of its own: it is told for information.
    """
    by_name: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for one in _namings(context):
        own = context.facts[one.node]
        wires = [each for each in map(own.interface_of, map(str, one.addresses)) if each and not each.wireless]
        if one.asker != one.node and wires:
            meant = tuple(sorted(map(str, one.addresses)))
            by_name.setdefault((one.node, one.name), {})[one.asker] = meant
    for (node, name), askers in by_name.items():
        if len(askers) > 1 and not set.intersection(*(set(addresses) for addresses in askers.values())):
            yield Seen(
                node,
                f"{name} means unlike addresses of {node}",
                "; ".join(f"{', '.join(addresses)} on {asker}" for asker, addresses in askers.items()),
                (f"give {name} one address in /etc/hosts of {listed(list(askers))}",),
            )


def _namings(context: Context) -> Iterator[Naming]:
    """What every node takes the names of the inventory to mean, where it takes them to mean an IPv4 address."""
    for node in context.spec.inventory.nodes:
        if node.label not in context.facts or _literal(node):
            continue
        for asker, facts in context.facts.items():
            found = map(_ipv4, read(facts.names.get(node.host, ())) or ())
            addresses = tuple(address for address in found if address is not None)
            if addresses:
                yield Naming(asker, node.label, node.host, addresses)


def _literal(node: Node) -> bool:
    try:
        ipaddress.ip_address(node.host.partition("%")[0])
    except ValueError:
        return False
    return True


def _ipv4(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


def _wired(facts: Facts) -> str | None:
    """The node's own wired address by which others may reach it, management before rails."""
    found = [
        (facts.hca_of(interface.name) is not None, str(own.ip))
        for interface in read(facts.interfaces) or ()
        if _is_wire(interface)
        for own in interface.ipv4()
        if not own.ip.is_loopback and not own.ip.is_link_local
    ]
    return min(found)[1] if found else None


def _is_wire(interface: Interface) -> bool:
    return is_up(interface) and not interface.wireless and not interface.name.startswith(VIRTUAL_INTERFACES)


def _hosts(one: Naming, facts: Facts) -> tuple[str, ...]:
    wired = _wired(facts)
    if wired is None:
        return (f"getent hosts {one.name}   on {one.asker}",)
    return (
        f"getent ahostsv4 {one.name}",
        f"sudo sed -i.bak '/[[:space:]]{one.name}$/d' /etc/hosts && echo '{wired} {one.name}' | sudo tee -a /etc/hosts",
        f"or set host of {one.node} in the inventory to {wired}",
    )
