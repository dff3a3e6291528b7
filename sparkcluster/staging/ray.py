"""Stages Ray for images without it: from here to the first node, then from node to node."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from sparkcluster.errors import StageError
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import EngineFacts, Facts
from sparkcluster.plan.image import BROUGHT_RAY, has_brought_ray, ray_directory, ray_name, without_ray
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.staging import ray_archive
from sparkcluster.staging.copy import Step, copy, stage_errors
from sparkcluster.staging.plan import Staging, address
from sparkcluster.staging.ray_archive import FILE, Archive
from sparkcluster.staging.retries import fan_out
from sparkcluster.staging.run import Copied
from sparkcluster.topology.model import Topology

RAY_VERSION = BROUGHT_RAY
STEP = "stage ray"
UNPACK_S = 300  # 200 MB in 9000 files, with a sync, on a disk that is busy

Progress = Callable[[str, str], None]
GetArchive = Callable[[EngineFacts, ray_archive.Report], Archive]


def find_missing(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Staging | None:
    """Which nodes lack the Ray that is mounted into their image, and which have it; None if no image needs it."""
    wanting = without_ray(spec, facts, topology)
    if not wanting:
        return None
    there = [name for name in wanting if has_brought_ray(facts[name])]
    return Staging(
        what="ray",
        name=f"Ray {RAY_VERSION}",
        sources=tuple(there),
        missing=tuple((name, "not in the image") for name in wanting if name not in there),
        download=(),
        size_bytes=None,
    )


def stage(
    changer: Changer,
    facts: Mapping[str, Facts],
    topology: Topology,
    staging: Staging,
    *,
    progress: Progress,
    get_archive: GetArchive = ray_archive.get_archive,
) -> list[Copied]:
    """Copy Ray to the nodes that lack it.

    Args:
        changer: the right to change the nodes.
        facts: of every node.
        topology: over which addresses nodes copy from each other.
        staging: from ``find_missing``.
        progress: called with a node and its progress.
        get_archive: provides the archive if no node has it.

    Raises:
        StageError: it cannot be fetched or copied.
        LeaseLost: a node has a newer epoch.
    """
    engines = {name: engine for name in topology.members if (engine := engine_of(facts[name])) is not None}
    kinds: dict[str, list[str]] = {}
    for name, _ in staging.missing:
        kinds.setdefault(ray_name(engines[name]), []).append(name)
    copied: list[Copied] = []
    for kind, targets in kinds.items():
        have = [name for name in staging.sources if ray_name(engines[name]) == kind]
        copies = _RayCopies(changer, facts, topology, progress, engines[targets[0]])
        copied += copies.run(have, targets, get_archive)
    return copied


@dataclasses.dataclass(frozen=True, slots=True)
class _RayCopies:
    """Ray for one Python and platform, to every node that needs it."""

    changer: Changer
    facts: Mapping[str, Facts]
    topology: Topology
    progress: Progress
    engine: EngineFacts

    def run(self, have: Sequence[str], targets: Sequence[str], get_archive: GetArchive) -> list[Copied]:
        copied: list[Copied] = []
        digest = None
        rest = list(targets)
        if not have:
            first, *rest = targets
            archive = get_archive(self.engine, lambda text: self.progress(first, text))
            digest = archive.sha256
            copied.append(self._send(archive, first))
            have = [first]
        relayed: dict[str, Copied] = {}
        fan_out(
            have[:1], rest, lambda source, target: relayed.update({target: self._relay(source, target)}), relay=False
        )
        copied += [relayed[target] for target in rest]
        for target in targets:
            self.progress(target, f"unpacking Ray {RAY_VERSION}")
        steps = {
            target: [
                {
                    "do": "unpack",
                    "archive": f"{self._folder(target)}/{FILE}",
                    "sha256": digest,
                    "path": ray_directory(self.facts[target].state_dir, self.engine),
                }
            ]
            for target in targets
        }
        with stage_errors(self._step, targets[0]):
            self.changer.apply(steps, timeout_s=UNPACK_S)
        for target in targets:
            self.progress(target, f"Ray {RAY_VERSION} complete")
        return copied

    @property
    def _step(self) -> Step:
        changer = self.changer
        lease = {"state_dir": changer.state_dir, "cluster": changer.cluster, "epoch": changer.epoch}
        return Step(STEP, lease, lambda: False)

    def _folder(self, node: str) -> str:
        return f"{self.facts[node].state_dir}/ray/archives/{ray_name(self.engine)}"

    def _send(self, archive: Archive, node: str) -> Copied:
        begin = time.monotonic()
        try:
            size = archive.path.stat().st_size
        except OSError as error:
            hint = f"rm -r {archive.path.parent}"
            raise StageError(f"{archive.path}: {error.strerror}", step=STEP, hint=hint) from error
        self.progress(node, f"Ray {RAY_VERSION}, {size / 1e6:.0f} MB from this machine")
        # also checks the lease, which putting a file does not
        with stage_errors(self._step, node):
            self.changer.apply({node: [{"do": "mkdir", "path": self._folder(node)}]})
            self.changer.fleet[node].put(archive.path, f"{self._folder(node)}/{FILE}", mode=0o644)
        return Copied("ray", node, "controller", size, time.monotonic() - begin)

    def _relay(self, source: str, target: str) -> Copied:
        begin = time.monotonic()
        request = {"what": "files", "verify": True}
        done = copy(
            self._step,
            self.changer.fleet[source],
            self.changer.fleet[target],
            address=address(self.facts, self.topology, source, target),
            requests=(
                {**request, "root": self._folder(source)},
                {**request, "root": self._folder(target)},
            ),
            report=lambda size, total: self.progress(
                target, f"Ray {RAY_VERSION}, {size / 1e6:.0f} of {total / 1e6:.0f} MB from {source}"
            ),
        )
        return Copied("ray", target, source, int(done["bytes"]), time.monotonic() - begin)
