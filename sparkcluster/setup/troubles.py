"""Messages and remedies for problems of the cabling. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sparkcluster.printable import shell
from sparkcluster.setup.ports import Loose, Port, Segment, Trouble
from sparkcluster.topology.candidates import is_up


def same_machine(name: str, first: str) -> Trouble:
    """``name`` and ``first`` are the same machine."""
    text = f"{name} is the same machine as {first}, under another name or address"
    return Trouble("same-machine", name, text, f"remove one of {first} and {name}")


def no_cable(node: str, ports: Sequence[Port]) -> Trouble:
    """No port of ``node`` has a link."""
    text, hint = f"no QSFP port of {node} has a link", f"connect the cable at {node} and at its other end"
    if not ports:
        text = f"{node} has no QSFP cable: its ConnectX-7 is absent from PCI without a cable"
        hint = f"connect the cable at {node}, then run `sudo reboot` there, or unplug the cable and plug it in again"
    return Trouble("no-cable", node, text, hint)


def unknown_end(loose: Loose) -> Trouble:
    """The other end of a cable is unknown, or does not see this port."""
    name, port, seen = "unknown-end", loose.port, loose.seen
    if seen:
        text = f"{port} sees {', '.join(seen[:3])}, which is unknown or does not see this port; link ignored"
        flush = "; ".join(shell("sudo ip neigh flush dev", twin.name) for twin in port.twins)
        hint = f"add the machine at its other end, or check the cable; if it was moved: {flush}   on {port.node}"
    elif loose.unaddressed:
        # Four attempts of 45 s: autoconnect-retries-default in NetworkManager.conf(5), dhcp-timeout in nm-settings(5).
        name = "no-address"
        text = f"{port} has a link, but no address: NetworkManager gave up after 3 minutes without a DHCP server"
        up = shell("sudo nmcli --wait 0 device connect", next(twin.name for twin in port.twins if twin.carrier))
        again = "the same at the other end, then retry this command within 3 minutes"
        hint = f"{up}   on {port.node}, {again}"
    else:
        text = f"{port} has a link, but no other machine answers there"
        hint = f"follow the cable at {port} and switch on the machine at its other end"
    return Trouble(name, port.node, text, hint)


def unconnected(
    group: Sequence[str], segments: Sequence[Segment], ports: Mapping[str, Sequence[Port]]
) -> Iterator[Trouble]:
    """A pair of nodes of ``group`` without a common segment; such a group cannot be started."""
    pairs = {pair for segment in segments for pair in itertools.permutations(segment.nodes, 2)}
    missing = [pair for pair in itertools.combinations(group, 2) if pair not in pairs]
    if not missing:
        return
    one, other = missing[0]
    text = f"{one} and {other} have cables, but none between them"
    free = [next((port for port in ports[name] if not port.cabled), None) for name in (one, other)]
    if len(group) == 3 and free[0] and free[1]:
        hint = f"connect {free[0]} with {free[1]} to complete the ring of three Sparks"
    else:
        hint = "connect all of them to one switch; direct cables connect at most three Sparks"
    yield Trouble("not-connected", one, text, hint)


def swapped(
    nodes: Sequence[str], segments: Sequence[Segment], ports: Mapping[str, Sequence[Port]]
) -> Iterator[Trouble]:
    """Nodes whose ports are on two segments in a different order than on most nodes.

    NCCL pairs the HCAs of two nodes in PCI order (NVIDIA/nccl src/graph/topo.cc); check NET-026 reports the same after
    setup.
    """
    named: set[str] = set()
    for one, other in itertools.combinations(segments, 2):
        both = [node for node in nodes if node in one.nodes and node in other.nodes]
        orders = {node: _index(one, node, ports) < _index(other, node, ports) for node in both}
        counts = Counter(orders.values())
        if len(counts) < 2:
            continue
        right = counts.most_common(1)[0][0]  # on a tie, the first node decides
        for node in both:
            if orders[node] != right and node not in named:
                named.add(node)
                reference = next(each for each in both if orders[each] == right)
                mine, there = one.ports_of(reference)[0], one.ports_of(node)[0]
                text = f"{mine} is cabled to {there}, but NCCL needs the same port order on all nodes"
                first, second = sorted((there.name, other.ports_of(node)[0].name))
                yield Trouble("swapped-cables", node, text, f"swap the two cables at {node}, {first} with {second}")


def _index(segment: Segment, node: str, ports: Mapping[str, Sequence[Port]]) -> int:
    return ports[node].index(segment.ports_of(node)[0])


def twins_down(cabled: Sequence[Port]) -> Iterator[Trouble]:
    """Twins that are down or absent on a port with a link, which halves its bandwidth."""
    most = max((len(port.twins) for port in cabled), default=0)
    for port in cabled:
        for twin in port.twins:
            if not is_up(twin):
                text = f"{twin.name} of {port.node} is {twin.operstate}, but the other twin of {port.name} has a link"
                up = shell("sudo ip link set", twin.name, "up")
                yield Trouble("twin-down", port.node, text, f"{up}   on {port.node}")
        if len(port.twins) < most:
            text = f"{port} has only one of its {most} twins, {port.twins[0].name}"
            hint = f"sudo reboot   on {port.node}, with the cable connected"
            yield Trouble("twin-absent", port.node, text, hint)
