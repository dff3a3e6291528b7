"""Finds the layers of images that this node has, so that a copy transfers only the others.

Docker's own store identifies a layer by the hash of its content (diff ID) and of all layers below it, so two images
share layers from the lowest up to the first that differs. In archives of Docker 25 and newer the file of a layer is
named by its diff ID. containerd's store identifies files by their own hash, compressed or not, and does not tell which
files an image has. So files that were copied from or to this node are recorded::

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
# Versions for which it was tested that an incomplete archive loads, the image runs, and its archive is complete again.
_PROVEN = ("26", "27", "28")


def layers(machine: Machine, state_dir: str, engine: dict[str, Any], image: dict[str, Any] | None) -> dict[str, Any]:
    """The files of the layers of ``image``, and layers of other images here; for layers in both, only the former.

    ``engine`` and ``image`` are from ``container_facts``.

    Raises:
        Unreadable: Docker does not answer.
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
    """Layers of complete images here: ``chains`` of diff IDs, or in containerd's store the recorded ``blobs``."""
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
    """Diff IDs of an image; empty if it is incomplete (``docker.is_whole``)."""
    image = machine.docker_document(_path(image_id)) or {}
    return (image.get("RootFS") or {}).get("Layers") or []


def _without_files(machine: Machine) -> frozenset[str]:
    """IDs of images for which containerd's store lacks files, as reported by Docker since version 28.

    This happens if an image is removed and pulled again while another has the same layers (containerd#8973).
    """
    listed = machine.docker_document("/images/json?manifests=1", list) or []
    return frozenset(
        str(each.get("Id"))
        for each in listed
        if each.get("Manifests") is not None
        and not any(found.get("Available") for found in each["Manifests"] if found.get("Kind") == "image")
    )


def _recorded(state_dir: str, image: dict[str, Any]) -> list[tuple[str | None, int]]:
    """SHA-256 and size of each layer's file in a copy of ``image``; None and 0 if unknown."""
    known = {layer: (digest, size) for kept in _record(state_dir).values() for layer, digest, size in kept}
    return [known.get(diff, (None, 0)) for diff in image["layers"]]


def _by_content(machine: Machine, image: dict[str, Any]) -> list[tuple[str, int]]:
    """The same for Docker's own store; the sum of sizes is an upper bound.

    The history has the sizes in order, but does not distinguish empty layers from steps without a layer: here empty
    layers come first.
    """
    history = machine.docker_document(_path(image["id"], "history"), list) or []
    names = [diff.partition(":")[2] for diff in image["layers"]]
    sizes = [int(each["Size"]) for each in reversed(history) if each.get("Size")]
    return [*zip(names, [0] * (len(names) - len(sizes)) + sizes, strict=False)]


def record(request: dict[str, Any], image_id: str, files: Sequence[tuple[str, int]]) -> None:
    """Record the files of an image's layers in containerd's store, each with SHA-256 and size, if known.

    The request has the lease, ``engine``, and ``image`` with its layers. Without the record the next copy is slower.
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
