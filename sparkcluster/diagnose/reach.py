"""Asking every node at once what it reaches of the others. Nothing is changed, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sparkcluster.diagnose.pairs import Pair, pairs, with_ranks
from sparkcluster.facts.model import Facts
from sparkcluster.facts.reach import Path, PathKind, Reach
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.conversation import Conversation, Conversations
from sparkcluster.hosts.fleet import Fleet, failures, values
from sparkcluster.report import Report
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Topology

LIMIT_S = 1.5  # for a silent target: the kernel repeats a lost SYN after one second
_ANSWER_S = 8
_OPENED = "ephemeral"


def reach(
    fleet: Fleet,
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    report: Report,
    *,
    epoch: int | None = None,
) -> Reach:
    """What every node reaches of its group: one program on each, two round trips, one time-out at most.

    A port that the launch will use is tried only where nobody listens on it, no rank runs and nobody else holds the
    lease: a preflight must not be in the way of a start. ``epoch`` is that of our own lease, where we hold it.
    """
    planned = pairs(spec, facts, topology)
    names = list(dict.fromkeys(pair.source for pair in planned))
    if not names:
        return Reach(())
    report.step("reach", f"{len(names)} nodes, each to the others")
    common = {
        "token": secrets.token_hex(16),
        "state_dir": spec.inventory.state_dir,
        "cluster": spec.inventory.cluster,
        "epoch": epoch,
        "limit_s": LIMIT_S,
    }
    with Conversations("reach") as programs:
        return _Run(fleet, planned, with_ranks(facts), common, programs).go(names)


@dataclasses.dataclass(slots=True)
class _Run:
    fleet: Fleet
    planned: Sequence[Pair]
    busy: Collection[str]
    common: Mapping[str, Any]
    programs: Conversations
    open: dict[str, Conversation] = dataclasses.field(default_factory=dict)

    def go(self, names: Sequence[str]) -> Reach:
        """Both phases; a node that does not answer is left out of what follows."""
        listening = self.fleet.each(self._listen, names)
        unasked = {name: error.message for name, error in failures(listening).items()}
        there = values(listening)
        attempts = list(_attempts(self.planned, there))
        tried = self.fleet.each(lambda host: self._try(host.name, attempts), there)
        unasked |= {name: error.message for name, error in failures(tried).items()}
        results = values(tried)
        heard: dict[str, dict[str, Any]] = {}
        if any(not _well(results.get(attempt.pair.source, {}).get(str(attempt.number), {})) for attempt in attempts):
            heard = values(self.fleet.each(self._heard, [name for name in there if name in results]))
        paths = [
            path
            for attempt in attempts
            if attempt.pair.source in results
            for path in _paths(
                attempt, results[attempt.pair.source][str(attempt.number)], heard.get(attempt.pair.target)
            )
        ]
        for name, ports in there.items():
            for address, reason in ports["failed"].items():
                unasked.setdefault(name, f"cannot listen on {address}: {reason}")
        return Reach(tuple(paths), unasked)

    def _listen(self, host: Host) -> dict[str, Any]:
        mine = [pair for pair in self.planned if pair.target == host.name]
        addresses = dict.fromkeys(
            [pair.target_address for pair in mine] + [p.source_address for p in self.planned if p.source == host.name]
        )
        fixed = {(pair.target_address, port): None for pair in mine for port, _ in pair.ports}
        request = {
            **self.common,
            "addresses": list(addresses),
            "fixed": [] if host.name in self.busy else [list(port) for port in fixed],
        }
        conversation = self.open[host.name] = self.programs.start(host, request, silence_s=_ANSWER_S)
        return conversation.answer()

    def _try(self, name: str, attempts: Sequence[_Attempt]) -> dict[str, Any]:
        mine = [attempt.as_request() for attempt in attempts if attempt.pair.source == name]
        conversation = self.open[name]
        conversation.say({"try": mine})
        results: dict[str, Any] = conversation.answer()["results"]
        return results

    def _heard(self, host: Host) -> dict[str, Any]:
        conversation = self.open[host.name]
        conversation.say({"heard": True})
        return conversation.answer()


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One pair with the ports where its target listens; ``number`` is even, the next one its large packet's."""

    number: int
    pair: Pair
    udp: int
    tcp: tuple[tuple[int, str], ...]

    def as_request(self) -> dict[str, Any]:
        return {
            "id": self.number,
            "source": self.pair.source_address,
            "target": self.pair.target_address,
            "udp": self.udp,
            "size_bytes": self.pair.size_bytes,
            "tcp": [port for port, _ in self.tcp],
        }


def _attempts(planned: Iterable[Pair], there: Mapping[str, dict[str, Any]]) -> Iterator[_Attempt]:
    for place, pair in enumerate(planned):
        ports = there.get(pair.target)
        if ports is None or pair.source not in there or pair.target_address not in ports["udp"]:
            continue
        if pair.source_address in there[pair.source]["failed"]:
            continue
        listens = [tuple(entry) for entry in ports["fixed"]]
        fixed = [(port, use) for port, use in pair.ports if (pair.target_address, port) in listens]
        ephemeral = (ports["tcp"][pair.target_address], _OPENED)
        yield _Attempt(2 * place, pair, ports["udp"][pair.target_address], (ephemeral, *fixed))


def _well(result: Mapping[str, Any]) -> bool:
    parts = [part for name, part in result.items() if name != "tcp"]
    return all(part["ok"] for part in [*parts, *result.get("tcp", {}).values()])


def _paths(attempt: _Attempt, result: Mapping[str, Any], heard: Mapping[str, Any] | None) -> Iterator[Path]:
    """Results of the probes between two nodes; ``heard`` is what the target received, if it was queried."""
    pair = attempt.pair
    udp, icmp = result.get("udp", {}), result.get("icmp", {})
    rtt = udp.get("rtt_ms") or icmp.get("rtt_ms")

    def path(kind: PathKind, part: Mapping[str, Any], came: bool | None, **more: Any) -> Path:
        ok = bool(part["ok"])
        lost: Literal["source", "target", "sent"] | None = None
        if not ok and part.get("own"):
            lost = "sent"
        elif not ok and came is not None:
            lost = "source" if came else "target"
        return Path(
            source=pair.source,
            target=pair.target,
            subnet=pair.subnet,
            source_address=pair.source_address,
            target_address=pair.target_address,
            kind=kind,
            ok=ok,
            seen="" if ok else str(part.get("seen", "")),
            lost_at=lost,
            **more,
        )

    def udp_came(number: int) -> bool | None:
        return None if heard is None else number in heard["udp"]

    small = udp if udp.get("ok") or udp.get("own") or not icmp else icmp
    if small:
        yield path("ping", small, udp_came(attempt.number), rtt_ms=rtt)
    verdicts = [
        result[full]
        for kind, full in (("udp", "udp_full"), ("icmp", "icmp_full"))
        if result.get(kind, {}).get("ok") and full in result
    ]
    if verdicts:
        # Only beside a small packet of the same kind does the large one speak of its size and not of a firewall.
        best = next((part for part in verdicts if part["ok"]), verdicts[0])
        came = udp_came(attempt.number + 1) if best is result.get("udp_full") else None
        yield path("jumbo", best, came, size_bytes=pair.size_bytes)
    for port, use in attempt.tcp:
        part = result["tcp"].get(str(port))
        if part is None:
            continue
        began = [pair.target_address, port, pair.source_address, part.get("from")]
        came = None if heard is None else began in heard["tcp"]
        kind: PathKind = "ephemeral" if use is _OPENED else "port"
        yield path(kind, part, came, port=port, use="" if kind == "ephemeral" else use)
