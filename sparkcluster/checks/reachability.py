"""Checks of what the nodes reached of one another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from sparkcluster.checks.attribution import blame
from sparkcluster.checks.registry import Context, Seen, check
from sparkcluster.checks.wording import abridged, listed
from sparkcluster.facts.reach import Path
from sparkcluster.topology.model import Topology

Pair = tuple[str, str, str | None]


@check(
    "NET-040",
    "Every node could be asked what it reaches",
    stage="reach",
    severity="warning",
    remedy="look at Python and SSH of that node, then run it again",
)
def unasked(context: Context) -> Iterator[Seen]:
    """What it reaches, and who reaches it, is not known: a firewall there would be found by a hanging launch."""
    for name, reason in (context.reach.unasked if context.reach else {}).items():
        yield Seen(name, f"{name} could not try to reach the others", reason, (f"ssh {_host(context, name)} true",))


@check(
    "NET-041",
    "The nodes of a group reach each other on every rail",
    stage="reach",
    scope="interconnect",
    source="NVIDIA/dgx-spark-playbooks, connect-two-sparks",
    remedy="plug the cable in, give both ends an address in one subnet, and let the rail through the firewall",
)
def reachable(context: Context) -> Iterator[Seen]:
    """The ranks wait for each other in their first rendezvous until a time-out of minutes.

    Asked by UDP, by ICMP and by TCP: all are silent. The node named is the one whose incoming packets do not arrive,
    as the nodes themselves counted them; no node is named where two see the same of each other.
    """
    dead = _dead(context)
    failed = [path for path in _failed(context) if _pair(path) in dead]
    for node, paths in _blamed(context.topology, failed).items():
        if node is None:
            ends = list(dict.fromkeys(one for path in paths for one in (path.source, path.target)))
            yield Seen(
                None,
                f"{listed(ends)} do not reach each other on {_rails(paths)}",
                _seen(paths),
                (
                    f"plug the cable of {_rails(paths)} in on both ends, and look at its switch port",
                    "ip -br addr and ip neigh on both",
                ),
            )
        else:
            others = list(dict.fromkeys(one for path in paths for one in (path.source, path.target) if one != node))
            yield Seen(
                node,
                f"{node} cannot be reached by {listed(others)} on {_rails(paths)}",
                _seen(paths),
                (*_open(context, node, paths), "ip -br addr and ip neigh there: is the cable in, the address right?"),
            )


@check(
    "NET-042",
    "A packet of the rail's whole MTU passes",
    stage="reach",
    scope="interconnect",
    source="NVIDIA/dgx-spark-playbooks, connect-two-sparks; ping -M do",
    remedy="give every port of the switch the MTU of the Sparks or more",
)
def jumbo(context: Context) -> Iterator[Seen]:
    """A small ping passes and the first collective hangs, since its packets vanish on the way.

    Asked by UDP that may not be fragmented and whose echo is small, so that each direction speaks for itself; by ICMP
    where UDP is filtered. Judged only beside a small packet of the same kind, which a firewall would have stopped.
    """
    dead = _dead(context)
    failed = [path for path in _failed(context) if path.kind == "jumbo" and _pair(path) not in dead]
    for node, paths in _blamed(context.topology, failed).items():
        size = max(path.size_bytes or 0 for path in paths)
        ends = list(dict.fromkeys(one for path in paths for one in (path.source, path.target)))
        first = paths[0]
        own = context.facts[first.source].interface_of(first.source_address)
        yield Seen(
            node,
            f"packets of {size} bytes are lost {_direction(node, paths)} on {_rails(paths)}",
            _seen(paths),
            (
                f"sudo ip link set {own.name} mtu {size}"
                if own is not None and first.lost_at == "sent"
                else f"set an MTU of {size + 216} on the switch port of {node or listed(ends)}: some count headers",
                f"ping -M do -c 3 -W 1 -s {size - 28} {first.target_address}   on {first.source}",
            ),
        )


@check(
    "NET-043",
    "The ports that the launch will use are open between the nodes",
    stage="reach",
    scope="interconnect",
    source="Ray documentation, Configuring Ray: ports; vllm-project/vllm#40991",
    remedy="let what comes in on the interconnect through the firewall",
)
def ports(context: Context) -> Iterator[Seen]:
    """The ranks hang in their rendezvous: the head waits for nodes that cannot come to it."""
    yield from _blocked(context, ephemeral=False)


@check(
    "NET-044",
    "Ports that the kernel chooses are open between the nodes",
    stage="reach",
    scope="interconnect",
    source="NVIDIA NCCL documentation, environment variables; Ray documentation, Configuring Ray: ports",
    remedy="let what comes in on the interconnect through the firewall",
)
def ephemeral(context: Context) -> Iterator[Seen]:
    """NCCL, Gloo, Ray's workers and vLLM meet on such ports: a list of open ports lets Ray start and the engine hang.

    Ports of NET-043 that the same firewall blocks are listed with it.
    """
    yield from _blocked(context, ephemeral=True)


def _blocked(context: Context, *, ephemeral: bool) -> Iterator[Seen]:
    """TCP that one node lets nobody in by; with ``ephemeral`` where that holds for any port, else for some only."""
    dead = _dead(context)
    failed = [path for path in _failed(context) if path.kind in {"port", "ephemeral"} and _pair(path) not in dead]
    for node, paths in _blamed(context.topology, failed).items():
        wide = any(path.kind == "ephemeral" for path in paths)
        if wide is not ephemeral:
            continue
        ends = list(dict.fromkeys(one for path in paths for one in (path.source, path.target) if one != node))
        what = "TCP on any port" if wide else listed(dict.fromkeys(f"port {p.port} ({p.use})" for p in paths))
        summary = (
            f"{node} drops {what} from {listed(ends)} on {_rails(paths)}"
            if node is not None
            else f"{what} does not pass between {listed(ends)} on {_rails(paths)}"
        )
        remedy = _open(context, node, paths) if node is not None else ("sudo ufw status verbose   on both",)
        yield Seen(node, summary, _seen(paths), remedy, severity="error")


def _failed(context: Context) -> list[Path]:
    return [path for path in (context.reach.paths if context.reach else ()) if not path.ok]


def _pair(path: Path) -> Pair:
    return path.source, path.target, path.subnet


def _dead(context: Context) -> set[Pair]:
    """Directed pairs between which nothing at all passed."""
    every: dict[Pair, bool] = {}
    for path in context.reach.paths if context.reach else ():
        every[_pair(path)] = every.get(_pair(path), False) or path.ok
    return {pair for pair, passed in every.items() if not passed}


def _blamed(topology: Topology, failed: Collection[Path]) -> dict[str | None, list[Path]]:
    """``failed`` by the node to blame, over all rails; a rail and a group are judged by themselves."""
    result: dict[str | None, list[Path]] = {}
    for group in topology.groups:
        mine = {member.name for member in group.members}
        for subnet in dict.fromkeys(path.subnet for path in failed):
            paths = [path for path in failed if path.subnet == subnet and path.source in mine]
            for node, held in blame(paths, nodes=len(mine)).items():
                result.setdefault(node, []).extend(held)
    return result


def _rails(paths: Iterable[Path]) -> str:
    return listed(dict.fromkeys(path.subnet or "the management network" for path in paths))


def _direction(node: str | None, paths: Collection[Path]) -> str:
    if node is None:
        return f"between {listed(dict.fromkeys(one for path in paths for one in (path.source, path.target)))}"
    others = list(dict.fromkeys(one for path in paths for one in (path.source, path.target) if one != node))
    into = {path.target == node for path in paths}
    if len(into) > 1:
        return f"between {node} and {listed(others)}"
    return f"on the way from {listed(others)} to {node}" if into == {True} else f"from {node} to {listed(others)}"


def _seen(paths: Collection[Path]) -> str:
    """What was tried, literally."""
    said = [
        f"{path.source} to {path.target} {path.target_address} {_what(path)}: {_because(path)}"
        for path in sorted(paths, key=lambda one: (one.subnet or "", one.source, one.target))
    ]
    return abridged(said, limit=8)


def _what(path: Path) -> str:
    words: dict[str, Callable[[], str]] = {
        "ping": lambda: "ping",
        "jumbo": lambda: f"{path.size_bytes} bytes unfragmented",
        "ephemeral": lambda: "any port",
        "port": lambda: f"port {path.port} ({path.use})",
    }
    return words[path.kind]()


def _because(path: Path) -> str:
    return f"{path.seen}, though it arrived" if path.lost_at == "source" else path.seen


def _open(context: Context, node: str, paths: Iterable[Path]) -> tuple[str, ...]:
    """What lets the rails through on ``node``, by the firewall that it has."""
    addresses = dict.fromkeys(path.target_address if path.target == node else path.source_address for path in paths)
    facts = context.facts[node]
    interfaces = [one.name for address in addresses if (one := facts.interface_of(address)) is not None]
    if facts.firewall == "ufw":
        return tuple(f"sudo ufw allow in on {name}" for name in interfaces)
    if facts.firewall == "firewalld":
        return tuple(f"sudo firewall-cmd --zone=trusted --change-interface={name}" for name in interfaces)
    return (*(f"sudo iptables -I INPUT -i {name} -j ACCEPT" for name in interfaces), "sudo nft list ruleset")


def _host(context: Context, name: str) -> str:
    return next((node.host for node in context.spec.inventory.nodes if node.label == name), name)
