"""Weights that are on this machine: ``stage weights --from DIRECTORY`` sends them to one node, for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkcluster.errors import StageError
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import stream
from sparkcluster.node.shared import hub_folder
from sparkcluster.report import size
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import COMMIT, Companion
from sparkcluster.staging.artifacts import Request, endpoint
from sparkcluster.staging.copy import HERE, Failure, Step, follow, list_files, stage_error
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

    def local(self, file: Mapping[str, Any]) -> Path:
        """Where one of the files is that nodes get, as ``Manifest.files`` has it."""
        path = str(file["path"])
        if self.snapshot is None and self.revision:  # a plain file here, and a blob there
            path = file["links"][0].removeprefix(f"snapshots/{self.revision}/")
        return self.root / path


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
    if top.parent.name == "snapshots" and top.parent.parent.name == inner.name:
        return Place(top.parent.parent, top.name, top.name)
    for root in (top / inner, top / inner.name, top):
        if root.name == inner.name and (root / "snapshots").is_dir():
            commit = _commit(root, model.revision)
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
    found = revision
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = (root / "refs" / revision).read_text(encoding="utf-8").strip()
    if re.fullmatch("[0-9A-Za-z]{1,64}", found) and (root / "snapshots" / found).is_dir():
        return found
    have = ", ".join(sorted(path.name for path in (root / "snapshots").iterdir())) or "none"
    raise StageError(f"{root} has no revision {revision}", step=_STEP, hint=f"model.revision can be: {have}")


def download(run: Transfers, spec: Spec) -> Path:
    """Download the model to the Hugging Face cache of this machine, by its ``hf``; that cache.

    Raises:
        StageError: this machine cannot either.
    """
    home = str(Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser())
    model = spec.playbook.model
    request = {"do": "run", "id": model.id, "revision": model.revision, "choice": spec.playbook.choice}
    request |= {"hf_home": home, "image": None, "token": None, "endpoint": endpoint(None)}
    shown, said = run.moving("weights", HERE, "download"), set[str]()

    def report(done: int, total: int) -> None:
        if not said:
            said.add(amount := size(total) if total else "of unknown size")
            run.shown.note(
                f"no node reaches the hub: this machine downloads {model.id}, {amount}, to {home}, and sends it"
            )
        shown(done, total)

    with stream(LocalHost(HERE), "fetch", request) as running:
        done = follow(_step(run), HERE, running, report)
    if isinstance(done, Failure):
        raise stage_error(_step(run), done)
    return Path(home)


def size_bytes(run: Transfers, place: Place, spec: Spec) -> int:
    """Bytes of the files that are served of what is in ``place``, which are not read.

    Raises:
        StageError: they cannot be listed.
    """
    return sum(file["size"] for file in _listed(run, place, spec, verify=False).files)


def read(run: Transfers, place: Place, spec: Spec) -> Sequence[dict[str, Any]]:
    """The files that are served of what is in ``place``, as nodes get them (``Manifest.files``), with their hashes.

    Raises:
        StageError: a file is a link out of the directory, or cannot be read.
    """
    found = _listed(run, place, spec, verify=place.snapshot is None)
    if not all(file["sha256"] for file in found.files):  # a cache names files by their content, but for few
        found = _listed(run, place, spec, verify=True)
    if place.snapshot is not None:
        return found.files
    for name in found.listed:
        if not (real := (place.root / name).resolve()).is_relative_to(place.root):
            raise StageError(
                f"{place.root / name} leads out of the directory, to {real}",
                step=_STEP,
                hint="put a copy in place of the link, or give the directory that has the file",
            )
    if place.revision is None:
        return found.files
    named = [each.model_copy(update={"blob": each.sha256}) for each in found.listed.values()]
    return Manifest.of(named, place.revision).files


def _step(run: Transfers) -> Step:
    """The step of programs on this machine, which has no lease."""
    return Step(_STEP, lambda _node: {}, run.stopped.is_set)


def _listed(run: Transfers, place: Place, spec: Spec, *, verify: bool) -> Manifest:
    request = {"root": str(place.root), "revision": place.snapshot, "choice": spec.playbook.choice, "verify": verify}
    return list_files(_step(run), LocalHost(HERE), request, run.report("weights", HERE, "read"))


def bring(
    run: Transfers,
    staging: Staging,
    place: Place,
    files: Sequence[dict[str, Any]],
    request: Callable[[str], Request],
) -> None:
    """Send ``files`` to the node that has most of them, and copy them from there to the others, by its ``request``.

    Raises:
        StageError: they did not reach a node; what arrived stays.
        LeaseLost: another operator has the lease.
    """
    nodes = list(dict.fromkeys([*staging.parts, *staging.nodes]))
    more = {"model": True, **({"revision": place.revision} if place.revision else {})}
    ordered = sorted(files, key=lambda file: file["path"] == "config.json")  # without it nothing looks whole
    places = {file["path"]: place.local(file) for file in files}
    run.bring(staging.what, nodes, lambda node: {**request(node), **more}, ordered, places)
