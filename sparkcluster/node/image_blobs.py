"""An image as a directory of blobs: files called by their SHA-256, and which of them belong to the image.

An image has a configuration, which lists its layers by the SHA-256 of their content (diff IDs), a file for each layer,
and from Docker 25 on a manifest, which lists these files: containerd's store compresses layers.

Requests have the lease, the directory (``root``), and what is known of the image: ``layers`` (diff IDs), ``config_sum``
(a hash of what a container of it starts with; None for any), and its ``blobs`` (SHA-256), empty before it is saved. Run
by itself it removes the directory, if that has any other blob, whole or in part.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from sparkcluster.node import docker, programs, wire
from sparkcluster.node.shared import BLOBS
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

OTHER = "the image's archive is that of another image: its configuration or its layers differ"
# docker save writes all layers to disk before its first byte of output; docker load unpacks after the last byte.
SILENT_S = 1200.0
_DIGEST = re.compile(r"^sha256:([0-9a-f]{64})\Z")
_DOCUMENTS_BYTES = 4 << 20
_OCI = "application/vnd.oci.image.manifest.v1+json"
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Remove what is of another image; the answer is that of ``wire.answer``."""
    return wire.answer(request, stdin, lambda _check: clear(request["root"], request["blobs"]))


def clear(root: str, but: Iterable[str] = ()) -> dict[str, Any]:
    """Remove the directory, unless it has no blobs ``but`` these."""
    with contextlib.suppress(FileNotFoundError):
        there = {name.lstrip(".").partition(".")[0] for name in os.listdir(os.path.join(root, BLOBS))}
        if not but or there - {*but}:
            shutil.rmtree(root)
    return {}


def within(since: float, text: str) -> None:
    """Raise Failed with ``text`` where Docker has been silent for too long, ``since`` a ``time.monotonic``."""
    if time.monotonic() - since > SILENT_S:
        raise Failed("docker", "%s for %.0f s" % (text, SILENT_S))


def last_line(output: BinaryIO) -> str:
    """The last line of what Docker wrote to a file."""
    output.seek(0)
    return programs.last_lines(output.read()) or "no output"


class Manifest(NamedTuple):
    """Media type, SHA-256 of the configuration, and SHA-256 and bytes of each layer's file."""

    kind: str
    config: str
    layers: list[tuple[str, int]]


class Blobs:
    """The blobs ``names`` of the image of ``request``.

    Attributes:
        folder: where they are.
        sizes: bytes of each, by its SHA-256.
        configs: diff IDs of the layers, and hash of what a container starts with, of each configuration, likewise.
        manifests: likewise.
        config: SHA-256 of the image's configuration; empty if it is not there.
        manifest: likewise of its manifest.
        layers: SHA-256 and bytes of each layer's file, also of one that is not there; the bytes are 0 without manifest.
    """

    def __init__(self, request: Request, names: Iterable[str]) -> None:
        self.folder = os.path.join(request["root"], BLOBS)
        self.sizes = {name: os.path.getsize(self.folder + name) for name in names}
        self.configs: dict[str, tuple[list[str], str]] = {}
        self.manifests: dict[str, Manifest] = {}
        room = _DOCUMENTS_BYTES
        for name in sorted(self.sizes, key=self.sizes.__getitem__):
            if self.sizes[name] > room:
                break
            with contextlib.suppress(*_MALFORMED):
                self._read(name)
                room -= self.sizes[name]
        diffs, starts = request["layers"], request["config_sum"]
        right = (name for name, found in self.configs.items() if found == (diffs, starts or found[1]))
        self.config = next(right, "")
        same = (name for name, found in self.manifests.items() if found.config == self.config)
        self.manifest = next((name for name in same if len(self.manifests[name].layers) == len(diffs)), "")
        by_content = [(diff[7:], 0) for diff in diffs]
        self.layers = self.manifests[self.manifest].layers if self.manifest else by_content

    def _read(self, name: str) -> None:
        """Take in a configuration or a manifest; any other file raises one of ``_MALFORMED``."""
        with open(self.folder + name, "rb") as file:
            document = json.loads(file.read())
        if "rootfs" in document:
            starts = docker.config_sum(document.get("config") or {})
            self.configs[name] = document["rootfs"]["diff_ids"] or [], starts
        else:
            layers = [(_sha256(each["digest"]), int(each["size"])) for each in document["layers"]]
            config, kind = _sha256(document["config"]["digest"]), document.get("mediaType") or _OCI
            self.manifests[name] = Manifest(kind, config, layers)

    def end(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of what makes an archive of the blobs: one image, and no name for it."""
        layers = [BLOBS + name for name, _ in self.layers]
        documents: dict[str, Any] = {
            "manifest.json": [{"Config": BLOBS + self.config, "RepoTags": None, "Layers": layers}]
        }
        if self.manifest:
            kind, digest = self.manifests[self.manifest].kind, "sha256:" + self.manifest
            entry = {"mediaType": kind, "digest": digest, "size": self.sizes[self.manifest]}
            documents["index.json"] = {"schemaVersion": 2, "manifests": [entry]}
            documents["oci-layout"] = {"imageLayoutVersion": "1.0.0"}
        for name, document in documents.items():
            yield name, json.dumps(document).encode()


def _sha256(digest: str) -> str:
    return str(_DIGEST.findall(digest)[0])
