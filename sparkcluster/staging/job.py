"""Copies files from the nodes that have them to the other nodes: one worker on each, all at the same time.

The workers transfer the bytes, and handle each other's failures. This module starts them, tests which nodes reach each
other, assigns the sources (both once), and follows the workers to their end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

from sparkcluster.errors import StageError
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.fleet import Calls, Fleet, combined
from sparkcluster.report import Medium, Report, State, Transfer
from sparkcluster.staging import notes
from sparkcluster.staging.chain import Source, Way, chain, ways
from sparkcluster.staging.copy import Failure, Step, stage_error
from sparkcluster.staging.copy_request import Files, Settings, begin_request
from sparkcluster.staging.follower import Event, Follower
from sparkcluster.staging.order import WorkerLine, files_lines
from sparkcluster.topology.model import Topology

_ANSWER_S = 300.0  # for a worker to listen or to test connections: it may wait for another copy, or its disk
_END_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Arrived:
    """The copy that a node got: last source and medium, bytes and seconds."""

    source: str
    bytes: int
    seconds: float
    medium: Medium
    encrypted: bool


class Job:
    """A copy of ``files`` to all nodes of its requests.

    Attributes:
        warnings: to repeat at the end: copies that left the interconnect.
    """

    def __init__(
        self, step: Step, fleet: Fleet, facts: Mapping[str, Facts], topology: Topology, files: Files,
        *, settings: Settings, report: Report,
    ) -> None:  # fmt: skip
        self.warnings: list[str] = []
        self._step, self._files, self._settings, self._report = step, files, settings, report
        self._total: int = sum(file["size"] for file in files.files)
        self._unknown = {str(number) for number, file in enumerate(files.files) if file["sha256"] is None}
        self._hashes: dict[str, str] = {}  # of files with unknown hash, by number
        content = files_lines(files.files)
        self._ways = ways(facts, topology, list(files.requests), encrypt=settings.encrypt)
        self._events: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
        self._followers: dict[str, Follower] = {}
        for node, request in files.requests.items():
            listen = {way.address: way.encrypted for way in self._ways if way.source == node}
            begin = begin_request(request, listen, len(files.files), settings)
            self._followers[node] = Follower(step, fleet[node], begin, content, self._events.put)
        self._said = dict.fromkeys(files.requests, WorkerLine())
        self._errors: dict[str, StageError] = {}  # of nodes that are no longer followed
        self._sources: dict[str, tuple[Source, ...]] = {}
        self._warned: set[Way] = set()

    @property
    def _living(self) -> list[str]:
        """The nodes that are still followed."""
        return [node for node in self._files.requests if node not in self._errors]

    @property
    def arrived(self) -> dict[str, Arrived]:
        """The copy of each node that lacked something and is now complete."""
        return {
            node: Arrived(way.source, said.done.bytes, said.done.seconds, way.medium, way.encrypted)
            for node, said in self._said.items()
            if said.done is not None and said.lacked and (way := self._way(node)) is not None
        }

    def run(self) -> dict[str, Arrived]:
        """Copy, and return ``arrived``.

        Raises:
            StageError: of a node that failed, with the errors of others. Nodes without an error have the files.
            LeaseLost: another operator has the lease.
        """
        calls = Calls(Follower.run, self._followers)
        how = "cancel"
        try:
            self._until(lambda said: said.lacks is not None, _ANSWER_S)
            self._check()
            dials = self._look()
            self._check()
            self._arrange(dials)
            self._until(lambda said: said.done is not None)
            how = "end"
        finally:
            for follower in self._followers.values():
                follower.order({how: True})
            calls.ended(_END_S)
        if not all(self._said[node].done for node in self._errors):  # all others got the files from another node
            raise combined([self._errors[node] for node in self._files.requests if node in self._errors])
        return self.arrived

    # the steps

    def _check(self) -> None:
        """Raise if the copy cannot start: a disk is too small, or no reachable node has any of the files."""
        rooms = {node: room for node in self._living if (room := self._said[node].room) is not None}
        short = notes.no_room(self._step.name, self._files.what, rooms)
        if short or (self._errors and not any(self._has(node) for node in self._living)):
            raise combined([*self._errors.values(), *short])

    def _look(self) -> dict[Way, dict[str, Any]]:
        """Test all connections; return how to dial the ones that work."""
        dials = {}
        for way in self._ways:
            said = self._said[way.source]
            port, cert = (said.ports or {}).get(way.address), said.cert if way.encrypted else None
            if port is not None and said.token is not None and not {way.source, way.target} & self._errors.keys():
                dials[way] = {"address": way.address, "port": port, "token": said.token, "cert": cert}
        for node in self._living:
            look = [{"node": way.source, **dial} for way, dial in dials.items() if way.target == node]
            self._followers[node].order({"look": look})
        self._until(lambda said: said.reached is not None, _ANSWER_S)
        reached = {node: self._said[node].reached or {} for node in self._living}
        works = {way: way.address in reached.get(way.target, {}).get(way.source, ()) for way in dials}
        return {way: dial for way, dial in dials.items() if works[way] and way.source in reached}

    def _arrange(self, dials: Mapping[Way, dict[str, Any]]) -> None:
        """Assign the sources of each node, after warning about connections that leave the interconnect."""
        living = self._living
        self._sources = chain(living, dials, {node: self._has(node) for node in self._said}, self._total)
        for node in living:
            if not self._sources.get(node) and self._has(node) < self._total:
                why = Failure(node, "unreached", f"it cannot reach any node that has the {self._files.what}")
                other = next((each for each in self._files.requests if each != node), node)
                self._ended(node, stage_error(self._step, why, source=other))
                continue
            self._warn(node, planned=True)
            sources = [
                {"node": each[0].source, "ways": [dials[way] for way in each], "medium": each[0].medium}
                for each in self._sources[node]
            ]
            self._followers[node].order({"from": sources})

    # what the nodes say

    def _until(self, said: Callable[[WorkerLine], bool], limit_s: float = math.inf) -> None:
        """Process events until ``said`` is true for each followed node; after ``limit_s``, drop the others."""
        until = time.monotonic() + limit_s
        while waiting := [node for node in self._living if not said(self._said[node])]:
            late = waiting if time.monotonic() > until and self._events.empty() else []
            for node in late:
                self._ended(node, Failure(node, "stuck", f"its worker did not answer within {limit_s:.0f} s"))
            with contextlib.suppress(queue.Empty):
                node, event = self._events.get(timeout=1.0)
                if node in self._errors:
                    continue
                if isinstance(event, WorkerLine):
                    self._heard(node, event)
                else:
                    self._ended(node, event)

    def _ended(self, node: str, how: Failure | BaseException) -> None:
        error = stage_error(self._step, how) if isinstance(how, Failure) else how
        if not isinstance(error, StageError):
            raise error
        self._errors[node] = error
        if self._sources:
            why = how.text if isinstance(how, Failure) else error.message
            self._report.note(f"{node} was skipped: {why}")
        if not self._said[node].done:
            self._transfer(node, "skipped")

    def _heard(self, node: str, said: WorkerLine) -> None:
        before, self._said[node] = self._said[node], said
        files, has = self._files.files, self._has(node)
        new = [notes.left(node, gone, said.source, has, self._total) for gone in said.left if gone not in before.left]
        wrong = [each for each in said.wrong if each not in before.wrong and each.file < len(files)]
        new += [notes.wrong(files[each.file]["path"], node, each) for each in wrong]
        new += [notes.kept(path, node) for path in said.kept if path not in before.kept]
        for text in new:
            self._report.note(text)
        if self._sources and said.lacked:
            self._warn(node, planned=False)
            self._transfer(node, "complete" if said.done else "copying")
        if not said.lacked:
            self._pass_on(said.sha256 or {})

    def _pass_on(self, found: Mapping[str, str]) -> None:
        """Send missing SHA-256 of files to all nodes; ``found`` is from a node that had the files from the start."""
        hashes = {number: sha256 for number, sha256 in found.items() if number in self._unknown} | self._hashes
        if hashes != self._hashes:
            self._hashes = hashes
            for node in self._living:
                self._followers[node].order({"sha256": hashes})

    def _has(self, node: str) -> int:
        said = self._said[node]
        return self._total if said.done or not said.lacked else min(said.bytes or 0, self._total)

    def _way(self, node: str) -> Way | None:
        """The connection over which a node pulls, or will pull first."""
        said, sources = self._said[node], self._sources.get(node, ())
        now = [each for each in sources if (each[0].source, each[0].medium) == (said.source, said.medium)]
        return next((each[0] for each in [*now, *sources]), None)

    # what people read

    def _warn(self, node: str, *, planned: bool) -> None:
        """Warn once that ``node`` pulls over a connection other than a cable."""
        way, lacks = self._way(node), self._total - self._has(node)
        if lacks and way is not None and way.medium != "rail" and way not in self._warned:
            self._warned.add(way)
            self.warnings.append(notes.off_rails(self._files.what, way, lacks, self._settings.rates, planned=planned))
            self._report.note(f"warning: {self.warnings[-1]}")

    def _transfer(self, node: str, state: State) -> None:
        way = self._way(node) if self._said[node].source or state == "complete" else None
        transfer = Transfer(node, self._files.what, self._has(node), self._total, state=state)
        if way is not None:
            transfer = transfer._replace(source=way.source, medium=way.medium, encrypted=way.encrypted)
        self._report.transfer(transfer)
