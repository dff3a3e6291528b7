"""Stages Ray for images without it: from this machine to the first node, then from node to node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from sparkcluster.facts.docker import EngineFacts
from sparkcluster.facts.engine import engine_of
from sparkcluster.facts.model import Facts
from sparkcluster.plan.image import BROUGHT_RAY, has_brought_ray, ray_directory, ray_name, without_ray
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec
from sparkcluster.staging import ray_archive
from sparkcluster.staging.copy import stage_errors
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.ray_archive import Archive
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology.model import Topology

_FILE = "ray.tar.gz"
_UNPACK_S = 300  # 200 MB in 9000 files, with a sync, on a busy disk


def find_missing(spec: Spec, facts: Mapping[str, Facts], topology: Topology) -> Staging | None:
    """Find the nodes that lack the Ray to be mounted into their image; None if no image needs it."""
    nodes = without_ray(spec, facts, topology)
    lack = tuple((node, "not in the image") for node in nodes if not has_brought_ray(facts[node]))
    return Staging("ray", f"Ray {BROUGHT_RAY}", (), lack, (), None, spec=spec) if nodes else None


def archive_bytes(facts: Facts) -> int | None:
    """Size of the archive of Ray for the node of ``facts``; None until it exists on this machine."""
    engine = engine_of(facts)
    archive = ray_archive.kept(engine) if engine is not None else None
    return archive.path.stat().st_size if archive is not None else None


def stage(changer: Changer, run: Transfers, staging: Staging) -> None:
    """Download Ray unless it is cached here, copy it to the nodes that lack it, and unpack it there.

    Raises:
        StageError: it cannot be downloaded or copied.
        LeaseLost: a node has a newer epoch.
    """
    engines = {node: engine for node in staging.nodes if (engine := engine_of(run.facts[node])) is not None}
    for name in dict.fromkeys(map(ray_name, engines.values())):
        nodes = [node for node, engine in engines.items() if ray_name(engine) == name]
        archive = ray_archive.get_archive(engines[nodes[0]], partial(run.progress, nodes[0]))
        _bring(changer, run, archive, {node: engines[node] for node in nodes})


def _bring(changer: Changer, run: Transfers, archive: Archive, engines: Mapping[str, EngineFacts]) -> None:
    """Copy ``archive`` to the nodes of ``engines``, which all need this archive, and unpack it."""
    roots = {node: f"{run.facts[node].state_dir}/ray/archives/{ray_name(engine)}" for node, engine in engines.items()}
    file = {"path": _FILE, "size": archive.path.stat().st_size, "mtime": 0, "links": [], "sha256": archive.sha256}
    run.bring("ray", list(engines), lambda node: {"root": roots[node]}, [file], {_FILE: archive.path})
    steps = {}
    for node, engine in engines.items():
        run.progress(node, f"unpacking Ray {BROUGHT_RAY}")
        places = {"archive": f"{roots[node]}/{_FILE}", "path": ray_directory(run.facts[node].state_dir, engine)}
        steps[node] = [{"do": "unpack", "sha256": archive.sha256, **places}]
    with stage_errors(run.step("ray"), next(iter(engines))):
        changer.apply(steps, timeout_s=_UNPACK_S)
