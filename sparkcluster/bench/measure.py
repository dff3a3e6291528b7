"""A run of a profile against a running model: cell after cell, while every node is sampled."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from sparkcluster import __version__, engines
from sparkcluster.bench import arena, judge, profiles
from sparkcluster.bench.child import Client
from sparkcluster.bench.profiles import Cell
from sparkcluster.bench.record import Measured, Record, save
from sparkcluster.endpoint.find import Endpoint, loopback
from sparkcluster.engines.base import ApiFeatures
from sparkcluster.errors import NotServing, SparkclusterError, UsageError
from sparkcluster.facts.base import read
from sparkcluster.fit.source import GIB
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.tunnel import forwarded
from sparkcluster.inspect import status
from sparkcluster.inspect.ask import serving
from sparkcluster.inspect.cluster import View, see
from sparkcluster.inspect.connect import as_recorded, connection
from sparkcluster.inspect.signals import between
from sparkcluster.inspect.vitals import Sample, Sampler
from sparkcluster.node.shared import stall_limit_s
from sparkcluster.report import Report, count, duration
from sparkcluster.runtime import secrets
from sparkcluster.spec import Spec

_SAMPLED = ("at_s", "swapped_pages", "rdma_bytes", "power_w", "system_w", "sm_clock_mhz", "temperature_c", "throttle")


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        profile: a profile name of ``profiles.cells``.
        runs: measured passes per cell.
        minutes: time after which no new cell begins.
        group: its name; None for the first.
        through: ``engine``, or ``gateway`` for the address of all models of the inventory.
        yes: whether to measure without asking while others have requests in flight.
    """

    profile: str = "quick"
    runs: int = 3
    minutes: float = float("inf")
    group: str | None = None
    through: Literal["engine", "gateway"] = "engine"
    yes: bool = False


def measure(fleet: Fleet, spec: Spec, job: Job, report: Report, *, change: str = "", seed: int | None = None) -> Record:
    """Run ``job``; the record is saved after each cell, and at the end even if the run failed.

    Nothing is saved before the first cell is measured.

    In an A/B test, ``change`` distinguishes B from A, and ``seed`` selects the same prompts for all runs. The returned
    record is already saved; after adding to it (``pair``, ``answers``), save it again with ``record.save``.

    Raises:
        UsageError: the extra is not installed, there is no such group, or it cannot be measured in this way.
        NotServing: the group does not answer, or stopped answering.
        SparkclusterError: a request failed, or a node.
    """
    if importlib.util.find_spec("llama_benchy") is None:
        raise UsageError("bench needs llama-benchy", hint="in the clone: uv tool install --reinstall '.[bench]'")
    if spec.idle_s and job.through == "engine":
        hint = f"sparkcluster load INVENTORY {spec.model}, then add --through gateway"
        raise UsageError(f"{spec.model} is on demand and can only be measured through the gateway", hint=hint)
    report.step("prepare", f"reading the release of {spec.inventory.cluster}")
    view, name = serving(fleet, spec, job.group)
    group, endpoint = view.groups[name], view.endpoints[name]
    head, engine, spec = endpoint.head, engines.engine(group.engine), as_recorded(spec, group) or spec
    record, features = _record(view, name, spec, job), engine.api_features(spec.playbook)
    _refuse(view, job, record.kind, endpoint)
    record.change, cells = change, _cells(record, features)
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkcluster-bench-")))
        if engine.tokenize_field is None:
            _read_tokenizer(fleet, spec, head, home)
        url = stack.enter_context(_reached(fleet, spec, job, endpoint))
        sampler = stack.enter_context(Sampler(fleet, record.nodes, {head: {name: (endpoint, engine)}}))
        busy, key = _busy(sampler.fresh(head), job, report), secrets.api_key(spec) if spec.inventory.api.key else None
        client = Client(home, {
            "url": url, "key": key, "model": endpoint.model, "runs": job.runs, "kind": record.kind, "seed": seed,
            "tokenize_field": engine.tokenize_field,
        })  # fmt: skip
        stack.callback(client.close)
        try:
            _Run(record, report, sampler, client, stall_limit_s(features.context), busy).all(cells, job.minutes)
        except SparkclusterError as error:
            if cause := status.document(see(fleet, spec), {}, {}, {})["why"]:
                raise NotServing(cause, step="measure", hint="sparkcluster doctor INVENTORY") from error
            raise
    if job.profile == "arena":
        report.note(arena.write(record, spec.playbook))
    report.done()
    return record


