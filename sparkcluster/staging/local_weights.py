"""Stages weights from a local directory: ``stage weights --from DIRECTORY`` sends them to one node first."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

from sparkcluster.errors import StageError
from sparkcluster.hosts.local import LocalHost
from sparkcluster.node.shared import hub_folder
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import COMMIT, Companion
from sparkcluster.staging.artifacts import Request
from sparkcluster.staging.copy import HERE, Step, list_files
from sparkcluster.staging.manifest import Manifest
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.transfers import Transfers

_STEP = "stage weights"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The location of a model: a ``root`` in the layout of the hub's cache with a ``snapshot``, or a plain directory.

    Attributes:
        revision: the commit under which nodes store it; None for a model with a path of its own.
    """

    root: Path
    snapshot: str | None
    revision: str | None


def locate(directory: Path, spec: Spec) -> Place | None:
    """Find the model of ``spec`` in ``directory``: an HF_HOME, a hub's cache, a repository in it, or plain files.

    None if the model is a companion and missing there.

    Raises:
        StageError: it is missing, or its commit is unknown.
    """
    model, top = spec.playbook.model, directory.resolve()
    if model.id is None:
        return Place(top, None, None)
    inner = Path(hub_folder(model.id))
    for root in (top / inner, top / inner.name, top, top.parent.parent):
        if root.name == inner.name and (root / "snapshots").is_dir():
            commit = top.name if top.parent.name == "snapshots" else _commit(root, model.revision)
            return Place(root, commit, commit)
    if isinstance(model, Companion):
        return None
    if (top / "hub").is_dir() or (top / "snapshots").is_dir() or any(top.glob("models--*")):
        raise StageError(f"{directory} has no {model.id}", step=_STEP, hint=f"ls {top}")
    if not re.fullmatch(COMMIT, model.revision):
        raise StageError(
            f"cannot tell which commit of {model.id} is in {directory}",
            step=_STEP,
            hint="pass an HF_HOME, a Hugging Face cache or its models--… folder, or set model.revision to the commit",
        )
    return Place(top, None, model.revision)


def _commit(root: Path, revision: str) -> str:
    """The snapshot of ``revision``, which may be a ref."""
    found = revision
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = (root / "refs" / revision).read_text(encoding="utf-8").strip()
    have = sorted(path.name for path in (root / "snapshots").iterdir())
    if found in have:
        return found
    hint = f"model.revision can be: {', '.join(have) or 'none'}"
    raise StageError(f"{root} has no revision {revision}", step=_STEP, hint=hint)


def step_here(run: Transfers) -> Step:
    """The step for programs on this machine; it has no lease."""
    return Step(_STEP, lambda _node: {}, run.stopped.is_set)


def size_bytes(run: Transfers, place: Place, spec: Spec) -> int:
    """Size of the files in ``place`` that are served; does not read them.

    Raises:
        StageError: they cannot be listed.
    """
    return sum(file["size"] for file in _listed(run, place, spec, verify=False).files)


def bring(run: Transfers, spec: Spec, staging: Staging, place: Place, request: Callable[[str], Request]) -> None:
    """Send the files in ``place`` to the node that has most of them, and copy them from there to the other nodes.

    Raises:
        StageError: a file is a link out of the directory, cannot be read, or did not reach a node; files that arrived
            are kept.
        LeaseLost: another operator has the lease.
    """
    found = _listed(run, place, spec, verify=place.snapshot is None)
    if not all(file["sha256"] for file in found.files):  # a cache names most files by their content
        found = _listed(run, place, spec, verify=True)
    files, places = found.files, {file["path"]: place.root / file["path"] for file in found.files}
    for name in found.listed if place.snapshot is None else ():
        if not (real := (place.root / name).resolve()).is_relative_to(place.root):
            raise StageError(
                f"{place.root / name} is a link out of the directory, to {real}",
                step=_STEP,
                hint="replace the link with a copy, or pass the directory that contains the file",
            )
    if place.snapshot is None and place.revision is not None:  # a plain file here, a blob on the node
        named = [each.model_copy(update={"blob": each.sha256}) for each in found.listed.values()]
        files = Manifest.of(named, place.revision).files
        places = {f"blobs/{each.sha256}": place.root / each.name for each in named}
    files = sorted(files, key=lambda file: bool(file["path"] == "config.json"))  # marks a complete directory
    nodes = list(dict.fromkeys([*staging.parts, *staging.nodes]))
    more = {"model": True, "revision": place.revision}
    run.bring(staging.what, nodes, lambda node: {**request(node), **more}, files, places)


def _listed(run: Transfers, place: Place, spec: Spec, *, verify: bool) -> Manifest:
    request = {"root": str(place.root), "revision": place.snapshot, "choice": spec.playbook.choice, "verify": verify}
    return list_files(step_here(run), LocalHost(HERE), request, run.report("weights", HERE, "read"))
