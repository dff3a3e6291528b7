"""Stages Ray for images without it: from here to the first node, then from node to node."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from sparkcluster.errors import StageError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.plan.image import BROUGHT_RAY, has_brought_ray, ray_directory, ray_name, without_ray
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.staging import ray_archive
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import Progress, stage_errors
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.ray_archive import FILE, Archive
from sparkcluster.staging.send import send
from sparkcluster.staging.transfers import Copied, Transfers
from sparkcluster.topology.model import Topology

UNPACK_S = 300  # 200 MB in 9000 files, with a sync, on a disk that is busy

GetArchive = Callable[[EngineFacts, ray_archive.Report], Archive]


def find_missing(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Staging | None:
    """Which nodes lack the Ray that is mounted into their image, and which have it; None if no image needs it."""
    names = without_ray(spec, facts, topology)
    if not names:
        return None
    complete = [name for name in names if has_brought_ray(facts[name])]
    return Staging(
        what="ray",
        name=f"Ray {BROUGHT_RAY}",
        sources=tuple(complete),
        missing=tuple((name, "not in the image") for name in names if name not in complete),
        download=(),
        size_bytes=None,
    )


def archive_bytes(facts: Facts) -> int | None:
    """Size of the archive of Ray for the node of ``facts``; None until this machine has made it."""
    engine = engine_of(facts)
    archive = ray_archive.kept(engine) if engine is not None else None
    try:
        return archive.path.stat().st_size if archive is not None else None
    except OSError:
        return None


def stage(
    changer: Changer,
    facts: Mapping[str, Facts],
    topology: Topology,
    staging: Staging,
    *,
    progress: Progress,
    get_archive: GetArchive = ray_archive.get_archive,
) -> list[Copied]:
    """Copy Ray to the nodes that lack it, and unpack it there.

    ``get_archive`` packs it here, or finds it in the cache: a node's copy is a source where it is the same.

    Raises:
        StageError: it cannot be fetched or copied.
        LeaseLost: a node has a newer epoch.
    """
    transfers = Transfers(changer.fleet, dict(facts), topology, changer.lease, progress)
    engines = {name: engine for name in topology.members if (engine := engine_of(facts[name])) is not None}
    for kind in dict.fromkeys(ray_name(engines[name]) for name, _ in staging.missing):
        same = {name for name, engine in engines.items() if ray_name(engine) == kind}
        part = dataclasses.replace(
            staging,
            sources=tuple(name for name in staging.sources if name in same),
            missing=tuple(each for each in staging.missing if each[0] in same),
        )
        _RayCopies(changer, transfers, part, engines[part.missing[0][0]]).run(get_archive)
    order = [name for name, _ in staging.missing]
    return sorted(transfers.copied, key=lambda copied: order.index(copied.node))


@dataclasses.dataclass(frozen=True, slots=True)
class _RayCopies:
    """Ray for one Python and platform, to every node that needs it."""

    changer: Changer
    transfers: Transfers
    staging: Staging
    engine: EngineFacts

    def run(self, get_archive: GetArchive) -> None:
        progress, name, what = self.transfers.progress, self.staging.name, self.staging.what
        targets = lacking = [node for node, _ in self.staging.missing]
        archive = get_archive(self.engine, lambda text: progress(targets[0], text))
        sources, files = list(self.staging.sources[:1]), []
        if sources:
            files = self.transfers.files(self.staging, sources[0], self._request(sources[0])).files
        if [(file["path"], file["sha256"]) for file in files] != [(FILE, archive.sha256)]:
            # whatever a node has, it is not what was packed here
            sources, lacking = targets[:1], targets[1:]
            size = self._send(archive, targets[0])
            files = [{"path": FILE, "size": size, "mtime": 0, "links": [], "sha256": archive.sha256}]
        if lacking:
            self.transfers.move(what, self._request, [*sources[:1], *lacking], files)
        for target in targets:
            progress(target, f"unpacking {name}")
        steps = {
            target: [
                {
                    "do": "unpack",
                    "archive": f"{self._folder(target)}/{FILE}",
                    "sha256": files[0]["sha256"],
                    "path": ray_directory(self.transfers.facts[target].state_dir, self.engine),
                }
            ]
            for target in targets
        }
        with stage_errors(self.transfers.step(what), targets[0]):
            self.changer.apply(steps, timeout_s=UNPACK_S)
        for target in targets:
            progress(target, f"{name} complete")

    def _folder(self, node: str) -> str:
        return f"{self.transfers.facts[node].state_dir}/ray/archives/{ray_name(self.engine)}"

    def _send(self, archive: Archive, node: str) -> int:
        """Send the archive to ``node``; its size."""
        begin = time.monotonic()
        step = self.transfers.step(self.staging.what)
        try:
            size = archive.path.stat().st_size
        except OSError as error:
            hint = f"rm -r {archive.path.parent}"
            raise StageError(f"{archive.path}: {error.strerror}", step=step.name, hint=hint) from error
        self.transfers.progress(node, f"{self.staging.name}, {size / 1e6:.0f} MB from this machine")
        request = {"root": self._folder(node), "path": FILE, "sha256": archive.sha256}
        report = self.transfers.report(self.staging.what, node, "from this machine")
        sent = send(step, self.changer.fleet[node], archive.path, request, report).bytes
        self.transfers.record(self.staging.what, node, "controller", sent, begin)
        return size

    def _request(self, node: str) -> Request:
        return {"what": "files", "verify": True, "root": self._folder(node)}
