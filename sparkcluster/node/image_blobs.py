"""An image as a directory of blobs: files called by their SHA-256, and which of them belong to the image.

An image has a configuration, which lists its layers by the SHA-256 of their content (diff IDs), a file for each layer,
and from Docker 25 on a manifest, which lists these files: containerd's store compresses layers.

Requests have the lease, the ``directory`` of the blobs, and what is known of the image: ``layers`` (diff IDs),
``config_sum`` (a hash of what a container of it starts with) and ``config`` (SHA-256 of its configuration); the latter
two may be None.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from sparkcluster.node import docker, programs
from sparkcluster.node.shared import BLOBS
from sparkcluster.node.wire import Failed

Document = dict[str, Any]
Request = dict[str, Any]

OTHER = "the image's archive is that of another image: its configuration or its layers differ"
# docker save writes all layers to disk before its first byte of output; docker load unpacks after the last byte.
SILENT_S = 1200.0
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_DOCUMENTS_BYTES = 4 << 20


def clear(request: Request) -> dict[str, Any]:
    """Remove the directory."""
    if os.path.isdir(request["directory"]):
        shutil.rmtree(request["directory"])
    return {}


def within(since: float, text: str) -> None:
    """Raise Failed with ``text`` where Docker has been silent for too long, ``since`` a ``time.monotonic``."""
    if time.monotonic() - since > SILENT_S:
        raise Failed("docker", "%s for %.0f s" % (text, SILENT_S))


def last_line(output: BinaryIO) -> str:
    """The last line of what Docker wrote to a file."""
    output.seek(0)
    return programs.last_lines(output.read()) or "no output"


class Blobs:
    """The blobs ``names`` of the image of ``request``.

    Attributes:
        folder: where they are.
        sizes: bytes of each, by its SHA-256.
        documents: configurations and manifests, by their SHA-256.
        config: SHA-256 of the image's configuration; empty if it is not there.
        manifest: likewise of its manifest.
        layers: SHA-256 and bytes of each layer's file, also of one that is not there; the bytes are 0 without manifest.
    """

    def __init__(self, request: Request, names: Iterable[str]) -> None:
        self.folder = os.path.join(request["directory"], BLOBS)
        self.sizes = {name: os.path.getsize(self.folder + name) for name in names}
        self.documents = dict(self._documents())
        self.config = next((each for each in self.documents if self._is_config(each, request)), "")
        count = len(request["layers"])
        ours = [each for each in self.documents if self.named(each)[:1] == [self.config]]
        self.manifest = next((each for each in ours if len(self._described(each)) == count), "")
        by_content = [(diff[7:], 0) for diff in request["layers"]]
        self.layers = self._described(self.manifest) if self.manifest else by_content

    def _documents(self) -> Iterator[tuple[str, Document]]:
        room = _DOCUMENTS_BYTES
        for name in sorted(self.sizes, key=self.sizes.__getitem__):
            if self.sizes[name] > room:
                return
            with open(self.folder + name, "rb") as file, contextlib.suppress(ValueError, RecursionError):
                text = file.read()
                document = json.loads(text, parse_int=_integer) if text.startswith(b"{") else {}
                if document.keys() & {"rootfs", "layers"}:
                    room -= len(text)
                    yield name, document

    def _is_config(self, name: str, request: Request) -> bool:
        try:
            same = (self.documents[name]["rootfs"]["diff_ids"] or []) == request["layers"]
            starts = request["config_sum"] in (None, self.config_sum(name))
        except (AttributeError, KeyError, TypeError):
            return False
        return same and starts and request["config"] in (None, "sha256:" + name)

    def config_sum(self, config: str) -> str:
        """The hash of what a container starts with, by the configuration ``config``."""
        return docker.config_sum(self.documents[config].get("config") or {})

    def named(self, manifest: str) -> list[str]:
        """SHA-256 of the configuration and of the layers' files that a manifest names; none where it is no manifest."""
        try:
            config = str(self.documents[manifest]["config"]["digest"])[7:]
        except (KeyError, TypeError):
            return []
        return [config, *(name for name, _ in self._described(manifest))]

    def _described(self, manifest: str) -> list[tuple[str, int]]:
        try:
            found = [(str(each["digest"])[7:], int(each["size"])) for each in self.documents[manifest]["layers"]]
        except (KeyError, TypeError, ValueError):
            return []
        return found if all(_DIGEST.match(name) and 0 < size < 1 << 50 for name, size in found) else []

    def end(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of what makes an archive of the blobs: one image, and no name for it."""
        layers = [BLOBS + name for name, _ in self.layers]
        documents: dict[str, Any] = {
            "manifest.json": [{"Config": BLOBS + self.config, "RepoTags": None, "Layers": layers}]
        }
        if self.manifest:
            kind = self.documents[self.manifest].get("mediaType") or "application/vnd.oci.image.manifest.v1+json"
            entry = {"mediaType": kind, "digest": "sha256:" + self.manifest, "size": self.sizes[self.manifest]}
            documents["index.json"] = {"schemaVersion": 2, "manifests": [entry]}
            documents["oci-layout"] = {"imageLayoutVersion": "1.0.0"}
        for name, document in documents.items():
            yield name, json.dumps(document).encode()


def _integer(digits: str) -> int:
    return int(digits[:20])  # of a million digits it takes minutes
