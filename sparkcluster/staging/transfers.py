"""Transfers of artifacts to nodes under one lease, and their record."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from sparkcluster.errors import StageError
from sparkcluster.facts.collect import collect_facts
from sparkcluster.facts.model import Facts
from sparkcluster.hosts.fleet import Fleet, all_values
from sparkcluster.report import Report, State, Transfer, share, size
from sparkcluster.runtime import observed
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import Artifact, Request, Sending
from sparkcluster.staging.copy import OnBytes, Progress, Step, list_files, stage_errors
from sparkcluster.staging.copy_request import Files, Settings
from sparkcluster.staging.job import Arrived, Job
from sparkcluster.staging.manifest import Manifest
from sparkcluster.staging.notes import kept
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.send import send
from sparkcluster.topology.model import Topology

T = TypeVar("T")

_SHOWN_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """An artifact that reached a node; ``source`` is a node's name, ``download``, ``controller`` or ``build``."""

    what: Artifact
    node: str
    source: str
    bytes: int
    seconds: float


@dataclasses.dataclass
class Transfers:
    """Transfers artifacts to nodes under one lease, and records them."""

    fleet: Fleet
    facts: dict[str, Facts]
    topology: Topology
    lease: Callable[[str], dict[str, Any]]
    progress: Progress
    shown: Report = dataclasses.field(default_factory=Report)
    settings: Settings = dataclasses.field(default_factory=Settings)
    warnings: list[str] = dataclasses.field(default_factory=list)
    copied: list[Copied] = dataclasses.field(default_factory=list)
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)

    def step(self, what: Artifact) -> Step:
        """The step that stages ``what``."""
        return Step(f"copy {what}", self.lease, self.stopped.is_set)

    def collected(self, spec: Spec, nodes: Sequence[str], what: Artifact) -> dict[str, Facts]:
        """The facts of ``nodes``; StageError if one does not answer."""
        found = collect_facts(self.fleet, spec, nodes)
        for name, error in found.errors.items():
            with stage_errors(self.step(what), name):
                raise error
        return found.facts

    def record(self, what: Artifact, node: str, source: str, moved: int, begin: float) -> None:
        """Record that ``what`` reached ``node``, with the bytes transferred and the start time (``time.monotonic``)."""
        self.copied.append(Copied(what, node, source, moved, time.monotonic() - begin))

    def move(
        self,
        what: Artifact,
        request: Callable[[str], Request],
        nodes: Iterable[str],
        files: Sequence[dict[str, Any]],
        replace: Mapping[str, Sequence[int]] | None = None,
        *,
        arrived: Callable[[str, Arrived], None] | None = None,
    ) -> None:
        """Copy to each of ``nodes`` the ``files`` that it lacks, with each node's ``request``.

        ``replace`` has, by node, the numbers of its corrupt files. ``arrived`` is called for each node instead of
        ``record_copy``, if more steps follow.

        Raises:
            StageError: of a node that failed, with the errors of others; all other nodes have the files.
            LeaseLost: another operator has the lease.
        """
        requests = {node: {**request(node), "replace": list((replace or {}).get(node, ()))} for node in nodes}
        step, what_files = self.step(what), Files(what, requests, files)
        job = Job(step, self.fleet, self.facts, self.topology, what_files, settings=self.settings, report=self.shown)
        try:
            job.run()
        finally:
            self.warnings += job.warnings
            for node, each in job.arrived.items():
                (arrived or partial(self.record_copy, what))(node, each)

    def record_copy(self, what: Artifact, node: str, arrived: Arrived) -> None:
        """Record a copy to ``node``; its rate is used to estimate the next copy."""
        self.copied.append(Copied(what, node, arrived.source, arrived.bytes, arrived.seconds))
        if not self.settings.limit_bytes_s:
            cluster = self.lease(node)["cluster"]
            observed.note(cluster, "stage", artifact=what, node=node, **dataclasses.asdict(arrived))

    def send(self, what: Artifact, node: str, files: Iterable[Sending], total: int | None, *, name: str = "") -> None:
        """Send ``files`` of this machine to ``node``, one by one; ``total`` is their size. Files that arrived are kept.

        ``name`` is shown instead of ``what``.

        Raises:
            StageError: a file cannot be read, or did not arrive.
            LeaseLost: another operator has the lease.
        """
        self.progress(node, f"{name or what}, {size(total or 0)} from this machine")
        begin, sent, before, size_bytes = time.monotonic(), 0, 0, 0
        step, shown = self.step(what), self.moving(what, node, "controller")

        def report(done: int, this: int) -> None:
            nonlocal size_bytes
            size_bytes = this
            shown(before + done, total or 0)

        for source, request in files:
            try:
                done = send(step, self.fleet[node], source, request, report)
            except OSError as error:
                unread = f"{error.filename or what} cannot be read: {error.strerror}"
                raise StageError(unread, step=step.name) from error
            if done.kept is not None:
                self.shown.note(kept(done.kept, node))
            sent, before = sent + done.bytes, before + size_bytes
        self.record(what, node, "controller", sent, begin)

    def bring(
        self,
        what: Artifact,
        nodes: Sequence[str],
        request: Callable[[str], Request],
        files: Sequence[dict[str, Any]],
        places: Mapping[str, Path],
    ) -> None:
        """Send ``files`` of this machine to the first of ``nodes``, and copy them from there to the others.

        ``request``: as in ``move``. ``places``: the local path of each file, by its ``path``.

        Raises:
            StageError, LeaseLost: as in ``send`` and ``move``.
        """
        first = request(nodes[0])
        sending = ((places[file["path"]], {**first, **file}) for file in files)
        self.send(what, nodes[0], sending, sum(file["size"] for file in files))
        self.move(what, request, nodes, files)

    def at_once(self, action: Callable[[str], T], nodes: Sequence[str]) -> Mapping[str, T]:
        """The results of ``action`` for each of ``nodes``; if it fails, the combined errors."""
        try:
            outcomes = self.fleet.each(lambda host: action(host.name), nodes, limit_s=threading.TIMEOUT_MAX)
        except BaseException:
            self.stopped.set()
            raise
        return all_values(outcomes)

    def files(self, staging: Staging, source: str, request: Request) -> Manifest:
        """The files of ``request`` on ``source``, including corrupt ones."""
        report = self.report(staging.what, source, "read")
        return list_files(self.step(staging.what), self.fleet[source], request, report)

    def report(self, what: Artifact, node: str, how: str) -> OnBytes:
        """Return a function that reports progress in bytes."""

        def report(done: int, total: int) -> None:
            self.progress(node, f"{what} {share(done, total and max(total, done))} {how}")

        return report

    def moving(self, what: Artifact, node: str, source: Literal["controller", "download"]) -> OnBytes:
        """Return a function that reports the progress of a transfer to ``node`` from ``source``, twice a second."""
        shown = 0.0

        def report(done: int, total: int) -> None:
            nonlocal shown
            complete = done >= total > 0
            if complete or time.monotonic() - shown >= _SHOWN_S:
                shown = time.monotonic()
                state: State = "complete" if complete else "copying"
                self.shown.transfer(Transfer(node, what, done, total, source, state=state))

        return report
