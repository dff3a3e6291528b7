"""Who sits where: head, ranks, rails, addresses, interfaces and HCAs, from what the nodes say they are."""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sparkcluster.errors import PlanError
from sparkcluster.facts.model import Facts
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import Interconnect, Node
from sparkcluster.topology import api, candidates
from sparkcluster.topology.candidates import Candidate, Network
from sparkcluster.topology.model import Group, Kind, Link, Member, Rail, Topology

LOOPBACK = "127.0.0.1"

Links = dict[str, list[Candidate]]


def build(spec: Spec, facts: Mapping[str, Facts], *, missing: Collection[str] = ()) -> Topology:
    """The topology of the inventory's groups on nodes that say ``facts`` of themselves.

    What is questionable about it is for the checks to say; this fails only where there is none at all.

    Args:
        spec: what the user wrote.
        facts: by name of node.
        missing: nodes to leave out, because nothing is known of them; the others keep their ranks. What comes of
            it is there to be checked and drawn, not to be planned upon.

    Raises:
        PlanError: a node has no facts, or lacks the interface or address that its group needs.
    """
    inventory = spec.inventory
    nodes = {node.label: node for node in inventory.nodes}
    groups = [(group.name, group.nodes) for group in inventory.groups] or [("default", list(nodes))]
    for name in itertools.chain.from_iterable(members for _, members in groups):
        if name not in nodes:
            raise PlanError(f"the groups name {name}, which is no node of the inventory", step="topology")
        if name not in facts and name not in missing:
            raise PlanError(f"nothing is known of {name}", node=name, step="topology")
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
        kind: Kind = "single"
        members: tuple[Member, ...] = (Member(only.label, only.host, 0, LOOPBACK, "lo", (), None),)
    else:
        kind, links = _interconnect(spec, nodes, facts)
        kind = "direct" if kind == "switch" and len(written) == 2 else kind
        taken = {node.label: {link.interface for link in links[node.label]} for node in nodes}
        if kind in {"ring", "management"}:
            meeting = _management(nodes, facts, taken)
        else:
            meeting = {node.label: links[node.label][0] for node in nodes}
        members = tuple(
            _member(node, rank, meeting[node.label], links[node.label])
            for rank, node in enumerate(written)
            if node in nodes
        )
    head, port = nodes[0], spec.inventory.api.port
    if head is written[0]:
        host, endpoint = api.resolve(spec.inventory.api, head, facts[head.label], members[0])
    else:
        # Where the endpoint would listen is the missing head's to say.
        host, endpoint = LOOPBACK, f"http://{LOOPBACK}:{port}/v1"
    absent = tuple(node.label for node in written if node.label in missing)
    return Group(name, members, kind, host, port, endpoint, missing=absent)


def _member(node: Node, rank: int, meeting: Candidate, links: Sequence[Candidate]) -> Member:
    indices = {link.gid_index for link in links if link.hca}
    return Member(
        name=node.label,
        host=node.host,
        rank=rank,
        address=str(meeting.address),
        interface=meeting.interface,
        links=tuple(
            Link(
                interface=link.interface,
                address=str(link.address),
                subnet=str(link.network),
                mtu=link.mtu,
                speed_mbps=link.speed_mbps,
                hca=link.hca,
                gid_index=link.gid_index,
            )
            for link in links
        ),
        gid_index=indices.pop() if len(indices) == 1 else None,
    )


def _interconnect(spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]) -> tuple[Kind, Links]:
    """How the nodes are cabled and each node's links, in the order of the rails."""
    written = spec.inventory.interconnect
    rails = [Network(rail, strict=False) for rail in written.rails] if isinstance(written, Interconnect) else []
    found: Links = {}
    for node in nodes:
        own = facts[node.label]
        if node.interconnect is not None:
            found[node.label] = candidates.explicit(node.label, own, node.interconnect)
        elif rails:
            found[node.label] = candidates.on_rails(node.label, own, rails)
        else:
            found[node.label] = candidates.automatic(node.label, own)
    chosen = {node.label for node in nodes if node.interconnect is not None or rails}

    def addressed(name: str, candidate: Candidate) -> bool:
        return name in chosen or not candidate.link_local

    # NVIDIA's netplan leaves 169.254/16 on whatever nobody addressed: it counts only where nothing else does.
    wanted: tuple[Callable[[str, Candidate], bool], ...] = (addressed, lambda _name, _candidate: True)
    for wants in wanted:
        links = {name: [one for one in own if wants(name, one)] for name, own in found.items()}
        cabling = _cabling(_same_networks(links), rails)
        if cabling is not None:
            return cabling
    if len(chosen) == len(nodes):
        # Routed between different subnets: whoever names every interface is believed.
        return ("direct" if len(nodes) == 2 else "switch"), found
    return "management", {name: [] for name in found}


def _cabling(links: Links, rails: Sequence[Network]) -> tuple[Kind, Links] | None:
    """The cabling that these links make, or None where they do not join all nodes."""
    networks = {name: {link.network for link in own} for name, own in links.items()}
    common = set.intersection(*networks.values())
    if common:
        kind: Kind = "direct" if len(links) == 2 else "switch"
        return kind, _only(links, common, rails)
    pairs = [networks[one] & networks[other] for one, other in itertools.combinations(links, 2)]
    if len(links) == 3 and all(pairs):
        return "ring", _only(links, set.union(*pairs), rails)
    return None


def _only(links: Links, networks: set[Network], rails: Sequence[Network]) -> Links:
    """The links on ``networks``: rails as the inventory orders them, else by number."""
    order = {rail: place for place, rail in enumerate(rails)}
    return {
        name: sorted(
            (link for link in own if link.network in networks),
            key=lambda link: (
                order.get(link.network, len(order)),
                link.network,
                link.hca is None,
                link.interface,
                link.address,
            ),
        )
        for name, own in links.items()
    }


def _same_networks(links: Links) -> Links:
    """The links with one name for networks that overlap: a prefix that differs per node is still one rail."""
    networks = {link.network for own in links.values() for link in own}

    def widest(network: Network) -> Network:
        return min((one for one in networks if network.subnet_of(one)), key=lambda one: one.prefixlen)

    return {
        name: [dataclasses.replace(link, network=widest(link.network)) for link in own] for name, own in links.items()
    }


def _management(
    nodes: Sequence[Node], facts: Mapping[str, Facts], taken: Mapping[str, set[str]]
) -> dict[str, Candidate]:
    """Where the nodes meet apart from the interconnect: a subnet that all share, else each node's best."""
    found = {node.label: candidates.management(node, facts[node.label], taken[node.label]) for node in nodes}
    for node in nodes:
        if not found[node.label]:
            candidates.interfaces_of(node.label, facts[node.label])
            raise PlanError(
                f"{node.label} has no interface that is up and has an IPv4 address to meet the others by",
                node=node.label,
                step="topology",
                hint="plug the QSFP cable in, give both twins an address, and look at `ip -br addr` there",
            )
    for name, own in found.items():
        # A node reached over its rail is still met elsewhere, if it can be: in a ring no rail joins all.
        found[name] = [one for one in own if one.interface not in taken[name]] or own
    shared = _first_shared(found.values())
    if shared is None:
        return {name: own[0] for name, own in found.items()}
    return {name: next(one for one in own if one.network == shared) for name, own in found.items()}


def _first_shared(found: Iterable[Sequence[Candidate]]) -> ipaddress.IPv4Network | None:
    lists = list(found)
    for candidate in lists[0]:
        if all(any(one.network == candidate.network for one in own) for own in lists[1:]):
            return candidate.network
    return None
