"""Tests which nodes reach each other, from all nodes at the same time. Changes nothing and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from sparkcluster.answers import malformed
from sparkcluster.facts.base import Fact, Port, read
from sparkcluster.facts.between import Path, PathKind, Reach
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.hosts.program import Conversation, Conversations
from sparkcluster.inspect.measurements import shared, up, with_ranks
from sparkcluster.report import Report
from sparkcluster.spec import Spec
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group, Topology

_ANSWER_S = 8
_OPENED = "ephemeral"


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """The path from one node to another over one rail, or over the management network (``subnet`` None).

    Attributes:
        size_bytes: of a packet that fills the rail's MTU; None to send no such packet.
        ports: ports that the launch will use on the target, each with its user; once the target listens, only the free
            ones, after one that the kernel chose.
        udp: the port on which the target listens for packets.
        number: even; the large packet has the next number.
    """

    source: str
    target: str
    subnet: str | None
    source_address: str
    target_address: str
    size_bytes: int | None
    ports: tuple[tuple[int, str], ...] = ()
    udp: int = 0
    number: int = 0

    def as_request(self) -> dict[str, Any]:
        """The request to the source node."""
        addresses = {"source": self.source_address, "target": self.target_address}
        numbers = {"id": self.number, "udp": self.udp, "size_bytes": self.size_bytes}
        return {**addresses, **numbers, "tcp": [port for port, _ in self.ports]}


def pairs(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> tuple[Pair, ...]:
    """Every ordered pair of nodes in a group, on every shared rail and on the network where its ranks meet.

    Known faults of other checks are skipped: links that are down, duplicate addresses, and the large packet if MTUs
    differ.
    """
    return tuple(itertools.chain.from_iterable(_of_group(spec, facts, group) for group in topology.groups))


def _of_group(spec: Spec, facts: Mapping[str, Facts], group: Group) -> Iterator[Pair]:
    engine, docker = engine_of(facts[group.head.name]), spec.inventory.runtime.kind == "docker"
    meet = parallel.rendezvous(spec.playbook, group, engine, bring_ray=docker)
    owners = Counter(link.address for member in group.members for link in member.links)
    for source, target in itertools.permutations(group.members, 2):
        here = (meet,) if meet is not None and target.rank == 0 else ()
        met = False
        for local, remote in shared(source, target):
            met = met or remote.address == target.address
            if not (up(facts, source, local) and up(facts, target, remote)):
                continue
            if owners[local.address] > 1 or owners[remote.address] > 1:
                continue
            yield Pair(
                source.name,
                target.name,
                remote.subnet,
                local.address,
                remote.address,
                remote.mtu if local.mtu == remote.mtu else None,
                here if remote.address == target.address else (),
            )
        if not met:
            yield Pair(source.name, target.name, None, source.address, target.address, None, here)


class Listening(Fact):
    """The ports on which a node listens, and the addresses on which it cannot."""

    udp: dict[str, Port]
    tcp: dict[str, Port]
    fixed: tuple[tuple[str, Port], ...]
    failed: dict[str, str]


class Probed(Fact):
    """One attempt; ``port`` is its source port."""

    ok: bool
    rtt_ms: float | None = None
    seen: str = ""
    own: bool = False
    port: int | None = Field(None, alias="from")


class Result(Fact):
    """All attempts between two addresses."""

    udp: Probed | None = None
    udp_full: Probed | None = None
    icmp: Probed | None = None
    tcp: dict[str, Probed] = Field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether no attempt failed, except ICMP, which only confirms the others."""
        probed = (self.udp, self.udp_full, *self.tcp.values())
        return all(each.ok for each in probed if each is not None)


class Tried(Fact):
    """Results by number of attempt."""

    results: dict[str, Result]


class Heard(Fact):
    """Numbers of the packets that arrived, and connections: address, port, source address, source port."""

    udp: tuple[int, ...]
    tcp: tuple[tuple[str, int, str, int], ...]


