"""Checks of connections and ports between nodes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

from sparkcluster.checks.attribution import between, by_faulty_node, ends, rails
from sparkcluster.checks.check import Context, Seen, check, reach_check
from sparkcluster.checks.compare import abridged, listed
from sparkcluster.facts.between import Path, PathKind
from sparkcluster.findings import Remedy, here, on_node
from sparkcluster.printable import shell


@check(
    "NET-040",
    "Every node tested its connections",
    stage="reach",
    severity="warning",
    remedy=(here("ssh {host} true"), "check Python and SSH on that node, then retry"),
)
def untested(context: Context) -> Iterator[Seen]:
    """The connections of this node are unknown; a firewall there would hang the launch without a message."""
    for name, reason in context.reach.unasked.items():
        summary = f"{name} could not test its connections to the others"
        yield Seen(summary, reason, node=name, values={"host": context.host(name)})


@reach_check(
    "NET-041",
    "The nodes of a group reach each other on every rail",
    source="NVIDIA/dgx-spark-playbooks, connect-two-sparks",
    remedy="connect the cable, give both ends an address in one subnet, and allow the rail in the firewall",
)
def reachable(context: Context) -> Iterator[Seen]:
    """The ranks wait at their first rendezvous and time out after minutes.

    UDP, ICMP and TCP got no reply. The finding names the node that does not receive packets, by the nodes' own
    counters; it names no node if two nodes report the same of each other.
    """
    for node, paths in _by_faulty_node(context).items():
        if node is None:
            yield Seen(
                f"{listed(ends(paths))} do not reach each other on {rails(paths)}",
                _seen(paths),
                (
                    f"connect the cable of {rails(paths)} at both ends, and check its switch port",
                    on_node("ip -br addr; ip neigh", on="both"),
                ),
            )
        else:
            yield Seen(
                f"{node} cannot be reached by {listed(ends(paths, node))} on {rails(paths)}",
                _seen(paths),
                (*_open(context, node, paths), on_node("ip -br addr; ip neigh", "check cable and address")),
                node=node,
            )


@reach_check(
    "NET-042",
    "A packet of the rail's full MTU passes",
    source="NVIDIA/dgx-spark-playbooks, connect-two-sparks; ping -M do",
    remedy="set the MTU of every switch port to the MTU of the Sparks or more",
)
def jumbo(context: Context) -> Iterator[Seen]:
    """Small pings pass, but the first collective hangs because its large packets are dropped on the way.

    Tested with unfragmented UDP and a small reply, so that each direction is tested separately. Checked only if a small
    packet passed, which excludes firewalls.
    """
    for node, paths in _by_faulty_node(context, "jumbo").items():
        size = max(path.size_bytes or 0 for path in paths)
        first = paths[0]
        interface = context.facts[first.source].interface_of(first.source_address)
        yield Seen(
            f"packets of {size} bytes are lost {between(node, paths)} on {rails(paths)}",
            _seen(paths),
            (
                on_node(shell("sudo ip link set", interface.name, "mtu", size))
                if interface is not None and first.lost_at == "sent"
                else f"set the switch port of {node or listed(ends(paths))} to MTU {size + 216}",
                on_node(f"ping -M do -c 3 -W 1 -s {size - 28} {first.target_address}", on=first.source),
            ),
            node=node,
        )


@reach_check(
    "NET-043",
    "The launch ports and ephemeral ports are open between the nodes",
    source="Ray documentation, Configuring Ray: ports; NVIDIA NCCL documentation, environment variables",
    remedy="allow incoming traffic on the interconnect in the firewall",
)
def ports(context: Context) -> Iterator[Seen]:
    """The ranks hang at their rendezvous: nodes cannot connect to the head.

    NCCL, Gloo, Ray and engines use ephemeral ports: if only listed ports are open, Ray starts but the engine hangs.
    """
    for node, paths in _by_faulty_node(context, "port", "ephemeral").items():
        others = listed(ends(paths, node))
        any_port = any(path.kind == "ephemeral" for path in paths)
        what = "TCP on any port" if any_port else listed(dict.fromkeys(f"port {p.port} ({p.use})" for p in paths))
        summary = f"{what} does not pass between {others} on {rails(paths)}"
        remedy: Sequence[Remedy] = [on_node("sudo ufw status verbose", on="both")]
        if node is not None:
            summary, remedy = f"{node} drops {what} from {others} on {rails(paths)}", _open(context, node, paths)
        yield Seen(summary, _seen(paths), remedy, node=node)


def _by_faulty_node(context: Context, *kinds: PathKind) -> dict[str | None, list[Path]]:
    """Failed paths by the node at fault, separately for each rail of each group.

    With ``kinds``, paths of these kinds where a packet of another kind passed; without, paths where none passed.
    """
    passed = {(path.source, path.target, path.subnet) for path in context.reach.paths if path.ok}
    result: dict[str | None, list[Path]] = {}
    rails: dict[str | None, list[Path]] = {}
    for path in context.reach.paths:
        some_passed = (path.source, path.target, path.subnet) in passed
        if not path.ok and (some_passed and path.kind in kinds if kinds else not some_passed):
            rails.setdefault(path.subnet, []).append(path)
    for group, paths in itertools.product(context.topology.groups, rails.values()):
        of_group = [path for path in paths if path.source in group.names]
        for node, attributed in by_faulty_node(of_group, nodes=len(group.members)).items():
            result.setdefault(node, []).extend(attributed)
    return result


def _seen(paths: Collection[Path]) -> str:
    """The attempts and their results, for ``Seen.seen``."""
    tests = {"jumbo": "{0.size_bytes} bytes unfragmented", "ephemeral": "any port", "port": "port {0.port} ({0.use})"}
    return abridged(
        (
            f"{path.source} to {path.target} {path.target_address} "
            f"{tests.get(path.kind, path.kind).format(path)}: {path.seen}"
            + (", though it arrived" if path.lost_at == "source" else "")
            for path in sorted(paths, key=lambda path: (path.subnet or "", path.source, path.target))
        ),
        limit=8,
    )


def _open(context: Context, node: str, paths: Iterable[Path]) -> list[Remedy]:
    """Commands that allow the rails in the firewall of ``node``."""
    addresses = dict.fromkeys(path.target_address if path.target == node else path.source_address for path in paths)
    facts = context.facts[node]
    interfaces = [found.name for address in addresses if (found := facts.interface_of(address)) is not None]
    if facts.firewall == "ufw":
        return [on_node(shell("sudo ufw allow in on", name)) for name in interfaces]
    rules = [on_node(shell("sudo iptables -I INPUT -i", name, "-j", "ACCEPT")) for name in interfaces]
    return [*rules, on_node("sudo nft list ruleset")]
