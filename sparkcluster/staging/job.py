"""Copies files from the nodes that have them to those that do not: one worker on each, all at once.

The workers move the bytes, and go past a failure of each other by themselves. This begins them, finds out who reaches
whom, says who pulls from whom, and follows them to the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sparkcluster.errors import SparkclusterError, StageError
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import Calls, Fleet
from sparkcluster.report import Report, Transfer
from sparkcluster.staging import notes, send
from sparkcluster.staging.chain import Chain, Medium, Way, between, chain, listening, turned, verified, ways
from sparkcluster.staging.copy import RESUME, Step
from sparkcluster.staging.copy_request import Bring, Files, Settings, begin_request
from sparkcluster.staging.follower import Ended, Follower
from sparkcluster.staging.order import Dial, DialAttempt, Source, WorkerLine, files_lines, key
from sparkcluster.staging.retries import combined
from sparkcluster.topology.model import Topology

_LOOK_S = 8.0  # a worker tries for 1.5 s, and reads its orders twice a second
_AGAIN_S = 5.0  # between two looks
_STUCK_S = 10.0  # without a byte, before a node is asked whether it is there, and then before it asks elsewhere
_GONE_S = 30.0  # without an answer to that
_HEARD_S = 5.0  # in which a node says something as long as it is reached, whatever its worker does
_ALONE_S = 60.0  # without anybody to pull from: a cable may come back
_END_S = 5.0
_BEGIN_S = 300.0  # until a worker listens: it may read a partial image, or wait for another copy
_NEVER_S = 1800.0  # without a byte, though it answers: longer than Docker may load nothing, or a partial file is read


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """What reached a node: from whom at last and over what, how many bytes, and in how many seconds."""

    source: str
    bytes: int
    seconds: float
    medium: Medium
    encrypted: bool


class Job:
    """One copy of ``files`` to all nodes of its requests.

    Attributes:
        arrived: what reached each node that lacked something.
        loud: what has to be said once more at the end: copies that left the interconnect.
    """

    def __init__(
        self, step: Step, fleet: Fleet, facts: Mapping[str, Facts], topology: Topology, files: Files,
        *, settings: Settings | None = None, report: Report | None = None, bring: Bring = send.bring,
    ) -> None:  # fmt: skip
        self.arrived: dict[str, Arrived] = {}
        self.loud: list[str] = []
        self._settings, self._report, self._files = settings or Settings(), report or Report(), files
        self._total = sum(file["size"] for file in files.files)
        self._over = threading.Event()
        self._step = dataclasses.replace(step, stopped=lambda: self._over.is_set() or step.stopped())
        self._stopped = step.stopped
        self._events: queue.SimpleQueue[tuple[str, WorkerLine | Ended | BaseException]] = queue.SimpleQueue()
        self._ways = ways(facts, topology, list(files.requests))
        self._plain = {  # addresses by node that are listened on, and which without TLS
            node: {address: rail and not self._settings.encrypt for address, rail in found.items()}
            for node in files.requests
            for found in [listening(facts, topology, node)]
        }
        self._content = files_lines(files.files)
        self._sha256 = hashlib.sha256(self._content).hexdigest()
        self._followers = {node: self._follower(fleet[node]) for node in files.requests}
        self._fleet, self._bring = fleet, bring
        self._known = dict.fromkeys(files.requests, WorkerLine())
        self._unfollowed: set[str] = set()
        self._living = set(files.requests)
        self._errors: dict[str, SparkclusterError] = {}
        self._round, self._looked, self._trouble = 0, 0.0, False
        self._unanswered: dict[str, float] = {}
        self._alone: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._moved: dict[str, float] = {}
        self._noted: dict[tuple[str, str], set[Any]] = {}
        self._found: tuple[Way, ...] = ()
        self._chain, self._turns, self._looking = Chain((), {}, (), ()), 0, False
        self._hashes: dict[str, str] = {}

    def _follower(self, host: Host) -> Follower:
        request = begin_request(
            self._files.requests[host.name], host.name, self._plain[host.name], self._sha256, self._settings
        )
        return Follower(self._step, host, request, lambda node, event: self._events.put((node, event)))

    def image_ids(self) -> dict[str, str]:
        """The ID of an image on each node that said one when it had it."""
        return {node: said.done.image_id for node, said in self._known.items() if said.done and said.done.image_id}

    def run(self) -> dict[str, Arrived]:
        """Copy, and return what ``arrived``.

        Raises:
            StageError: of a node that failed, with those of the others. All that are not in it have the files.
            LeaseLost: another operator has the lease.
        """

        def follow(node: str) -> None:
            request = self._files.requests[node]
            name = key(request["what"], request["root"])
            prepare = partial(self._bring, self._step, self._fleet[node], name, self._content)
            try:
                self._followers[node].run(prepare)
            except BaseException as error:
                self._events.put((node, error))
                raise

        calls = Calls(follow, {node: node for node in self._living})
        how = "cancel"
        try:
            self._begin()
            self._look()
            self._follow()
            how = "end"
        finally:
            self._over.set()
            for follower in self._followers.values():
                follower.order(**{how: True})
            calls.ended(_END_S)
            for follower in self._followers.values():
                follower.close()
        if not all(self._known[node].complete for node in self._errors):  # all others have it from another node
            raise combined([self._errors[node] for node in self._files.requests if node in self._errors])
        return self.arrived

    # events

    def _next(self, limit_s: float = 1.0) -> None:
        """Take in what the next node says, for which ``limit_s`` are waited."""
        if self._stopped():
            raise StageError(f"{self._step.name} was stopped", step=self._step.name, hint=RESUME)
        try:
            node, event = self._events.get(timeout=limit_s)
        except queue.Empty:
            return
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, Ended):
            self._ended(node, event)
        else:
            self._heard(node, event)

    def _ended(self, node: str, ended: Ended) -> None:
        if ended.error is None:
            self._unfollowed.add(node)  # it has everything, and serves on
            return
        self._living.discard(node)
        if not isinstance(ended.error, StageError):
            raise combined([ended.error, *self._errors.values()])
        if self._round:
            self._report.note(notes.left_out(node, ended.kind))
        self._errors.setdefault(node, ended.error)
        if not self._known[node].complete:
            self._transfer(node, state="left out")
        self._trouble = True

    def _heard(self, node: str, said: WorkerLine) -> None:
        now = time.monotonic()
        if now - self._last.get(node, now) > _HEARD_S and node in self._unanswered:
            self._unanswered[node] = now  # it may not have heard what it was asked
        had = self._known[node].has(self._total)
        self._known[node], self._last[node] = said, now
        if said.round == self._round and node in self._unanswered:
            del self._unanswered[node]
            self._trouble = self._trouble or not self._looking  # it is back
        self._keep_hashes(node, said)
        if not self._round:
            return
        has = said.has(self._total)
        if has != had:
            self._moved[node] = time.monotonic()
        self._note(node, said, has)
        if said.lacked:
            self._show(node, said)

    def _note(self, node: str, said: WorkerLine, has: int) -> None:
        """Report what a node met, once."""
        for gone in said.left:
            if self._once("left", node, gone):
                self._trouble = True
                self._report.note(notes.left(node, gone, said.source, has, self._total))
        for file in said.wrong:
            if self._once("wrong", node, file) and file.file < len(self._files.files):
                self._report.note(notes.wrong(self._files.files[file.file]["path"], node, file))
        for path in said.kept:
            if self._once("kept", node, path):
                self._report.note(notes.kept(path, node))

    def _show(self, node: str, said: WorkerLine) -> None:
        if said.done is None:
            self._transfer(node)
        elif node not in self.arrived:
            source = said.source or next(iter(self._chain.upstreams.get(node, ())), "")
            self.arrived[node] = Arrived(source, said.done.bytes, said.done.seconds, *self._way_of(source, node))
            self._transfer(node, state="complete")

    def _keep_hashes(self, node: str, said: WorkerLine) -> None:
        """Tell the others the content of files whose hash nobody knew: as a node says that had them from the start."""
        if said.sha256 is None or said.lacked:
            return
        unknown = {
            number: found
            for number, found in said.sha256.items()
            if number not in self._hashes
            and int(number) < len(self._files.files)
            and self._files.files[int(number)]["sha256"] is None
        }
        if unknown:
            self._hashes |= unknown
            for other in self._living - {node}:
                self._followers[other].order(sha256=dict(self._hashes))

    def _once(self, kind: str, node: str, what: Any) -> bool:
        """Whether a node says this for the first time."""
        noted = self._noted.setdefault((kind, node), set())
        first = what not in noted
        noted.add(what)
        return first

    def _way_of(self, source: str | None, node: str) -> tuple[Medium, bool]:
        """What a node pulls over, and whether that is encrypted."""
        way = next(iter(between(self._found, source, node)), None) if source else None
        medium = way.medium if way is not None else "rail"
        return medium, self._settings.encrypt or medium != "rail"

    def _transfer(self, node: str, **state: Any) -> None:
        source = self._known[node].source
        medium, encrypted = self._way_of(source, node)
        self._report.transfer(
            Transfer(
                node, self._files.what, self._has(node), self._total, source,
                medium=medium, encrypted=encrypted, **state,
            )
        )  # fmt: skip

    # who has what

    def _has(self, node: str) -> int:
        return self._known[node].has(self._total)

    def _waiting(self) -> list[str]:
        return [node for node in self._files.requests if node in self._living and not self._known[node].complete]

    # the steps

    def _begin(self) -> None:
        """Wait until every worker listens and knows what it lacks; nothing is copied if a disk is too small."""
        until = time.monotonic() + _BEGIN_S
        while waiting := [
            node for node in self._living if not self._known[node].ports or self._known[node].lacks is None
        ]:
            self._next()
            for node in waiting:
                if node in self._unfollowed or time.monotonic() > until:
                    self._stuck(node, "its worker does not begin")
        rooms = {node: room for node in sorted(self._living) if (room := self._known[node].room) is not None}
        errors = notes.no_room(self._step.name, self._files.what, rooms)
        if errors or not any(self._has(node) or not self._known[node].lacked for node in self._living):
            raise combined([*self._errors.values(), *errors])

    def _look(self) -> None:
        """Find out who reaches whom, and order who pulls from whom."""
        self._round += 1
        self._trouble, self._looking = False, True
        certs = tuple(cert for node in self._followers if (cert := self._known[node].cert) is not None)
        asked = set(self._living)
        for target in asked - self._unfollowed:
            self._unanswered.setdefault(target, time.monotonic())
            look = tuple(
                DialAttempt(node=way.source, **dial.model_dump())
                for way in self._ways
                if way.target == target and way.source in asked and (dial := self._dial(way)) is not None
            )
            self._followers[target].order(look=look, round=self._round, certs=certs)
        until = time.monotonic() + _LOOK_S
        while self._unanswered.keys() & self._living and time.monotonic() < until:
            self._next(until - time.monotonic())
        self._looked, self._looking = time.monotonic(), False
        reached = {node: self._known[node].reached or {} for node in self._living - self._unanswered.keys()}
        self._found = verified(self._ways, reached)
        self._arrange()

    def _arrange(self) -> None:
        living = [node for node in self._files.requests if node in self._living]
        if not living:
            raise combined([*self._errors.values()])
        has = {node: self._has(node) for node in living}
        self._chain = chain(living, self._found, has, self._total)
        for way in self._chain.bridges:
            if has[way.target] < self._total and self._once("bridge", way.source, way.target):
                text = notes.bridge(self._files.what, way, self._total - has[way.target], self._settings.rates)
                self.loud.append(text)
                self._report.note(f"warning: {text}")
        for node in self._chain.unreached if self._round == 1 else self._left_alone():
            self._give_up(node)
        self._order_sources(self._chain.upstreams)

    def _give_up(self, node: str) -> None:
        """End the worker of a node that reaches nobody who has it."""
        sources = [other for other in self._files.requests if other != node and self._known[other].complete] or [node]
        error = notes.unreached(self._step.name, self._files.what, node, sources[0])
        self._ended(node, Ended(error, "link"))
        self._followers[node].order(cancel=True)

    def _left_alone(self) -> list[str]:
        """The nodes that have nobody to pull from, and of which nobody who is left has more."""
        return [
            node
            for node in self._waiting()
            if node not in self._unanswered
            and not self._chain.upstreams[node]
            and all(self._has(other) <= self._has(node) for other in self._living)
        ]

    def _order_sources(self, upstreams: Mapping[str, Sequence[str]]) -> None:
        for node in self._living:
            readers = tuple(reader for reader in self._waiting() if (*upstreams.get(reader, ()), "")[0] == node)
            self._followers[node].order(readers=readers)
        for node in self._waiting():
            if node in self._unanswered:
                continue
            sources = []
            for source in upstreams.get(node, ()):
                dials = tuple(dial for way in between(self._found, source, node) if (dial := self._dial(way)))
                sources += [Source(node=source, ways=dials)] if dials else []
            self._followers[node].order(sources=tuple(sources))
            if sources:
                self._alone.pop(node, None)
            else:
                self._alone.setdefault(node, time.monotonic())

    def _dial(self, way: Way) -> Dial | None:
        """How the source of ``way`` is dialed; None if it does not listen there."""
        said = self._known[way.source]
        port = (said.ports or {}).get(way.address)
        if port is None or said.token is None:
            return None
        plain = self._plain[way.source].get(way.address, False)
        return Dial(address=way.address, port=port, token=said.token, cert=None if plain else said.cert)

    def _turn(self, stuck: Sequence[str]) -> None:
        """Have everybody ask elsewhere, once more each time."""
        self._turns += 1
        upstreams = self._chain.upstreams
        for _ in range(self._turns):
            upstreams = turned(upstreams, stuck)
        self._order_sources(upstreams)

    def _stuck(self, node: str, why: str) -> None:
        """Go on without a node."""
        error = StageError(f"{self._step.name} on {node}: {why}", node=node, step=self._step.name, hint=RESUME)
        self._ended(node, Ended(error, "stuck"))

    def _follow(self) -> None:
        """Wait for all nodes that can still get it; look again where somebody failed."""
        self._moved = dict.fromkeys(self._living, time.monotonic())
        while waiting := self._waiting():
            self._next()
            now = time.monotonic()
            # what cannot be heard goes on
            waiting = [node for node in waiting if now - self._last.get(node, 0.0) < _HEARD_S]
            stuck = [node for node in waiting if now - self._moved[node] > _STUCK_S]
            if now - self._looked > (_AGAIN_S if self._trouble else _STUCK_S) and (self._trouble or stuck):
                self._look()
                if stuck and self._files.what != "image":  # a stream has one source
                    self._turn(stuck)
            for node in waiting:
                if now - self._unanswered.get(node, now) > _GONE_S:
                    self._stuck(node, f"its worker answers nothing for {_GONE_S:.0f} s")
                elif now - self._moved[node] > _NEVER_S:
                    self._stuck(node, f"nothing arrived in {_NEVER_S / 60:.0f} min")
                elif now - self._alone.get(node, now) > _ALONE_S:
                    self._give_up(node)
