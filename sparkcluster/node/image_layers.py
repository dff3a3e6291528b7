"""Which layers of images this node has, so that a copy brings the others alone.

An engine with a store of its own knows a layer by the hash of its content (diff ID) on top of those below it, so that
an image shares with another one the layers from the lowest up to the first that differs. In archives of Docker 25 and
newer the file of a layer is called by its diff ID. containerd's store knows files by their own hash, compressed or
not, wherever they are; which files an image has it does not tell. What was copied from here or to here is recorded::

    state_dir/images/layers.json   {ID of an image: {"layers": [[diff ID, SHA-256, bytes], ...]}}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

from sparkcluster.node import common
from sparkcluster.node.machine import Machine, quoted

_IMAGES, _FILE_BYTES = 64, 1 << 50
# In which an archive that lacks files was loaded, the image ran, and its archive was whole again.
_PROVEN = ("26", "27", "28")


def layers(machine: Machine, state_dir: str, engine: dict[str, Any], image: dict[str, Any] | None) -> dict[str, Any]:
    """The files of the layers of ``image``, and what images here have of others; nothing that is in ``image`` as well.

    ``engine`` and ``image`` are facts of ``container_facts``.

    Raises:
        Unreadable: the Docker engine does not answer.
    """
    containerd: bool = engine["containerd_store"]
    found: dict[str, Any] = {}
    if image is not None:
        files = _recorded(state_dir, image) if containerd else _by_content(machine, image)
        found["files"] = [{"digest": digest, "bytes": size} for digest, size in files]
    if image is None or containerd:
        found.update(held(machine, state_dir, engine))
    return found


def held(machine: Machine, state_dir: str, engine: dict[str, Any]) -> dict[str, Any]:
    """What images that are here and whole have: ``chains`` of diff IDs, in containerd's store recorded ``blobs``."""
    if engine["containerd_store"]:
        recorded = _record(state_dir) if str(engine["version"]).partition(".")[0] in _PROVEN else {}
        gone = _without_files(machine) if recorded else frozenset()
        blobs = [
            {"layer": diff, "digest": digest, "bytes": size}
            for name, kept in recorded.items()
            if name not in gone and _diffs(machine, name) == [diff for diff, _, _ in kept]
            for diff, digest, size in kept
        ]
        return {"chains": [], "blobs": blobs}
    found = machine.docker_document("/images/json", list) or []
    newest = sorted(found, key=lambda each: -int(each.get("Created") or 0))[:_IMAGES]
    chains = dict.fromkeys(tuple(_diffs(machine, str(each.get("Id")))) for each in newest)
    return {"chains": [list(chain) for chain in chains if chain], "blobs": []}


def _diffs(machine: Machine, image_id: str) -> list[str]:
    """Diff IDs of an image; none of one that is a name alone (``docker.is_whole``)."""
    image = machine.docker_document(_path(image_id)) or {}
    return (image.get("RootFS") or {}).get("Layers") or []


def _without_files(machine: Machine) -> frozenset[str]:
    """IDs of images of which containerd's store lacks files; Docker says that since version 28.

    One that was removed and pulled again, beside another one with the same layers, is such an image (containerd#8973).
    """
    listed = machine.docker_document("/images/json?manifests=1", list) or []
    return frozenset(
        str(each.get("Id"))
        for each in listed
        if each.get("Manifests") is not None
        and not any(found.get("Available") for found in each["Manifests"] if found.get("Kind") == "image")
    )


def _recorded(state_dir: str, image: dict[str, Any]) -> list[tuple[str | None, int]]:
    """SHA-256 and bytes of each layer's file in a copy of ``image``; None and 0 where that is not known."""
    known = {layer: (digest, size) for kept in _record(state_dir).values() for layer, digest, size in kept}
    return [known.get(diff, (None, 0)) for diff in image["layers"]]


def _by_content(machine: Machine, image: dict[str, Any]) -> list[tuple[str, int]]:
    """Likewise of an engine with a store of its own; together they are no larger than this.

    The history has the sizes in order, and does not tell a layer without bytes from a step that made none: these come
    first here.
    """
    history = machine.docker_document(_path(image["id"], "history"), list) or []
    names = [diff.partition(":")[2] for diff in image["layers"]]
    sizes = [int(each["Size"]) for each in reversed(history) if each.get("Size")]
    return [*zip(names, [0] * (len(names) - len(sizes)) + sizes, strict=False)]


def record(request: dict[str, Any], image_id: str, files: Sequence[tuple[str, int]]) -> None:
    """Note the files of an image's layers in containerd's store, each a SHA-256 and its bytes, if these are known.

    The request has the lease, ``engine`` and ``image`` with its layers. Without the record the next copy takes longer.
    """
    if not request["engine"]["containerd_store"] or not all(0 < size < _FILE_BYTES for _, size in files):
        return
    path = _record_path(request["state_dir"])
    with contextlib.suppress(OSError):
        entries = [[diff, *file] for diff, file in zip(request["image"]["layers"], files, strict=True)]
        kept = {**common.read_json(path), image_id: {"layers": entries}}
        common.write_atomically(path, json.dumps(dict([*kept.items()][-_IMAGES:])).encode())


def _record_path(state_dir: str) -> str:
    return os.path.join(common.private(state_dir), "images", "layers.json")


def _record(state_dir: str) -> dict[str, list[tuple[str, str, int]]]:
    return {name: each["layers"] for name, each in common.read_json(_record_path(state_dir)).items()}


def _path(image_id: str, what: str = "json") -> str:
    return "/images/%s/%s" % (quoted(image_id), what)
