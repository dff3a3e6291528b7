"""Weights that are on this machine: ``stage weights --from DIRECTORY`` sends them to one node, for all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
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
from sparkcluster.staging.copy import Failure, Report, Step, follow, list_files, stage_error
from sparkcluster.staging.manifest import Manifest
from sparkcluster.staging.notes import HERE, kept
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.send import send
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


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """A model on this machine.

    Attributes:
        files: what nodes get, as ``Manifest.files`` has them, each with its SHA-256.
        places: where each of them is, by its path.
    """

    revision: str | None
    files: Sequence[dict[str, Any]]
    places: Mapping[str, Path]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file["size"] for file in self.files)


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
    step = Step(_STEP, lambda _node: {}, run.stopped.is_set)
    shown, told = run.moving("weights", HERE, "download"), False

    def report(done: int, total: int) -> None:
        nonlocal told
        if not told:
            amount = size(total) if total else "of unknown size"
            run.shown.note(
                f"no node reaches the hub: this machine downloads {model.id}, {amount}, to {home}, and sends it"
            )
        told = True
        shown(done, total)

    with stream(LocalHost(HERE), "fetch", request) as running:
        done = follow(step, HERE, running, report)
    if isinstance(done, Failure):
        raise stage_error(step, done)
    return Path(home)


def size_bytes(place: Place, spec: Spec, stopped: Callable[[], bool]) -> int:
    """Bytes of the files that are served of what is in ``place``, which are not read.

    Raises:
        StageError: they cannot be listed.
    """
    request: Request = {"root": str(place.root), "revision": place.snapshot, "choice": spec.playbook.choice}
    found = list_files(Step(_STEP, lambda _node: {}, stopped), LocalHost(HERE), request, lambda _done, _total: None)
    return sum(file["size"] for file in found.files)


def read(place: Place, spec: Spec, stopped: Callable[[], bool], report: Report) -> Given:
    """The files that are served of what is in ``place``, with their hashes; ``report`` gets the bytes that were read.

    Raises:
        StageError: a file is a link out of the directory, or cannot be read.
    """
    step = Step(_STEP, lambda _node: {}, stopped)
    request: Request = {"root": str(place.root), "revision": place.snapshot, "choice": spec.playbook.choice}
    request["verify"] = place.snapshot is None  # a cache names files by their content, but for few
    found = list_files(step, LocalHost(HERE), request, report)
    if not all(file["sha256"] for file in found.files):
        found = list_files(step, LocalHost(HERE), {**request, "verify": True}, report)
    if place.snapshot is not None:
        return Given(place.revision, found.files, {file["path"]: place.root / file["path"] for file in found.files})
    for name in found.listed:
        if not (real := (place.root / name).resolve()).is_relative_to(place.root):
            raise StageError(
                f"{place.root / name} leads out of the directory, to {real}",
                step=_STEP,
                hint="put a copy in place of the link, or give the directory that has the file",
            )
    listed = found.listed.values()
    if place.revision is None:
        return Given(None, found.files, {each.name: place.root / each.name for each in listed})
    named = [each.model_copy(update={"blob": each.sha256}) for each in listed]
    places = {f"blobs/{each.sha256}": place.root / each.name for each in listed}
    return Given(place.revision, Manifest.of(named, place.revision).files, places)


def bring(run: Transfers, staging: Staging, given: Given, request: Callable[[str], Request]) -> None:
    """Send ``given`` to the node that has most of it, and copy it from there to the others, by each node's ``request``.

    Raises:
        StageError: it did not reach a node; what arrived stays.
        LeaseLost: another operator has the lease.
    """
    nodes = list(dict.fromkeys([*staging.parts, *(node for node, _ in staging.missing)]))
    first, begin = nodes[0], time.monotonic()
    requests = {node: {**request(node), **({"revision": given.revision} if given.revision else {})} for node in nodes}
    sent = before = 0
    shown = run.moving(staging.what, first, "controller")

    def report(done: int, _size: int) -> None:
        shown(before + done, given.size_bytes)

    for file in sorted(given.files, key=lambda file: file["path"] == "config.json"):  # without it nothing looks whole
        wanted = {"root": requests[first]["root"], "path": file["path"], "sha256": file["sha256"], "model": True}
        if given.revision is None:
            wanted["keep"] = "files and links"
        elif not str(file["path"]).startswith("blobs/"):
            wanted["keep"] = "files"
        step, source = run.step(staging.what), given.places[file["path"]]
        try:
            done = send(step, run.fleet[first], source, wanted, report)
        except OSError as error:
            raise StageError(f"{error.filename} cannot be read: {error.strerror}", step=_STEP) from error
        if done.kept is not None:
            run.shown.note(kept(done.kept, first))
        sent, before = sent + done.bytes, before + file["size"]
    run.record(staging.what, first, "controller", sent, begin)
    run.move(staging.what, requests.__getitem__, nodes, given.files)