def _refuse(view: View, job: Job, kind: str, endpoint: Endpoint) -> None:
    """Raise UsageError if the running release cannot be measured, or not in this way.

    The recorded address must belong to the head: any other machine there would get the key.
    """
    spec, gateway, engine = view.spec, job.through == "gateway", "remove --through gateway"
    host = urlsplit(endpoint.url).hostname or ""
    own = loopback(endpoint.url) or view.facts[endpoint.head].interface_of(host)
    for wrong, why, hint in (
        (kind == "rerank", "serves a rerank model, which bench cannot measure", "choose a chat or embeddings model"),
        (gateway and not spec.gateway_node, "has no gateway", engine),
        (gateway and len(view.groups) > 1, "has several groups behind the gateway", engine),
        (not own, f"listens at {host}, which is not an address of {endpoint.head}", "sparkcluster doctor INVENTORY"),
    ):
        if wrong:
            raise UsageError(f"{spec.inventory.cluster} {why}", hint=hint)


def _read_tokenizer(fleet: Fleet, spec: Spec, head: str, folder: Path) -> None:
    """Copy the tokenizer of the model of ``spec`` from the head into ``folder``."""
    model = read(see(fleet, spec, [head]).facts[head].weights)
    found = fleet[head].run(["cat", f"{model.path}/tokenizer.json"], timeout_s=120) if model else None
    if found is None or not found.ok:
        text = f"{spec.playbook.model.label} has no tokenizer.json on {head}; bench needs it to count tokens"
        raise UsageError(text, hint="sparkcluster stage INVENTORY   copies what is missing")
    (folder / "tokenizer.json").write_bytes(found.stdout)


def _reached(fleet: Fleet, spec: Spec, job: Job, endpoint: Endpoint) -> contextlib.AbstractContextManager[str]:
    """The URL of the API for this machine: an engine over SSH, the gateway as for clients."""
    if job.through == "engine":
        return forwarded(fleet[endpoint.head], endpoint.url)
    found = connection(spec)
    parts = urlsplit(found.url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2).close()
    except OSError as error:
        hint = found.tunnel or "sparkcluster status INVENTORY"
        raise NotServing(f"the gateway does not answer at {found.url}", step="prepare", hint=hint) from error
    return contextlib.nullcontext(found.url)


def _record(view: View, name: str, spec: Spec, job: Job) -> Record:
    """The record before any cell is measured."""
    group, head, playbook = view.groups[name], view.endpoints[name].head, spec.playbook
    return Record(
        cluster=view.spec.inventory.cluster, model=playbook.model.label, playbook=playbook.name, profile=job.profile,
        runs=job.runs, kind=group.verify.kind or "chat", group=group.name, release=group.release, at=time.time(),
        nodes=sorted(group.ranks, key=lambda node: node != head), args=dict(playbook.args),
        selected=dict(group.selected), client={"host": socket.gethostname(), "path": job.through},
        versions={
            "plan_hash": view.newest.plan_hash if view.newest else None, "image": group.plan.get("image"),
            "digest": view.recorded.get("image_digest"), **group.versions.get(head, {}),
            "driver": read(view.facts[head].driver), "sparkcluster": __version__,
            "llama_benchy": importlib.metadata.version("llama-benchy"),
        },
    )  # fmt: skip


def _cells(record: Record, features: ApiFeatures) -> list[Cell]:
    """The cells of the profile that fit; for an embedding model only cells without context."""
    found = profiles.cells(record.profile, features.context, features.requests)
    every = profiles.cells(record.profile, 1 << 30, 1) if record.profile != "sweep" else []
    if len(found) < len(every):
        record.skipped.append(f"{len(every) - len(found)} of {len(every)} cells do not fit in the context")
    found = [cell for cell in found if record.kind == "chat" or not cell.depth]
    if not found:
        hint = features.remedies.get("context")
        raise UsageError(f"no cell of profile {record.profile} fits in the context of {record.model}", hint=hint)
    return found


def _busy(now: Sample, job: Job, report: Report) -> bool:
    """Whether others have requests in flight and measuring is accepted; UsageError if it is declined."""
    in_flight = sum(now.count(name) for name in ("running", "waiting"))
    text = f"{count(round(in_flight), 'request')} of others in flight would slow down the measurement"
    if in_flight and not job.yes and not report.confirm(f"{text}: measure anyway?"):
        raise UsageError(text, hint="wait until they end, or add --yes, which marks the run")
    return bool(in_flight)


