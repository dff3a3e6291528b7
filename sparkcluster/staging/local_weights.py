"""Weights that are on this machine: ``stage weights --from DIRECTORY`` sends them to one node, for all of them."""

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
    """Where a model is: a ``root`` in the layout of the hub's cache with a ``snapshot``, or a plain directory.

    Attributes:
        revision: the commit under which nodes get it; None for a model in a directory of its own.
    """

    root: Path
    snapshot: str | None
    revision: str | None


def locate(directory: Path, spec: Spec) -> Place | None:
    """Where the model of ``spec`` is in ``directory``: an HF_HOME, a hub's cache, a repository of it, or plain files.

    None for what the engine loads beside a model, if it is not there.

    Raises:
        StageError: it is not there, or its commit is unknown.
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
            f"nothing says which commit of {model.id} is in {directory}",
            step=_STEP,
            hint="give an HF_HOME, a Hugging Face cache or its models--… folder, or set model.revision to the commit",
        )
    return Place(top, None, model.revision)


def _commit(root: Path, revision: str) -> str:
    """The snapshot of ``revision``, which may be the name of a ref."""
    found = revision
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = (root / "refs" / revision).read_text(encoding="utf-8").strip()
    have = sorted(path.name for path in (root / "snapshots").iterdir())
    if found in have:
        return found
    hint = f"model.revision can be: {', '.join(have) or 'none'}"
    raise StageError(f"{root} has no revision {revision}", step=_STEP, hint=hint)


def step_here(run: Transfers) -> Step:
    """The step of programs on this machine, which has no lease."""
    return Step(_STEP, lambda _node: {}, run.stopped.is_set)


def size_bytes(run: Transfers, place: Place, spec: Spec) -> int:
    """Bytes of the files that are served of what is in ``place``, which are not read.

    Raises:
        StageError: they cannot be listed.
    """
    return sum(file["size"] for file in _listed(run, place, spec, verify=False).files)


def bring(run: Transfers, spec: Spec, staging: Staging, place: Place, request: Callable[[str], Request]) -> None:
    """Send what is served of ``place`` to the node that has most of it, and copy it to the others, by its ``request``.

    Raises:
        StageError: a file is a link out of the directory, or cannot be read; or one did not reach a node: what arrived
            stays.
        LeaseLost: another operator has the lease.
    """
    found = _listed(run, place, spec, verify=place.snapshot is None)
    if not all(file["sha256"] for file in found.files):  # a cache names files by their content, but for few
        found = _listed(run, place, spec, verify=True)
    files, places = found.files, {file["path"]: place.root / file["path"] for file in found.files}
    for name in found.listed if place.snapshot is None else ():
        if not (real := (place.root / name).resolve()).is_relative_to(place.root):
            raise StageError(
                f"{place.root / name} leads out of the directory, to {real}",
                step=_STEP,
                hint="put a copy in place of the link, or give the directory that has the file",
            )
    if place.snapshot is None and place.revision is not None:  # a plain file here, and a blob there
        named = [each.model_copy(update={"blob": each.sha256}) for each in found.listed.values()]
        files = Manifest.of(named, place.revision).files
        places = {f"blobs/{each.sha256}": place.root / each.name for each in named}
    files = sorted(files, key=lambda file: bool(file["path"] == "config.json"))  # without it nothing looks whole
    nodes = list(dict.fromkeys([*staging.parts, *staging.nodes]))
    more = {"model": True, "revision": place.revision}
    run.bring(staging.what, nodes, lambda node: {**request(node), **more}, files, places)


def _listed(run: Transfers, place: Place, spec: Spec, *, verify: bool) -> Manifest:
    request = {"root": str(place.root), "revision": place.snapshot, "choice": spec.playbook.choice, "verify": verify}
    return list_files(step_here(run), LocalHost(HERE), request, run.report("weights", HERE, "read"))
