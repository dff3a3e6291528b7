"""``preflight --deep``: bandwidth between each pair of nodes, and an all-gather per group in the serving image."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sparkcluster.answers import checked
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Fact, Measure, Number, Port, Raw
from sparkcluster.facts.between import Measured, Rate
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet, failures, values
from sparkcluster.hosts.program import Conversation, Conversations
from sparkcluster.inspect import collective, perftest
from sparkcluster.inspect.measurements import (
    COLLECTIVE_S,
    Measurement,
    Rail,
    estimate,
    in_words,
    measurements,
    rounds,
    with_ranks,
)
from sparkcluster.report import Report, count
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Group, Member, Topology

T = TypeVar("T")


class Sent(Fact):
    """Bytes sent over TCP in ``seconds``, and the median round trip of a small message."""

    bytes: Number
    seconds: Measure
    latency_ms: Measure


class Ran(Fact):
    """Output and exit code of a program."""

    output: Raw
    exit: int


# Per transfer: seconds of sending, parallel TCP connections, and small messages (for the median latency).
SECONDS, STREAMS, MESSAGES = 2, 4, 200
_ASK_S = 10
# Added once to a measurement's duration: how long it may be silent; added twice: how long it may take.
_SPARE_S = 25


def deep(
    fleet: Fleet,
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    report: Report,
    *,
    epochs: Mapping[str, int],
    refused: str | None = None,
) -> Measured:
    """Measure every pair of every group, with no node in two measurements at a time; then each group as a whole.

    Only the latter starts containers, under the lease and while no rank runs; they are always removed. Ctrl-C leaves
    nothing on any node. ``report`` first gets the expected duration, then each measurement. ``epochs`` belong to our
    own lease; without one, ``refused`` says why, and no container is started.
    """
    with Conversations("measure") as programs:
        return _Run(fleet, spec, facts, topology, report, programs, epochs).go(refused)


@dataclasses.dataclass(slots=True)
class _Run:
    fleet: Fleet
    spec: Spec
    facts: Mapping[str, Facts]
    topology: Topology
    report: Report
    programs: Conversations
    epochs: Mapping[str, int]
    rates: list[Rate] = dataclasses.field(default_factory=list)
    unasked: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def go(self, refused: str | None) -> Measured:
        groups = [group for group in self.topology.groups if len(group.members) > 1]
        names = [name for group in groups for name in group.names]
        if not names:
            return Measured(())
        answers = self.fleet.each(self._has_perftest, names)
        self.unasked = {name: error.message for name, error in failures(answers).items()}
        without = [name for name, found in values(answers).items() if not found]
        if not any(link.hca for member in self.topology.members.values() for link in member.links):
            self.skipped["rdma"], without = "no rail has an HCA", []
        silent = next((f"{name} did not answer" for name in self.unasked), None)
        refused = refused or silent or collective.why_not(self.spec, self.facts, self.topology)
        todo = [
            [measurements(self.facts, pair, without) for pair in together]
            for together in rounds(self.topology, self.unasked)
        ]
        seconds = estimate(todo, SECONDS) + (COLLECTIVE_S if refused is None else 0.0)
        self.report.step("measure", f"{count(sum(map(len, todo)), 'pair')}, {in_words(seconds)}")
        if busy := [name for name in names if name in with_ranks(self.facts)]:
            slows = "its traffic lowers the results, and measuring slows it down"
            self.report.note(f"a rank runs on {', '.join(busy)}: {slows}")
        for together in todo:
            _at_once([partial(self._take, pair) for pair in together])
        if refused is None:
            self.report.step("measure", f"all-gather in {self.spec.reference}")
            _at_once([partial(self._gather, group) for group in groups])
        else:
            self.skipped["collective"] = refused
        return Measured(tuple(self.rates), dict(self.unasked), dict(self.skipped), tuple(without))

    def _has_perftest(self, host: Host) -> bool:
        request = {"do": "run", "argv": ["sh", "-c", f"command -v {perftest.TOOL}"], "limit_s": _ASK_S}
        return self._single(host.name, Ran, request, _ASK_S).exit == 0

    def _start(self, name: str, request: dict[str, Any], silence_s: float) -> Conversation:
        return self.programs.start(self.fleet[name], request, silence_s=silence_s, within_s=silence_s + _SPARE_S)

    def _single(self, name: str, kind: type[T], request: dict[str, Any], silence_s: float) -> T:
        with self._start(name, request, silence_s) as conversation:
            return _value(conversation, "done", kind)

    def _take(self, pair: Iterable[Measurement]) -> None:
        """Take the measurements of a pair; a failure is recorded, and the next one follows."""
        for each in pair:
            source, target = (end.name for end in each.ends)
            if self.programs.closed or {source, target} & set(self.unasked):
                continue
            self.report.progress(source, f"{each.kind.partition('-')[0].upper()} to {target}, {each.over}")
            try:
                self.rates.append(self._tcp(each) if each.kind == "tcp" else self._rdma(each))
            except _NoResult as error:
                self.rates.append(each.rate(None, seen=str(error)))
            except SparkclusterError as error:
                if self.programs.closed:
                    raise
                self.unasked.setdefault(error.node or source, error.message)

    def _tcp(self, one: Measurement) -> Rate:
        (source, target), (local, remote) = one.ends, one.rails[0]
        common: dict[str, Any] = {"token": secrets.token_hex(16), "address": remote.address}
        common |= {"streams": STREAMS, "messages": MESSAGES}
        silence_s = SECONDS + _SPARE_S
        with self._start(target.name, {**common, "do": "receive"}, silence_s) as receiver:
            request = {**common, "do": "send", "port": _value(receiver, "port", Port), "source": local.address}
            sent = self._single(source.name, Sent, {**request, "seconds": SECONDS}, silence_s)
        gbit_s = sent.bytes * 8 / max(sent.seconds, 1e-6) / 1e9
        return one.rate(round(gbit_s, 3), latency_ms=sent.latency_ms)

    def _rdma(self, one: Measurement) -> Rate:
        """ib_write_bw over one rail, or over several at the same time."""
        found = _at_once([partial(self._perftest, one, *each) for each in enumerate(one.rails, perftest.PORT)])
        rates = [each for each in found if isinstance(each, float)]
        wrong = [each for each in found if isinstance(each, str)]
        return one.rate(None if wrong else round(sum(rates), 2), seen="; ".join(wrong))

    def _perftest(self, one: Measurement, port: int, rail: Rail) -> float | str:
        (source, target), (local, remote), limit_s = one.ends, rail, 2 * SECONDS + 10
        serve = {"do": "run", "argv": perftest.server(remote, seconds=SECONDS, port=port), "listens": port}
        drive = {"do": "run", "argv": perftest.client(local, remote.address, seconds=SECONDS, port=port)}
        try:
            with self._start(target.name, {**serve, "limit_s": limit_s + 2}, limit_s + _SPARE_S) as server:
                _value(server, "port", Port)
                ran = self._single(source.name, Ran, {**drive, "limit_s": limit_s}, limit_s + _SPARE_S)
                if (gbit_s := perftest.average_gbit_s(ran.output)) is not None:
                    return gbit_s
                reason = perftest.complaint(ran.output, ran.exit)
        except _NoResult as error:
            reason = str(error)
        return f"{source.name} {local.hca} to {target.name} {remote.hca}: {reason}"

    def _gather(self, group: Group) -> None:
        results = _at_once([partial(self._contain, group, member) for member in group.members])
        found = dict(zip(group.names, results, strict=True))
        wrong = [f"{name}: {result.seen}" for name, result in found.items() if result.bus_gb_s is None]
        if any("No module named 'torch'" in line for line in wrong):
            self.skipped["collective"] = f"{self.spec.reference} has no torch"
            return
        rates = [result.bus_gb_s for result in results if result.bus_gb_s is not None]
        over = min((result.over for result in results), key=lambda text: "Socket" not in text)
        gbit_s = None if wrong else round(min(rates) * 8, 2)
        self.rates.append(Rate("collective", group.names, over, gbit_s, seen="; ".join(wrong)))

    def _contain(self, group: Group, member: Member) -> collective.AllGather:
        """NCCL in a container of the serving image, under the lease."""
        name, inventory = member.name, self.spec.inventory
        self.report.progress(name, "all-gather")
        ordered = {
            "do": "contain",
            "state_dir": inventory.state_dir,
            "cluster": inventory.cluster,
            "epoch": self.epochs[name],
            "name": collective.name(inventory.cluster, name),
            "argv": collective.command(self.spec, self.facts[name], group, member),
            "limit_s": collective.LIMIT_S + 10,
        }
        try:
            ran = self._single(name, Ran, ordered, collective.LIMIT_S + _SPARE_S)
        except (_NoResult, SparkclusterError) as error:
            return collective.AllGather(None, "NCCL", str(error))
        return collective.read(ran.output, ran.exit)


def _at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Results of ``jobs``, run in parallel; the first error is raised after all have ended."""
    outcomes = Calls(lambda job: job(), {str(place): job for place, job in enumerate(jobs)}).wait(threading.TIMEOUT_MAX)
    for error in failures(outcomes).values():
        raise error
    return list(values(outcomes).values())


class _NoResult(Exception):
    """The program on the node reported a failure."""


def _value(conversation: Conversation, key: str, kind: type[T]) -> T:
    """The value of ``key``, once it arrives; ``done`` is the result."""
    while key not in (answer := conversation.answer(dict[str, Any])):
        if why := answer.get("failed") or answer.get("refused"):
            raise _NoResult(f"{conversation.host.name}: {why}")
    return checked(kind, answer[key], node=conversation.host.name, step="measure")
