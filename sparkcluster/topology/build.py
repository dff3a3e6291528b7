"""Builds the topology: head, ranks, rails, addresses, interfaces and HCAs, from spec and facts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.errors import PlanError
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import ONLY_GROUP, Api, Interconnect, Node
from sparkcluster.topology import candidates
from sparkcluster.topology.candidates import LINK_LOCAL, Network
from sparkcluster.topology.model import CablingKind, Group, Link, Member, Rail, Topology

LOOPBACK = "127.0.0.1"

Links = dict[str, list[Link]]


def build(spec: Spec, facts: Mapping[str, Facts], *, missing: Collection[str] = ()) -> Topology:
    """Build the topology of the inventory's groups.

    It fails only if there is no topology; the checks report errors in it. ``missing`` are nodes without facts, which
    are skipped; the others keep their ranks. A topology with missing nodes is for checks and drawings, not for a plan.

    Raises:
        PlanError: a node lacks an interface or address that its group needs.
    """
    inventory = spec.inventory
    nodes = {node.label: node for node in inventory.nodes}
    groups = [(group.name, group.nodes) for group in inventory.groups] or [(ONLY_GROUP, list(nodes))]
    built = []
    rails: dict[str, list[tuple[str, Link]]] = {}
    for name, members in groups:
        if all(member in missing for member in members):
            continue
        group = _group(spec, name, [nodes[member] for member in members], facts, missing)
        built.append(group)
        for member in group.members:
            for link in member.links:
                rails.setdefault(link.subnet, []).append((member.name, link))
    ordered = sorted(rails.items(), key=lambda rail: Network(rail[0]))
    return Topology(
        cluster=inventory.cluster,
        groups=tuple(built),
        rails=tuple(Rail(subnet, tuple(links)) for subnet, links in ordered),
    )


def _group(
    spec: Spec, name: str, written: Sequence[Node], facts: Mapping[str, Facts], missing: Collection[str]
) -> Group:
    nodes = [node for node in written if node.label not in missing]
    if len(written) == 1:
        only = nodes[0]
        kind: CablingKind = "single"
        members: tuple[Member, ...] = (Member(only.label, only.host, 0, LOOPBACK, "lo", (), None),)
    else:
        kind, links = _interconnect(spec, nodes, facts)
        kind = "direct" if kind == "switch" and len(written) == 2 else kind
        idle: dict[str, tuple[Link, ...]] = {}
        for node in nodes if kind in {"direct", "switch"} else ():
            if node.interconnect is None:
                links[node.label], idle[node.label] = _one_per_subnet(links[node.label], facts[node.label])
        if kind in {"ring", "management"}:
            rendezvous = _management(nodes, facts, links)
        else:
            rendezvous = {node.label: links[node.label][0] for node in nodes}
        members = tuple(
            _member(node, rank, rendezvous[node.label], links[node.label], idle.get(node.label, ()))
            for rank, node in enumerate(written)
            if node in nodes
        )
    head, api = nodes[0], spec.inventory.api
    if head is written[0]:
        found = facts[head.label], members[0]
        host, endpoint = _behind_gateway(spec, head, *found) if spec.gateway_node else _api(api, head, *found)
    else:
        # The address of the API depends on facts of the missing head.
        host, endpoint = LOOPBACK, api.url(LOOPBACK)
    absent = tuple(node.label for node in written if node.label in missing)
    return Group(name, members, kind, host, api.port, endpoint, missing=absent)


def _one_per_subnet(links: Sequence[Link], facts: Facts) -> tuple[list[Link], tuple[Link, ...]]:
    """The link to use in each subnet (the first on the PCI bus), and the links that stay idle.

    With two links in one subnet, the kernel answers through either, and NCCL would pair them at random. NVIDIA's guide
    for switches leaves both twins in the subnet of a DHCP server.
    """

    def order(link: Link) -> tuple[Any, ...]:
        interface = facts.interface(link.interface)
        return link.hca is None, *(candidates.order_on_bus(interface) if interface else ("", False, "")), link.ip

    subnets = dict.fromkeys(link.subnet for link in links)
    used = [min((link for link in links if link.subnet == subnet), key=order) for subnet in subnets]
    return used, tuple(link for link in links if link not in used)


def _member(node: Node, rank: int, rendezvous: Link, links: Sequence[Link], idle: tuple[Link, ...]) -> Member:
    indices = {link.gid_index for link in links if link.hca}
    gid_index = indices.pop() if len(indices) == 1 else None
    return Member(node.label, node.host, rank, rendezvous.address, rendezvous.interface, tuple(links), gid_index, idle)


def _interconnect(spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]) -> tuple[CablingKind, Links]:
    """How the nodes are cabled, and the links of each node in the order of the rails."""
    rails = _rails(spec)
    found: Links = {}
    for node in nodes:
        found[node.label] = _candidates(node, facts[node.label], rails)
    listed = {node.label for node in nodes if node.interconnect is not None or rails}
    # NVIDIA's netplan leaves 169.254/16 on interfaces without a configured address: used only as a last resort.
    configured = {
        name: [link for link in links if name in listed or link.ip not in LINK_LOCAL] for name, links in found.items()
    }
    for links in (configured, found):
        cabling = _cabling(_same_networks(links), rails)
        if cabling is not None:
            return cabling
    if len(listed) == len(nodes):
        # Subnets that differ may be routed, if the inventory lists the interfaces of every node.
        return ("direct" if len(nodes) == 2 else "switch"), found
    return "management", {name: [] for name in found}


def _rails(spec: Spec) -> list[Network]:
    written = spec.inventory.interconnect
    return [Network(rail, strict=False) for rail in written.rails] if isinstance(written, Interconnect) else []


def _candidates(node: Node, facts: Facts, rails: list[Network]) -> list[Link]:
    if node.interconnect is not None:
        return candidates.explicit(node.label, facts, node.interconnect)
    return candidates.on_rails(node.label, facts, rails) if rails else candidates.automatic(node.label, facts)


def _cabling(links: Links, rails: Sequence[Network]) -> tuple[CablingKind, Links] | None:
    """The cabling of these links; None if they do not connect all nodes."""
    networks = {name: {link.network for link in of_node} for name, of_node in links.items()}
    common = set.intersection(*networks.values())
    if common:
        kind: CablingKind = "direct" if len(links) == 2 else "switch"
        return kind, _only(links, common, rails)
    pairs = [networks[first] & networks[second] for first, second in itertools.combinations(links, 2)]
    if len(links) == 3 and all(pairs):
        return "ring", _only(links, set.union(*pairs), rails)
    return None


def _only(links: Links, networks: set[Network], rails: Sequence[Network]) -> Links:
    """The links on ``networks``, ordered by the inventory's rails, then by network."""

    def order(link: Link) -> tuple[Any, ...]:
        position = rails.index(link.network) if link.network in rails else len(rails)
        return position, link.network, link.hca is None, link.interface, link.ip

    return {
        name: sorted((link for link in of_node if link.network in networks), key=order)
        for name, of_node in links.items()
    }