def _words(cell: Cell) -> str:
    """A cell as text, for example ``2,048 tokens at depth 4,096, 5 requests``."""
    depth = f" at depth {cell.depth:,}" if cell.depth else ""
    return f"{cell.prompt:,} tokens{depth}, {count(cell.concurrency, 'request')}"


@dataclasses.dataclass
class _Run:
    """Measures the cells of a run, one after the other."""

    record: Record
    report: Report
    sampler: Sampler
    client: Client
    stall_s: float
    busy: bool

    def all(self, cells: Sequence[Cell], minutes: float) -> None:
        """Measure ``cells``, and save the results."""
        record, ended, until = self.record, "complete", time.monotonic() + minutes * 60
        self.report.step("measure", f"{record.profile}: {count(len(cells), 'cell')}, {count(record.runs, 'run')} each")
        try:
            for place, cell in enumerate(cells):
                late = time.monotonic() > until
                if late or (record.profile == "sweep" and profiles.skip(cell, record.cells)):
                    why = "no time left" if late else "more requests were not faster"
                    record.skipped.append(f"{_words(cell)}: {why}")
                    ended = "time" if late else ended
                    continue
                self._one(cell, f"{place + 1} of {len(cells)}: {_words(cell)}")
                self._keep("running")
                if place == 0 and record.profile == "sweep" and any("decode" in each.figures for each in record.cells):
                    expected_s = profiles.expected_s(cells[1:], record.runs, record.cells[0])
                    self.report.note(f"the other {count(len(cells) - 1, 'cell')} take about {duration(expected_s)}")
        except BaseException as error:  # including Ctrl-C and bugs
            self._keep("interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error}")
            if record.id:
                self.report.note(f"partial results are kept: sparkcluster bench show {record.id}")
            raise
        self._keep(ended)

    def _one(self, cell: Cell, text: str) -> None:
        """Measure ``cell``, shown as ``text``."""
        record, head = self.record, self.record.nodes[0]
        expected, began_s = (record.runs + 1) * cell.concurrency * (1 + cell.caching), self.sampler.now_s()
        before, requests, warm = self.sampler.samples[head][-1], list[dict[str, Any]](), 0
        self.report.progress(head, text)
        for said in self.client.run(cell):
            self._check(began_s)
            if said["event"] == "warm":
                before, warm = self.sampler.fresh(head), len(requests)
            elif said["event"] == "request":
                requests.append(said)
                self.report.progress(head, f"{text}; {len(requests)} of {expected} answered")
        if "skipped" in said:
            record.skipped.append(f"{_words(cell)}: {said['skipped']}")
            return
        ended_s, engine = self.sampler.now_s(), between(before.engine, self.sampler.fresh(head).engine)
        rules: dict[str, Any] = {"runs": record.runs, "caching": cell.caching, "busy": self.busy}
        for phase in ("context", "prompt") if cell.caching else ("prompt",):
            own = [each for each in requests[warm:] if each["phase"] == phase]
            whole = Measured(*cell[:4], phase, before.at_s, ended_s, judge.figures(own), engine)
            whole.marks = judge.marks(whole, self.sampler.samples, template_tokens=said["template_tokens"], **rules)
            record.cells.append(whole)

    def _check(self, began_s: float) -> None:
        """Raise if a node is lost, or the engine has stalled although requests have waited since ``began_s``."""
        for error in self.sampler.lost.values():
            raise error
        series = self.sampler.samples[self.record.nodes[0]]
        counts = [(each.at_s, each.engine.counts) for each in series if each.engine] or [(began_s, {})]
        last = counts[-1][1]
        moved_s = next((at_s for at_s, each in reversed(counts) if each != last), began_s)
        still_s = self.sampler.now_s() - max(began_s, moved_s)
        # unreadable counters show neither waiting requests nor a stall
        if any(last.values()) and still_s >= self.stall_s:
            why = f"no counter of the engine has moved for {still_s:.0f} s while requests wait"
            raise NotServing(why, node=self.record.nodes[0], step="measure", hint="sparkcluster doctor INVENTORY")

    def _keep(self, how: str) -> None:
        """Save the run with ``how`` it ended, if anything was measured."""
        self.record.ended = how
        for node, found in self.sampler.samples.items():
            series = {name: [getattr(each, name) for each in found] for name in _SAMPLED}
            available = [round(each.memory.available_bytes / GIB, 2) for each in found]
            self.record.samples[node] = {**series, "available_gib": available}
        if self.record.cells:
            save(self.record, (self.client.home / "reports").glob("*") if how == "running" else ())
