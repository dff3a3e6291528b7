"""Propose netplan files that give every cabled twin an address in its own subnet."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping, Sequence

from sparkcluster.checks.check import NETPLAN_APPLY, Context
from sparkcluster.facts.base import read
from sparkcluster.facts.model import Facts
from sparkcluster.facts.network import Interface
from sparkcluster.findings import Remedy, edit, on_node
from sparkcluster.printable import shell
from sparkcluster.topology import netplan
from sparkcluster.topology.candidates import LINK_LOCAL, is_up, order_on_bus
from sparkcluster.topology.model import Group
from sparkcluster.topology.netplan import NETPLAN


def proposal(context: Context, group: Group) -> dict[str, str]:
    """Text of the file by node; empty if the right addresses are uncertain.

    Twins are paired in PCI order, as in NCCL. With two cables between two nodes, or in a ring, that order does not tell
    which interfaces a cable connects.
    """
    cabled = {name: cabled_twins(context.facts[name]) for name in group.names}
    counts = {len(twins) for twins in cabled.values()}
    certain = counts == {2} or (group.kind == "switch" and len(counts) == 1)
    named = all(netplan.is_plain(twin.name) for twins in cabled.values() for twin in twins)
    if (
        group.missing
        or group.kind in {"ring", "single"}
        or not certain
        or not named
        or len(context.topology.members) > 200
    ):
        return {}
    count = counts.pop()
    subnets = list(itertools.islice(netplan.unused(_taken(context.facts, cabled)), count))
    if len(subnets) < count:
        return {}
    # Other groups may be on the same switch.
    numbers = {name: number for number, name in enumerate(context.topology.members, 11)}
    return {name: _text(cabled[name], subnets, numbers[name]) for name in group.names}


def files(context: Context) -> dict[str, str]:
    """Texts by node for groups whose twins share a subnet or have link-local addresses."""
    found: dict[str, str] = {}
    for group in context.topology.groups:
        links = [link for member in group.members for link in member.links]
        if any(member.idle_twins for member in group.members) or any(link.ip in LINK_LOCAL for link in links):
            found |= proposal(context, group)
    return found


def remedy(context: Context, name: str) -> tuple[Remedy, ...]:
    """Commands that write and apply the file of node ``name``, or advice if its text is uncertain."""
    text = proposal(context, context.topology.group_of(name)).get(name)
    if text is None:
        return (edit(f"give each twin an address in its own subnet in {NETPLAN}"), NETPLAN_APPLY)
    printed = shell(r"printf '%s\n'", *text.splitlines())
    return (
        on_node(f"{printed} | sudo tee {NETPLAN} >/dev/null"),
        on_node(f"sudo chmod 600 {NETPLAN} && sudo netplan apply", "then on the other nodes, each with its own file"),
    )


def cabled_twins(facts: Facts) -> list[Interface]:
    """Interfaces that are up and have an active HCA, in PCI order."""
    active = {hca.netdev for hca in read(facts.hcas) or () if hca.active}
    found = [each for each in read(facts.interfaces) or () if each.name in active and is_up(each)]
    return sorted(found, key=order_on_bus)


def _taken(facts: Mapping[str, Facts], cabled: Mapping[str, Sequence[Interface]]) -> Iterator[ipaddress.IPv4Network]:
    """Subnets of all interfaces that the proposed file does not configure."""
    rewritten = {(name, twin.name) for name, twins in cabled.items() for twin in twins}
    for name, node in facts.items():
        for interface in read(node.interfaces) or ():
            if (name, interface.name) not in rewritten:
                yield from (address.network for address in interface.ipv4())


def _text(twins: Sequence[Interface], subnets: Sequence[ipaddress.IPv4Network], number: int) -> str:
    return netplan.text(
        {twin.name: netplan.numbered(subnet, number) for twin, subnet in zip(twins, subnets, strict=True)}
    )
