"""Bringing weights and image to every node that lacks them: one download at most, then from node to node."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkcluster.errors import RegistryAuth, SparkclusterError, StageError
from sparkcluster.facts.model import Facts, Image, Weights
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.program import stream
from sparkcluster.node.shared import hub_folder
from sparkcluster.probing.collect import collect_facts
from sparkcluster.spec import Spec
from sparkcluster.staging.copy import Errand, Failure, copy, ends, explain, follow
from sparkcluster.staging.plan import Staging, What, address, missing, nowhere, room
from sparkcluster.staging.retries import DOWNLOAD_NODES, RESUME, combined, fan_out
from sparkcluster.topology.model import Topology

Progress = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """One thing that reached one node; ``source`` is a node's name, or ``download``."""

    what: What
    node: str
    source: str
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class StageReport:
    """What was to be done and, unless it was a dry run, what was."""

    stagings: tuple[Staging, ...]
    copied: tuple[Copied, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether any node was changed."""
        return bool(self.copied)

    def as_json(self) -> dict[str, Any]:
        """The report as other programs may read it."""
        return {
            "staging": [staging.as_json() for staging in self.stagings],
            "copied": [dataclasses.asdict(one) for one in self.copied],
        }


def _silent(_node: str, _text: str) -> None:
    """Nobody listens."""


def stage(
    fleet: Fleet,
    facts: Mapping[str, Facts],
    topology: Topology,
    spec: Spec,
    *,
    epoch: int,
    what: Sequence[What] = ("weights", "image"),
    dry_run: bool = False,
    verify: bool = False,
    progress: Progress = _silent,
) -> StageReport:
    """Bring what is missing to every node of ``topology``.

    Args:
        fleet: the nodes.
        facts: of every node.
        topology: who takes part, and over which addresses.
        spec: which weights and which image.
        epoch: of the lease that allows the changes.
        what: weights, image or both.
        dry_run: only say what would be done.
        verify: compare SHA-256 on every node with the first one's, also where nothing is missing.
        progress: told per node how far it is.

    Raises:
        StageError: with node, cause and what to type. What arrived stays, and the next run goes on from there.
        RegistryAuth: the registry wants a login.
        LeaseLost: a node knows a newer epoch.
    """
    wanted: list[What] = []
    if "image" in what and spec.inventory.runtime.kind == "docker" and spec.playbook.image:
        wanted.append("image")  # first: it may hold the downloader of the weights
    if "weights" in what:
        wanted.append("weights")
    run = _Run(fleet, dict(facts), topology, spec, epoch=epoch, verify=verify, progress=progress)
    stagings = []
    for each in wanted:
        staging = missing(run.facts, topology, spec, each)
        stagings.append(staging)
        if not dry_run:
            run.bring(staging)
        else:
            room(run.facts, staging, spec)
    return StageReport(tuple(stagings), tuple(run.copied))


class _Run:
    def __init__(
        self,
        fleet: Fleet,
        facts: dict[str, Facts],
        topology: Topology,
        spec: Spec,
        *,
        epoch: int,
        verify: bool,
        progress: Progress,
    ) -> None:
        self.fleet = fleet
        self.facts = facts
        self.topology = topology
        self.spec = spec
        self.verify = verify
        self.progress = progress
        self.copied: list[Copied] = []
        self._lease = {
            "state_dir": spec.inventory.state_dir,
            "cluster": spec.inventory.cluster,
            "epoch": epoch,
        }
        self._stopped = threading.Event()
        self._images: dict[str, Image] = {}

    def errand(self, staging: Staging) -> Errand:
        return Errand(f"stage {staging.what}", self._lease, self._stopped.is_set)

    def bring(self, staging: Staging) -> None:
        """Download it where no node has it, then fan it out."""
        for node, lacks in staging.missing:
            self.progress(node, f"{staging.what} {lacks}")
        room(self.facts, staging, self.spec)
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
        errors: list[Exception] = []
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
        """The staging that is left once ``node`` has it."""
        collected = collect_facts(self.fleet, self.spec, [node])
        if node in collected.errors:
            raise collected.errors[node]
        self.facts.update(collected.facts)
        fresh = missing(self.facts, self.topology, self.spec, staging.what)
        if not fresh.sources:
            raise StageError(
                f"{staging.what} {staging.name} came to {node} and are not whole there",
                node=node,
                step=f"stage {staging.what}",
                hint=RESUME,
            )
        room(self.facts, fresh, self.spec)
        return fresh

    def _fetch(self, staging: Staging, node: str) -> int:
        model, own = self.spec.playbook.model, self.facts[node].image
        errand = self.errand(staging)
        request: dict[str, Any] = {"what": staging.what, "reference": self.spec.playbook.image, **self._lease}
        if staging.what == "weights":
            request |= {
                "id": model.id,
                "revision": model.revision,
                "hf_home": self.facts[node].hf_home,
                "image": own.id if isinstance(own, Image) else None,
                "token": os.environ.get("HF_TOKEN") or None,
            }
        with ends(errand, node), stream(self.fleet[node], "fetch", request) as running:
            done = follow(errand, node, running, self._tell(staging.what, node, "downloaded"))
        if not isinstance(done, Failure):
            return int(done.get("bytes", 0))
        if done.kind == "auth":
            registry = registry_of(staging.name)
            raise RegistryAuth(
                f"the registry of {staging.name} wants a login on {node}: {done.text}",
                node=node,
                step=errand.step,
                hint=f"docker login{' ' + registry if registry else ''}   on {node}",
            )
        if done.kind in {"no hub", "no downloader"}:
            raise nowhere(self.facts, node, self.spec, why=done.text)
        if done.kind == "hub auth":
            raise StageError(
                f"the hub does not give {model.id} to {node}: {done.text}",
                node=node,
                step=errand.step,
                hint=f"accept the terms on the page of {model.id}, then export HF_TOKEN=… and run this again",
            )
        if done.kind == "registry":
            raise StageError(
                f"no node has the image {staging.name}, and {node} cannot pull it: {done.text}",
                node=node,
                step=errand.step,
                hint=f"docker pull {staging.name}   on any node, or docker load -i FILE",
            )
        raise explain(errand, done)

    # from node to node

    def _fan_out(self, staging: Staging, sources: list[str], targets: list[str]) -> None:
        """Copy to every target, and from there on."""
        if staging.what == "image":
            self._images = {name: image for name in sources if isinstance(image := self.facts[name].image, Image)}
        fan_out(sources, targets, lambda source, target: self._copy(staging, source, target), self._stopped)

    def _copy(self, staging: Staging, source: str, target: str) -> None:
        begin = time.monotonic()
        image = self._images[source] if staging.what == "image" else None
        done = copy(
            self.errand(staging),
            self.fleet[source],
            self.fleet[target],
            address=address(self.facts, self.topology, source, target),
            requests=self._image(image) if image else self._weights(staging, source, target),
            tell=self._tell(staging.what, target, f"from {source}", staging.size_bytes or 0),
        )
        if image is not None:
            self._images[target] = image.model_copy(update={"id": done["image_id"]})
        seconds = time.monotonic() - begin
        self.copied.append(Copied(staging.what, target, source, int(done["bytes"]), seconds))
        self.progress(target, f"{staging.what} complete")

    def _weights(self, staging: Staging, source: str, target: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Requests of sender and receiver."""
        model = self.spec.playbook.model
        shared: dict[str, Any] = {"what": "files", "verify": self.verify}
        if model.id is None:
            return {**shared, "root": model.path}, {**shared, "root": model.path}
        folder = hub_folder(model.id)
        first = self.facts[staging.sources[0]].weights
        shared |= {"ref": model.revision, "revision": first.revision if isinstance(first, Weights) else None}
        return (
            {**shared, "root": f"{self.facts[source].hf_home}/{folder}"},
            {**shared, "root": f"{self.facts[target].hf_home}/{folder}"},
        )

    def _image(self, image: Image) -> tuple[dict[str, Any], dict[str, Any]]:
        request: dict[str, Any] = {
            "what": "image",
            "image_id": image.id,
            "reference": self.spec.playbook.image or "",
            "layers": list(image.layers),
            "size": image.size_bytes,
        }
        return request, request

    def _tell(self, what: str, node: str, how: str, size: int = 0) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            whole = max(total, size, done)
            of = f" of {whole / 1e9:.2f}" if total or size else ""
            self.progress(node, f"{what} {done / 1e9:.2f}{of} GB {how}")

        return tell


def registry_of(reference: str) -> str:
    """Host of the registry in an image reference; empty for Docker Hub, which ``docker login`` means by itself."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""
