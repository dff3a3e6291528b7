"""Twins that NCCL pairs though no cable connects them: it pairs the HCAs of two nodes in the order of the PCI bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkcluster.checks.compare import common
from sparkcluster.checks.registry import NETPLAN_APPLY, Context, Seen, interconnect_check
from sparkcluster.findings import Remedy, edit
from sparkcluster.topology.model import Link, Member
from sparkcluster.topology.netplan import NETPLAN


@interconnect_check(
    "NET-026",
    "Twins are in the same order on every node",
    needs=("interfaces", "hcas"),
    source="NVIDIA/nccl src/graph/topo.cc: devices in PCI order; docs.nvidia.com/sync: corresponding interfaces share"
    " a subnet",
    remedy="the same subnet for the same twin of every node, or the two cables swapped",
)
def crossed(context: Context) -> Iterator[Seen]:
    """The first collective hangs or fails: NCCL pairs HCAs in their order on the PCI bus, which no cable connects here.

    A cable from port 0 to port 1 is fine, as long as it is the only one.
    """
    for group in context.topology.groups:
        ordered = {member.name: found for member in group.members if (found := _ordered(context, member))}
        if group.kind == "ring" or len({frozenset(_subnets(links)) for links in ordered.values()}) != 1:
            continue
        # Of orders that are equally frequent the head's, which comes first.
        right = common(map(_subnets, ordered.values()))
        reference = next(name for name, links in ordered.items() if _subnets(links) == right)
        for name, links in ordered.items():
            if _subnets(links) != right:
                yield _seen(context, (reference, ordered[reference]), (name, links))


def _ordered(context: Context, member: Member) -> list[Link]:
    """The links with an HCA by PCI address; none where one is unknown, or where two share a subnet."""
    links = [link for link in member.links if link.hca]
    if len({link.subnet for link in links}) < len(links) or not all(_pci(context, member.name, link) for link in links):
        return []
    return sorted(links, key=lambda link: _pci(context, member.name, link))


def _subnets(links: Sequence[Link]) -> tuple[str, ...]:
    return tuple(link.subnet for link in links)


def _pci(context: Context, node: str, link: Link) -> str:
    interface = context.facts[node].interface(link.interface)
    return (interface.pci or "") if interface is not None else ""


def _seen(context: Context, right: tuple[str, Sequence[Link]], other: tuple[str, Sequence[Link]]) -> Seen:
    (reference, expected), (name, links) = right, other
    by_subnet: Mapping[str, Link] = {link.subnet: link for link in links}
    pairs = [(link, by_subnet[link.subnet]) for link in expected]
    mine, astray = next(pair for place, pair in enumerate(pairs) if links[place] is not pair[1])
    moved = [
        edit(f"give {link.interface} of {name} an address in {mine.subnet} in {NETPLAN}")
        for mine, link in zip(expected, links, strict=True)
        if mine.subnet != link.subnet
    ]
    swap = Remedy(f"swap the two cables at {name}, if p0 is connected to p1 of {reference}", instead=True)
    remedy = (*moved, NETPLAN_APPLY, *([swap] if len(links) > 2 else ()))
    return Seen(
        f"the twins of {name} are in another order than those of {reference}",
        f"{reference}'s {mine.interface} ({_pci(context, reference, mine)}) is in {mine.subnet} with {name}'s"
        f" {astray.interface} ({_pci(context, name, astray)})",
        remedy,
        node=name,
    )
