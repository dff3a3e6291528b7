"""Checks the archive of an image while it passes to ``docker load``. Python 3.8, standard library only.

An archive of ``docker save`` says at its end which image it is and what its tags are. What the other node sends there
is dropped, and so are its headers: layers and documents alone pass, under names that contain their SHA-256. Our own
end follows, with one image and no tag, if it is the requested one. Without an end ``docker load`` loads nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional

from sparkcluster.node import docker
from sparkcluster.node.wire import Failed

# Docker's own layout, and the OCI layout of Docker 25 and newer.
_NAMES = re.compile(r"(?:blobs/sha256/[0-9a-f]{64}|[0-9a-f]{64}(?:\.json|/layer\.tar))\Z")
_BLOCK, _PAX_BYTES, _DOCUMENTS_BYTES, _ENTRIES = 512, 64 << 10, 4 << 20, 2_000


class Archive:
    """An archive in ``chunks``, none of them empty, that passes to ``write``."""

    def __init__(self, chunks: Iterator[bytes], write: Callable[[Any], None]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._write = write
        self._paths: Dict[str, str] = {}  # by digest, as the documents
        self._documents: Dict[str, Any] = {}
        self._room = _DOCUMENTS_BYTES

    def relay(self, expected: Dict[str, Any]) -> None:
        """Pass on the image with these ``layers`` and ``config_sum``, and unless it is None this ``config``."""
        for info in iter(self._header, None):
            if info.isreg() and _NAMES.match(info.name):
                self._pass(info.name, info.size)
            else:
                self._skip(info.size)
            self._skip(-info.size % _BLOCK)
        for _ in self._chunks:
            continue
        self._finish(expected)

    def _take(self, size: int) -> Iterator[memoryview]:
        """The next ``size`` bytes, in pieces."""
        while size:
            self._rest = self._rest or memoryview(next(self._chunks, b"")) or _fail("is truncated")
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def _skip(self, size: int) -> None:
        for _ in self._take(size):
            continue

    def _header(self) -> Optional[tarfile.TarInfo]:
        """The next entry; None at the end. Of extended headers only the size counts, which files over 8 GiB need."""
        size = None
        while True:
            block = b"".join(self._take(_BLOCK))
            if not block.strip(b"\0"):
                return None
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except (tarfile.HeaderError, ValueError):
                _fail("is damaged")
            extended = info.type == tarfile.XHDTYPE
            info.size = info.size if extended or size is None else size
            if info.size < 0 or (extended and info.size > _PAX_BYTES):
                _fail("has a header of %d bytes" % info.size)
            if not extended:
                return info
            found = re.search(rb"(?:^|\n)\d+ size=(\d{1,15})\n", b"".join(self._take(info.size)))
            size = int(found.group(1)) if found else None
            self._skip(-info.size % _BLOCK)

    def _pass(self, name: str, size: int) -> None:
        self._write(_header(name, size))
        hashed, text = hashlib.sha256(), bytearray()
        for piece in self._take(size):
            hashed.update(piece)
            self._write(piece)
            if size <= self._room:
                text += piece
        self._write(bytes(-size % _BLOCK))
        digest = hashed.hexdigest()
        if name in self._paths.values() or not (name.endswith("/layer.tar") or digest in name):
            _fail("contains %s twice, or with another hash" % name)
        if len(self._paths) == _ENTRIES:
            _fail("contains more than %d files" % _ENTRIES)
        self._paths[digest] = name
        if text.startswith(b"{"):
            with contextlib.suppress(ValueError, RecursionError):
                document = json.loads(text, parse_int=_integer)
                if document.keys() & {"rootfs", "layers"}:  # a configuration or a manifest
                    self._room -= size
                    self._documents[digest] = {**document, "size": size}

    def _finish(self, expected: Dict[str, Any]) -> None:
        config = next((digest for digest in self._documents if self._is_config(digest, expected)), "")
        manifest = next((digest for digest in self._documents if config and self._layers(digest, config)), "")
        layers = [digest[7:] for digest in expected["layers"]]
        if manifest and not self._paths.keys() >= set(layers):
            layers = self._layers(manifest, config)  # compressed: Docker compares their content with the configuration
        if not config or len(layers) != len(expected["layers"]) or not self._paths.keys() >= set(layers):
            absent = self._absent(config)
            if absent:
                raise Failed("blobs", "the image's archive lacks %d of the files that it names" % absent)
            _fail("lacks a layer" if config else "is that of another image: its configuration or its layers differ")
        paths = [self._paths[digest] for digest in layers]
        self._add("manifest.json", [{"Config": self._paths[config], "RepoTags": None, "Layers": paths}])
        if manifest:
            found = self._documents[manifest]
            kind = found.get("mediaType") or "application/vnd.oci.image.manifest.v1+json"
            entry = {"mediaType": kind, "digest": "sha256:" + manifest, "size": found["size"]}
            self._add("index.json", {"schemaVersion": 2, "manifests": [entry]})
            self._add("oci-layout", {"imageLayoutVersion": "1.0.0"})
        self._write(bytes(2 * _BLOCK))

    def _absent(self, config: str) -> int:
        """How many files are not there of those that manifests name, of ``config`` if that is there.

        containerd's store downloads no layer whose content another image there has, compressed otherwise; such an
        image can be neither saved nor copied (containerd#8973, moby#49473).
        """
        named = set()
        for document in self._documents.values():
            with contextlib.suppress(KeyError, TypeError):
                found = str(document["config"]["digest"])[7:]
                if config in ("", found):
                    named |= {found, *(str(each["digest"])[7:] for each in document["layers"])}
        return len(named - self._paths.keys())

    def _is_config(self, digest: str, expected: Dict[str, Any]) -> bool:
        """Whether a document configures the expected image: in its very bytes where their hash is known."""
        document = self._documents[digest]
        try:
            layers, started = document["rootfs"]["diff_ids"] or [], docker.config_sum(document.get("config") or {})
        except (AttributeError, KeyError, TypeError):
            return False
        same = (layers, started) == (expected["layers"], expected["config_sum"])
        return same and expected["config"] in (None, "sha256:" + digest)

    def _layers(self, digest: str, config: str) -> List[str]:
        """Digests of the layers in the manifest ``digest``; empty unless it is one of ``config``."""
        document = self._documents[digest]
        try:
            described = document["config"]["digest"] == "sha256:" + config
            return [str(each["digest"])[7:] for each in document["layers"]] if described else []
        except (KeyError, TypeError):
            return []

    def _add(self, name: str, document: Any) -> None:
        data = json.dumps(document).encode()
        self._write(_header(name, len(data)) + data + bytes(-len(data) % _BLOCK))


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def _integer(digits: str) -> int:
    return int(digits[:20])  # of a million digits it takes minutes


def _fail(text: str) -> NoReturn:
    raise Failed("archive", "the image's archive " + text)
