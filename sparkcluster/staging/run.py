"""Stages weights and image on every node that lacks them: one download at most, then from node to node."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import RegistryAuth, SparkclusterError, StageError
from sparkcluster.facts.model import Facts, Image
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import stream
from sparkcluster.probing.collect import collect_facts
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import Artifact, artifacts, download_request, image_requests, weights_requests
from sparkcluster.staging.copy import Failure, Step, copy, follow, stage_error, stage_errors
from sparkcluster.staging.plan import Staging, address, check_disk_space, find_missing, no_weights
from sparkcluster.staging.retries import DOWNLOAD_NODES, RESUME, combined, fan_out
from sparkcluster.topology.model import Topology

Progress = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """One artifact that reached one node; ``source`` is a node's name, or ``download``."""

    what: Artifact
    node: str
    source: str
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class StageReport:
    """What was to be staged and, unless it was a dry run, what was copied."""

    stagings: tuple[Staging, ...]
    copied: tuple[Copied, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether any node was changed."""
        return bool(self.copied)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "staging": [staging.as_json() for staging in self.stagings],
            "copied": [dataclasses.asdict(copied) for copied in self.copied],
        }


def stage(
    fleet: Fleet,
    facts: Mapping[str, Facts],
    topology: Topology,
    spec: Spec,
    *,
    epoch: int,
    what: Sequence[Artifact] = ("weights", "image"),
    dry_run: bool = False,
    verify: bool = False,
    progress: Progress = lambda _node, _text: None,
) -> StageReport:
    """Stage what is missing on every node of ``topology``.

    Args:
        fleet: the nodes.
        facts: of every node.
        topology: the nodes that take part, and their addresses.
        spec: which weights and which image.
        epoch: of the lease that allows the changes.
        what: weights, image or both.
        dry_run: only report what would be done.
        verify: compare SHA-256 on every node with the first one's, also where nothing is missing.
        progress: called with a node and its progress.

    Raises:
        StageError: with node, cause and hint. What arrived stays, and the next run resumes there.
        RegistryAuth: the registry requires a login.
        LeaseLost: a node has a newer epoch.
    """
    lease = {"state_dir": spec.inventory.state_dir, "cluster": spec.inventory.cluster, "epoch": epoch}
    run = _Run(fleet, dict(facts), topology, spec, lease, verify, progress)
    stagings = []
    for each in artifacts(spec, what):
        staging = find_missing(run.facts, topology, spec, each)
        stagings.append(staging)
        if not dry_run:
            run.bring(staging)
        else:
            check_disk_space(run.facts, staging, spec)
    return StageReport(tuple(stagings), tuple(run.copied))


@dataclasses.dataclass
class _Run:
    fleet: Fleet
    facts: dict[str, Facts]
    topology: Topology
    spec: Spec
    lease: dict[str, Any]
    verify: bool
    progress: Progress
    copied: list[Copied] = dataclasses.field(default_factory=list)
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)
    images: dict[str, Image] = dataclasses.field(default_factory=dict)

    def _step(self, staging: Staging) -> Step:
        return Step(f"stage {staging.what}", self.lease, self.stopped.is_set)

    def bring(self, staging: Staging) -> None:
        """Download it where no node has it, then copy it to the others."""
        for node, lacks in staging.missing:
            self.progress(node, f"{staging.what} {lacks}")
        check_disk_space(self.facts, staging, self.spec)
        if staging.missing and not staging.sources:
            staging = self._download(staging)
        targets = [name for name, _ in staging.missing]
        if self.verify and staging.what == "weights":
            targets += list(staging.sources[1:])
            self._fan_out(staging, list(staging.sources[:1]), targets)
        else:
            self._fan_out(staging, list(staging.sources), targets)

    # one download

    def _download(self, staging: Staging) -> Staging:
        errors: list[SparkclusterError] = []
        for node in staging.download[:DOWNLOAD_NODES]:
            begin = time.monotonic()
            try:
                moved = self._fetch(staging, node)
            except SparkclusterError as error:
                errors.append(error)
                if isinstance(error, RegistryAuth) or not isinstance(error, StageError):
                    break
                self.progress(node, error.message)
                continue
            self.copied.append(Copied(staging.what, node, "download", moved, time.monotonic() - begin))
            return self._downloaded(staging, node)
        raise combined(errors)

    def _downloaded(self, staging: Staging, node: str) -> Staging:
        """What is left to stage once ``node`` has it."""
        collected = collect_facts(self.fleet, self.spec, [node])
        if node in collected.errors:
            raise collected.errors[node]
        self.facts.update(collected.facts)
        fresh = find_missing(self.facts, self.topology, self.spec, staging.what)
        if not fresh.sources:
            raise StageError(
                f"{staging.what} {staging.name}: incomplete on {node} after the download",
                node=node,
                step=f"stage {staging.what}",
                hint=RESUME,
            )
        check_disk_space(self.facts, fresh, self.spec)
        return fresh

    def _fetch(self, staging: Staging, node: str) -> int:
        model, step = self.spec.playbook.model, self._step(staging)
        request = {**download_request(self.spec, self.facts[node], staging.what), **self.lease}
        with stage_errors(step, node), stream(self.fleet[node], "fetch", request) as running:
            done = follow(step, node, running, self._report(staging.what, node, "downloaded"))
        if not isinstance(done, Failure):
            return int(done.get("bytes", 0))
        if done.kind == "auth":
            registry = registry_of(staging.name)
            raise RegistryAuth(
                f"the registry of {staging.name} requires a login on {node}: {done.text}",
                node=node,
                step=step.name,
                hint=f"docker login{' ' + registry if registry else ''}   on {node}",
            )
        if done.kind in {"no hub", "no downloader"}:
            raise no_weights(self.facts, node, self.spec, why=done.text)
        if done.kind == "hub auth":
            raise StageError(
                f"the hub denies {node} access to {model.id}: {done.text}",
                node=node,
                step=step.name,
                hint=f"accept the terms on the page of {model.id}, then export HF_TOKEN=… and run this again",
            )
        if done.kind == "registry":
            raise StageError(
                f"no node has the image {staging.name}, and {node} cannot pull it: {done.text}",
                node=node,
                step=step.name,
                hint=f"docker pull {staging.name}   on any node, or docker load -i FILE",
            )
        raise stage_error(step, done)

    # from node to node

    def _fan_out(self, staging: Staging, sources: list[str], targets: list[str]) -> None:
        """Copy to every target; complete ones are sources for the rest."""
        if staging.what == "image":
            self.images = {name: image for name in sources if isinstance(image := self.facts[name].image, Image)}
        fan_out(sources, targets, lambda source, target: self._copy(staging, source, target), self.stopped)

    def _copy(self, staging: Staging, source: str, target: str) -> None:
        begin = time.monotonic()
        image = self.images[source] if staging.what == "image" else None
        if image is not None:
            requests = image_requests(self.spec, image)
        else:
            first = staging.sources[0]
            requests = weights_requests(self.spec, self.facts, first, source, target, verify=self.verify)
        done = copy(
            self._step(staging),
            self.fleet[source],
            self.fleet[target],
            address=address(self.facts, self.topology, source, target),
            requests=requests,
            report=self._report(staging.what, target, f"from {source}", staging.size_bytes or 0),
        )
        if image is not None:
            self.images[target] = image.model_copy(update={"id": done["image_id"]})
        seconds = time.monotonic() - begin
        self.copied.append(Copied(staging.what, target, source, int(done["bytes"]), seconds))
        self.progress(target, f"{staging.what} complete")

    def _report(self, what: str, node: str, how: str, size: int = 0) -> Callable[[int, int], None]:
        def report(done: int, total: int) -> None:
            whole = max(total, size, done)
            of = f" of {whole / 1e9:.2f}" if total or size else ""
            self.progress(node, f"{what} {done / 1e9:.2f}{of} GB {how}")

        return report


def registry_of(reference: str) -> str:
    """Host of the registry in an image reference; empty for Docker Hub, which ``docker login`` means by itself."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""