def _same_networks(links: Links) -> Links:
    """The links with overlapping networks replaced by the widest: prefixes may differ on one rail."""
    networks = {link.network for of_node in links.values() for link in of_node}

    def widest(network: Network) -> Network:
        return min((other for other in networks if network.subnet_of(other)), key=lambda other: other.prefixlen)

    return {
        name: [dataclasses.replace(link, subnet=str(widest(link.network))) for link in of_node]
        for name, of_node in links.items()
    }


def _management(nodes: Sequence[Node], facts: Mapping[str, Facts], links: Links) -> dict[str, Link]:
    """Links outside of the interconnect for the rendezvous: in a subnet that all nodes share, else each node's best."""
    rails = {name: {link.interface for link in of_node} for name, of_node in links.items()}
    found = {node.label: candidates.management(node, facts[node.label], rails[node.label]) for node in nodes}
    for node in nodes:
        if not found[node.label]:
            candidates.interfaces_of(node.label, facts[node.label])
            hint = "connect the QSFP cable, give both twins an address, and check `ip -br addr` on the node"
            problem = f"{node.label} has no interface that is up with an IPv4 address"
            raise candidates.refused(node.label, problem, hint)
    for name, of_node in found.items():
        # Avoid the rails if a node has another interface, even if SSH uses a rail: in a ring, no rail connects all
        # nodes.
        found[name] = [link for link in of_node if link.interface not in rails[name]] or of_node
    shared = set.intersection(*({link.subnet for link in of_node} for of_node in found.values()))
    first = next((link.subnet for link in found[nodes[0].label] if link.subnet in shared), None)
    return {
        name: next((link for link in of_node if link.subnet == first), of_node[0]) for name, of_node in found.items()
    }


def _api(api: Api, head: Node, facts: Facts, member: Member) -> tuple[str, str]:
    """Address to listen on, and URL, for the group with head ``head``.

    ``management`` is the address of the head in the inventory if the head has it, else the address of its management
    interface; ``interconnect`` is the address that the ranks use. If the API listens on all addresses, its URL has the
    management address.
    """
    host, shown = api.addresses(_management_address(head, facts, member), member.address)
    if host is None or shown is None:
        problem = f"{head.label} has no management address for the API to listen on"
        raise candidates.refused(head.label, problem, "set api.host in the inventory to an address")
    return host, api.url(shown)


def _behind_gateway(spec: Spec, head: Node, facts: Facts, member: Member) -> tuple[str, str]:
    """Like ``_api``, for an engine that only the gateway has to reach.

    Loopback on the gateway's node; else the address for the rendezvous on the interconnect, or for a single rank the
    address of its first link. The management address is used only if there is no other and the API requires a key.
    """
    api, host = spec.inventory.api, member.address if member.links else _first_link(spec, head, facts)
    if head.label == spec.gateway_node:
        host = LOOPBACK
    if host is None and api.key is not None and engines.engine(spec.playbook.engine).api_key:
        host = _management_address(head, facts, member)
    if host is None:
        problem = f"{head.label} has no address on the interconnect for the gateway to reach"
        hint = "sparkcluster key INVENTORY   creates a key; with it the engine listens on the management network"
        raise candidates.refused(head.label, problem, hint)
    return host, api.url(host)


def gateway(spec: Spec, facts: Facts) -> tuple[str, str]:
    """Address that the gateway listens on, and its URL; ``facts`` are the facts of its node.

    Raises:
        PlanError: the node lacks that address.
    """
    node = next(node for node in spec.inventory.nodes if node.label == spec.gateway_node)
    member = Member(node.label, node.host, 0, _first_link(spec, node, facts) or LOOPBACK, "", (), None)
    port = spec.inventory.gateway.port if spec.inventory.gateway else 0
    return _api(spec.inventory.api.model_copy(update={"port": port}), node, facts, member)


def _first_link(spec: Spec, node: Node, facts: Facts) -> str | None:
    """The node's first configured address on the interconnect; None without one."""
    with contextlib.suppress(PlanError):
        return next((li.address for li in _candidates(node, facts, _rails(spec)) if li.ip not in LINK_LOCAL), None)
    return None


def _management_address(head: Node, facts: Facts, member: Member) -> str | None:
    found = candidates.management(head, facts, {link.interface for link in member.links})
    return found[0].address if found else None
