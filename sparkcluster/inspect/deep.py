"""``preflight --deep``: bandwidth of each pair of nodes, and of each group by an all-gather in the serving image."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sparkcluster.answers import checked
from sparkcluster.errors import SparkclusterError
from sparkcluster.facts.base import Fact, Measure, Number, Port, Raw
from sparkcluster.facts.measured import Measured, Rate, RateKind
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.conversation import Conversation, Conversations
from sparkcluster.hosts.fleet import Calls, Fleet, failures, values
from sparkcluster.inspect import collective, perftest
from sparkcluster.inspect.pairs import shared, up, with_ranks
from sparkcluster.inspect.schedule import Options, estimate, in_words, perftest_seconds, schedule
from sparkcluster.report import Report, count
from sparkcluster.spec import Spec
from sparkcluster.topology.model import Group, Link, Member, Topology

T = TypeVar("T")


class Received(Fact):
    """What came over TCP, from the first byte to the last."""

    bytes: Number
    seconds: Measure


class Sent(Fact):
    """The median round trip of a small message."""

    latency_ms: Measure


class Ran(Fact):
    """The output of a program, and its exit code if it ended."""

    output: Raw
    exit: int | None


Ends = tuple[Member, Member]
Rail = tuple[Link, Link]

_ASK_S = 10
# Added to a measurement's own duration once, this is how long it may be silent; added twice, how long it may take.
_SPARE_S = 25


def deep(
    fleet: Fleet,
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    report: Report,
    *,
    epochs: Mapping[str, int] | None = None,
    options: Options = Options(),  # noqa: B008 - immutable
) -> Measured:
    """Measure every pair of every group, no node in two measurements at a time, then each group as a whole.

    Only the latter starts containers, under the lease and while no rank runs; they are removed in any case. Ctrl-C
    leaves nothing on any node. ``report`` gets the expected duration first, then each measurement. ``epochs`` are those
    of our own lease; None skips the containers.
    """
    with Conversations("measure") as programs:
        return _Run(fleet, spec, facts, topology, report, options, programs).go(epochs)


@dataclasses.dataclass(slots=True)
class _Run:
    fleet: Fleet
    spec: Spec
    facts: Mapping[str, Facts]
    topology: Topology
    report: Report
    options: Options
    programs: Conversations
    rates: list[Rate] = dataclasses.field(default_factory=list)
    unasked: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    tools: dict[str, bool] = dataclasses.field(default_factory=dict)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    # the sequence

    def go(self, epochs: Mapping[str, int] | None) -> Measured:
        names = [member.name for group in self.topology.groups if len(group.members) > 1 for member in group.members]
        if not names:
            return Measured(())
        answers = self.fleet.each(self._tools, names)
        self.unasked = {name: error.message for name, error in failures(answers).items()}
        self.tools = values(answers)
        without = tuple(name for name in names if not self.tools.get(name) and name not in self.unasked)
        links = [link for member in self.topology.members.values() for link in member.links]
        if not any(link.hca for link in links):
            self.skipped["rdma"] = "no rail has an HCA"
            without = ()
        refused = self._no_collective(epochs)
        rounds = schedule(self.topology, self.unasked)
        seconds = estimate(
            self.topology, self.options, rdma=any(self.tools.values()) and "rdma" not in self.skipped,
            collective=refused is None, sends=refused is None and bool(without),
        )  # fmt: skip
        pairs = sum(len(pairs) for pairs in rounds)
        self.report.step("measure", f"{count(pairs, 'pair')}, {in_words(seconds)}")
        occupied = with_ranks(self.facts)
        busy = [name for name in names if name in occupied]
        if busy:
            self.report.note(
                f"a rank runs on {', '.join(busy)}: its traffic lowers the figures, and measuring slows it down"
            )
        for together in rounds:
            _at_once([partial(self._measure_pair, *pair) for pair in together])
        if refused is None:
            for together in rounds if without else ():
                _at_once([partial(self._measure_hcas, *pair, epochs=epochs or {}) for pair in together])
            self.report.step("measure", f"all-gather in {self.spec.reference}")
            groups = [group for group in self.topology.groups if len(group.members) > 1]
            _at_once([partial(self._measure_group, group, epochs or {}) for group in groups])
        else:
            self.skipped["collective"] = refused
        return Measured(tuple(self.rates), dict(self.unasked), dict(self.skipped), without)

    def _tools(self, host: Host) -> bool:
        request = {"do": "tools", "names": [perftest.TOOL]}
        return bool(self._single(host.name, dict[str, bool], request, _ASK_S).get(perftest.TOOL))

    def _no_collective(self, epochs: Mapping[str, int] | None) -> str | None:
        if not self.options.collective:
            return "skipped: fix the errors above first"
        if self.unasked:
            return f"{next(iter(self.unasked))} did not answer"
        other = "it starts containers, and another operator holds the lease" if epochs is None else None
        return collective.why_not(self.spec, self.facts, self.topology) or other

    # connections

    def _start(self, name: str, request: dict[str, Any], silence_s: float) -> Conversation:
        return self.programs.start(self.fleet[name], request, silence_s=silence_s, within_s=silence_s + _SPARE_S)

    def _single(self, name: str, kind: type[T], request: dict[str, Any], silence_s: float) -> T:
        with self._start(name, request, silence_s) as conversation:
            return _value(conversation, "done", kind)

    # one pair

    def _measure_pair(self, *names: str) -> None:
        first, second = pair = self.topology.members[names[0]], self.topology.members[names[1]]
        rails = [
            links for links in shared(*pair) if up(self.facts, first, links[0]) and up(self.facts, second, links[1])
        ]
        for ends, links in _both_ways(pair, rails):
            self._keep("tcp", ends, links[0], partial(self._tcp, ends, links))
        if not (self.tools.get(first.name) and self.tools.get(second.name)):
            return
        fast = [ends for ends in rails if perftest.usable(*ends)]
        for ends, links in _both_ways(pair, fast):
            self._keep("rdma", ends, links[0], partial(self._rdma, ends, [links]))
        if len(fast) > 1:
            self._keep("rdma-both", pair, fast[0][0], partial(self._rdma, pair, fast))

    def _keep(self, kind: RateKind, ends: Ends, link: Link, measure: Callable[[], Rate]) -> None:
        """Take one measurement; a failed one is kept as such, and the next follows."""
        source, target = ends
        if self.programs.closed or {source.name, target.name} & set(self.unasked):
            return
        over = link.interface if kind == "tcp" else link.hca if kind == "rdma" else "both twins"
        self.report.progress(source.name, f"{kind[:4].rstrip('-').upper()} to {target.name}, {over}")
        try:
            rate = measure()
        except _NoResult as error:
            rate = Rate(kind, (source.name, target.name), str(over), None, seen=str(error), subnet=link.subnet)
        except SparkclusterError as error:
            if self.programs.closed:
                raise
            self.unasked.setdefault(error.node or source.name, error.message)
            return
        with self._lock:
            self.rates.append(rate)

    def _tcp(self, pair: Ends, ends: Rail) -> Rate:
        (source, target), (local, remote) = pair, ends
        options = self.options
        shared_request = {"token": secrets.token_hex(16), "streams": options.streams, "address": remote.address}
        silence_s = options.seconds + _SPARE_S
        with self._start(target.name, {**shared_request, "do": "receive"}, silence_s) as receiver:
            port = _value(receiver, "port", Port)
            request = {
                **shared_request, "do": "send", "port": port, "source": local.address, "seconds": options.seconds,
                "messages": options.messages,
            }  # fmt: skip
            sent = self._single(source.name, Sent, request, silence_s)
            received = _value(receiver, "done", Received)
        gbit_s = received.bytes * 8 / max(received.seconds, 1e-6) / 1e9
        names, latency_ms = (source.name, target.name), sent.latency_ms
        return Rate("tcp", names, local.interface, round(gbit_s, 3), latency_ms, subnet=local.subnet)

    def _rdma(self, pair: Ends, rails: Sequence[Rail]) -> Rate:
        """ib_write_bw over one rail, or over several at once."""
        source, target = pair
        kind: RateKind = "rdma" if len(rails) == 1 else "rdma-both"
        over = " and ".join(str(local.hca) for local, _ in rails)
        found = _at_once(
            [partial(self._perftest, pair, rail, perftest.PORT + place) for place, rail in enumerate(rails)]
        )
        wrong = [str(each) for each in found if isinstance(each, str)]
        total = None if wrong else round(sum(each for each in found if not isinstance(each, str)), 2)
        names, subnet = (source.name, target.name), rails[0][0].subnet
        return Rate(kind, names, over, total, seen="; ".join(wrong), subnet=subnet)

    def _perftest(self, pair: Ends, ends: Rail, port: int) -> float | str:
        (source, target), (local, remote) = pair, ends
        seconds = perftest_seconds(self.options.seconds)
        limit_s = 2 * seconds + 10
        serve = {
            "do": "run", "argv": perftest.server(remote, seconds=seconds, port=port), "listens": port,
            "limit_s": limit_s + 2,
        }  # fmt: skip
        drive = {
            "do": "run", "argv": perftest.client(local, remote.address, seconds=seconds, port=port), "limit_s": limit_s
        }  # fmt: skip
        try:
            with self._start(target.name, serve, limit_s + _SPARE_S) as server:
                _value(server, "port", Port)
                ran = self._single(source.name, Ran, drive, limit_s + _SPARE_S)
                gbit_s = perftest.average_gbit_s(ran.output)
                if gbit_s is not None:
                    return gbit_s
                reason = perftest.complaint(ran.output, ran.exit)
                return f"{source.name} {local.hca} to {target.name} {remote.hca}: {reason}"
        except _NoResult as error:
            return f"{source.name} {local.hca} to {target.name} {remote.hca}: {error}"

    # NCCL in the serving image

    def _contain(self, name: str, argv: list[str], epochs: Mapping[str, int]) -> collective.AllGather:
        inventory = self.spec.inventory
        request = {
            "do": "contain",
            "state_dir": inventory.state_dir,
            "cluster": inventory.cluster,
            "epoch": epochs[name],
            "name": collective.name(inventory.cluster, name),
            "argv": argv,
            "limit_s": collective.LIMIT_S + 10,
        }
        try:
            ran = self._single(name, Ran, request, collective.LIMIT_S + _SPARE_S)
            return collective.read(ran.output, ran.exit)
        except (_NoResult, SparkclusterError) as error:
            return collective.AllGather(None, "NCCL", str(error))

    def _measure_hcas(self, *names: str, epochs: Mapping[str, int]) -> None:
        """A send over each HCA of a pair alone, where ib_write_bw is missing on one of the two."""
        pair = self.topology.members[names[0]], self.topology.members[names[1]]
        if all(self.tools.get(name) for name in names) or "nccl" in self.skipped:
            return
        for links in shared(*pair):
            if not perftest.usable(*links) or not all(up(self.facts, *each) for each in zip(pair, links, strict=True)):
                continue
            self.report.progress(names[0], f"NCCL with {names[1]}, {links[0].hca}")
            group = self.topology.group_of(names[0])
            jobs = [
                partial(
                    self._contain,
                    member.name,
                    collective.send_command(
                        self.spec,
                        self.facts[member.name],
                        group,
                        (member, link),
                        {"rank": rank, "address": links[0].address},
                    ),
                    epochs,
                )
                for rank, (member, link) in enumerate(zip(pair, links, strict=True))
            ]
            results = _at_once(jobs)
            missing = next((result for result in results if not result.torch), None)
            if missing is not None:
                self.skipped["nccl"] = missing.seen
                return
            # What a rank reports is what it received from the other.
            for target, result in enumerate(results):
                tcp = "NCCL used TCP" if "Socket" in result.over else ""
                gbit_s = None if result.bus_gb_s is None or tcp else round(result.bus_gb_s * 8, 2)
                way, hca = (names[1 - target], names[target]), str(links[1 - target].hca)
                rate = Rate("nccl", way, hca, gbit_s, seen=tcp or result.seen, subnet=links[0].subnet)
                with self._lock:
                    self.rates.append(rate)

    def _measure_group(self, group: Group, epochs: Mapping[str, int]) -> None:
        names = tuple(member.name for member in group.members)

        def measure(member: Member) -> collective.AllGather:
            self.report.progress(member.name, "all-gather")
            argv = collective.command(self.spec, self.facts[member.name], group, member)
            return self._contain(member.name, argv, epochs)

        found = dict(zip(names, _at_once([partial(measure, member) for member in group.members]), strict=True))
        missing = next((result for result in found.values() if not result.torch), None)
        if missing is not None:
            self.skipped["collective"] = f"the image has no torch: {missing.seen}"
            return
        wrong = [f"{name}: {result.seen}" for name, result in found.items() if result.bus_gb_s is None]
        rates = [result.bus_gb_s for result in found.values() if result.bus_gb_s is not None]
        over = min((result.over for result in found.values()), key=lambda text: "Socket" not in text)
        gbit_s = None if wrong else round(min(rates) * 8, 2)
        with self._lock:
            self.rates.append(Rate("collective", names, over, gbit_s, seen="; ".join(wrong)))


def _both_ways(pair: Ends, rails: Iterable[Rail]) -> Iterator[tuple[Ends, Rail]]:
    """Both directions of every rail of a pair."""
    for rail in rails:
        yield pair, rail
        yield pair[::-1], rail[::-1]


def _at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Results of ``jobs``, run in parallel; the first error of any is raised once all have ended."""
    outcomes = Calls(lambda job: job(), {str(place): job for place, job in enumerate(jobs)}).wait(threading.TIMEOUT_MAX)
    for error in failures(outcomes).values():
        raise error
    return list(values(outcomes).values())


class _NoResult(Exception):
    """The program on the node reported a failure."""


def _value(conversation: Conversation, key: str, kind: type[T]) -> T:
    """The value of ``key``, once it arrives; ``done`` is the result."""
    while key not in (answer := conversation.answer(dict[str, Any])):
        if "failed" in answer:
            raise _NoResult(f"{conversation.host.name}: {answer['failed']}")
    return checked(kind, answer[key], node=conversation.host.name, step="measure")