def reach(
    fleet: Fleet,
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    report: Report,
    *,
    epochs: Mapping[str, int] | None = None,
) -> Reach:
    """Test what every node reaches of its group: one program per node, two round trips, at most one time-out.

    A port of the launch is only tried if it is free, no rank runs and no other operator holds the lease, since
    preflight must not disturb a start. ``epochs`` belong to our own lease, if we hold it.
    """
    planned = pairs(spec, facts, topology)
    names = list(dict.fromkeys(pair.source for pair in planned))
    if not names:
        return Reach(())
    report.step("check", "each Spark reaches the others")
    token, busy = secrets.token_hex(16), with_ranks(facts) | _changing(facts, epochs or {})
    opened: dict[str, Conversation] = {}

    def listen(host: Host) -> Listening:
        mine = [pair for pair in planned if pair.target == host.name]
        addresses = [pair.target_address for pair in mine]
        addresses += [pair.source_address for pair in planned if pair.source == host.name]
        fixed = dict.fromkeys((pair.target_address, port) for pair in mine for port, _ in pair.ports)
        request = {
            "token": token,
            "addresses": list(dict.fromkeys(addresses)),
            "fixed": [] if host.name in busy else [list(port) for port in fixed],
        }
        conversation = opened[host.name] = programs.start(host, request, silence_s=_ANSWER_S)
        return conversation.answer(Listening)

    def attempt(host: Host) -> dict[str, Result]:
        mine = [pair.as_request() for pair in tried if pair.source == host.name]
        opened[host.name].say({"try": mine})
        found = opened[host.name].answer(Tried).results
        if not {str(each["id"]) for each in mine} <= found.keys():
            raise malformed(host.name, "reach", "results: some are missing")
        return found

    def hear(host: Host) -> Heard:
        opened[host.name].say({"heard": True})
        return opened[host.name].answer(Heard)

    # nodes that do not answer are skipped from here on
    with Conversations("reach") as programs:
        listening = fleet.each(listen, names)
        there = values(listening)
        tried = list(_tried(planned, there))
        outcomes = fleet.each(attempt, there)
        results, heard = values(outcomes), dict[str, Heard]()
        if not all(result.well for found in results.values() for result in found.values()):
            heard = values(fleet.each(hear, results))
    paths: list[Path] = []
    for pair in tried:
        if (found := results.get(pair.source)) is not None:
            paths += _paths(pair, found[str(pair.number)], heard.get(pair.target))
    unasked = {
        name: f"cannot listen on {address}: {reason}"
        for name, ports in there.items()
        for address, reason in ports.failed.items()
    }
    unasked |= {name: error.message for name, error in failures({**listening, **outcomes}).items()}
    return Reach(tuple(paths), unasked)


def _changing(facts: Mapping[str, Facts], epochs: Mapping[str, int]) -> set[str]:
    """Nodes whose lease is held by someone else."""
    leases = {name: read(node.lease) for name, node in facts.items()}
    return {name for name, lease in leases.items() if lease and lease.held and lease.epoch != epochs.get(name)}


def _tried(planned: Iterable[Pair], there: Mapping[str, Listening]) -> Iterator[Pair]:
    """The pairs whose ends both listen, with the target's ports."""
    for place, pair in enumerate(planned):
        ports = there.get(pair.target)
        if ports is None or pair.source not in there or pair.source_address in there[pair.source].failed:
            continue
        udp, tcp = ports.udp.get(pair.target_address), ports.tcp.get(pair.target_address)
        if udp is not None and tcp is not None:
            free = [each for each in pair.ports if (pair.target_address, each[0]) in ports.fixed]
            yield dataclasses.replace(pair, number=2 * place, udp=udp, ports=((tcp, _OPENED), *free))


def _paths(pair: Pair, result: Result, heard: Heard | None) -> Iterator[Path]:
    """Results of the probes between two nodes; ``heard`` is what the target received, if it was queried."""
    udp, icmp = result.udp, result.icmp
    where = pair.source, pair.target, pair.subnet, pair.source_address, pair.target_address

    def path(kind: PathKind, part: Probed, came: bool | None, **more: Any) -> Path:
        lost: Literal["source", "target", "sent"] | None = None
        if not part.ok and (part.own or came is not None):
            lost = "sent" if part.own else "source" if came else "target"
        return Path(*where, kind, part.ok, seen="" if part.ok else part.seen, lost_at=lost, **more)

    def udp_came(number: int) -> bool | None:
        return None if heard is None else number in heard.udp

    small = udp if icmp is None or (udp and (udp.ok or udp.own)) else icmp
    if small:
        yield path("ping", small, udp_came(pair.number), rtt_ms=udp and udp.rtt_ms)
    # A lost large packet means a wrong MTU only if a small one came through; else a firewall may block both.
    if udp and udp.ok and result.udp_full:
        yield path("jumbo", result.udp_full, udp_came(pair.number + 1), size_bytes=pair.size_bytes)
    for port, use in pair.ports:
        if (part := result.tcp.get(str(port))) is not None:
            began = (pair.target_address, port, pair.source_address, part.port)
            came = None if heard is None else began in heard.tcp
            kind: PathKind = "ephemeral" if use is _OPENED else "port"
            yield path(kind, part, came, port=port, use="" if kind == "ephemeral" else use)
