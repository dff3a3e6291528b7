"""Reads the archive of an image, of which the sender leaves out layers and which the receiver checks, as it passes.

An archive of ``docker save`` says at its end which image it is and what its tags
are. What the other node sends there is dropped, and so are its headers: layers and documents alone pass, under names
that contain their SHA-256. Our own end follows, with one image and no tag, if it is the requested one. Without an end
``docker load`` loads nothing. Layers may be absent where the receiver itself has found that its engine has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import tarfile
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from sparkcluster.node import docker
from sparkcluster.node.wire import Failed

# Docker's own layout, and the OCI layout of Docker 25 and newer.
_NAMES = re.compile(r"(?:blobs/sha256/[0-9a-f]{64}|[0-9a-f]{64}(?:\.json|/layer\.tar))\Z")
_BLOB = "blobs/sha256/"
Blobs = dict[str, str]
_BLOCK, _PAX_BYTES, _DOCUMENTS_BYTES, _ENTRIES = 512, 64 << 10, 4 << 20, 2_000


class _Tar:
    """The entries of an archive in ``chunks``, none of them empty."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._raw = b""  # blocks of the last entry's headers, as they came

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

    def _header(self) -> tarfile.TarInfo | None:
        """The next entry; None at the end. Of extended headers only the size counts, which files over 8 GiB need."""
        size, self._raw = None, b""
        while True:
            block = b"".join(self._take(_BLOCK))
            self._raw += block
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
            text = b"".join(self._take(info.size + -info.size % _BLOCK))
            self._raw += text
            found = re.search(rb"(?:^|\n)\d+ size=(\d{1,15})\n", text[: info.size])
            size = int(found.group(1)) if found else None


class Documents:
    """Configurations and manifests that were in an archive."""

    def __init__(self) -> None:
        self.room = _DOCUMENTS_BYTES
        self._found: dict[str, Any] = {}  # by digest

    def add(self, digest: str, text: bytes) -> None:
        """Keep a file, if it is a configuration or a manifest."""
        if text.startswith(b"{"):
            with contextlib.suppress(ValueError, RecursionError):
                document = json.loads(text, parse_int=_integer)
                if document.keys() & {"rootfs", "layers"}:
                    self.room -= len(text)
                    self._found[digest] = {**document, "size": len(text)}

    def config(self, expected: dict[str, Any]) -> str:
        """Digest of the configuration of the expected image: of its very bytes where their hash is known; or empty."""
        return next((digest for digest in self._found if self._is_config(digest, expected)), "")

    def _is_config(self, digest: str, expected: dict[str, Any]) -> bool:
        document = self._found[digest]
        try:
            layers, started = document["rootfs"]["diff_ids"] or [], docker.config_sum(document.get("config") or {})
        except (AttributeError, KeyError, TypeError):
            return False
        same = (layers, started) == (expected["layers"], expected["config_sum"])
        return same and expected["config"] in (None, "sha256:" + digest)

    def manifest(self, config: str) -> str:
        """Digest of the manifest of the configuration ``config``; empty if none has layers."""
        return next((digest for digest in self._found if config and self.layers(digest, config)), "")

    def layers(self, digest: str, config: str) -> list[str]:
        """Digests of the layers in the manifest ``digest``; empty unless it is one of ``config``."""
        document = self._found[digest]
        try:
            described = document["config"]["digest"] == "sha256:" + config
            return [str(each["digest"])[7:] for each in document["layers"]] if described else []
        except (KeyError, TypeError):
            return []

    def files(self, expected: dict[str, Any]) -> list[list[Any]]:
        """Digest and bytes of each layer's file, as the manifest of the expected image has them; none without one."""
        manifest = self.manifest(self.config(expected))
        try:
            layers = self._found[manifest]["layers"] if manifest else []
            return [[str(each["digest"])[7:], int(each["size"])] for each in layers]
        except (KeyError, TypeError, ValueError):
            return []

    def index(self, manifest: str) -> dict[str, Any]:
        """An index with one manifest."""
        found = self._found[manifest]
        kind = found.get("mediaType") or "application/vnd.oci.image.manifest.v1+json"
        entry = {"mediaType": kind, "digest": "sha256:" + manifest, "size": found["size"]}
        return {"schemaVersion": 2, "manifests": [entry]}

    def named(self, config: str) -> set[str]:
        """Digests of the files that manifests name, of ``config`` if that is there."""
        named = set()
        for document in self._found.values():
            with contextlib.suppress(KeyError, TypeError):
                found = str(document["config"]["digest"])[7:]
                if config in ("", found):
                    named |= {found, *(str(each["digest"])[7:] for each in document["layers"])}
        return named


class Saved(_Tar):
    """What ``docker save`` prints, without the layers that the receiver has.

    Attributes:
        documents: those that were in it, once all of it has passed.
    """

    def __init__(self, chunks: Iterator[bytes], write: Callable[[Any], None]) -> None:
        super().__init__(chunks)
        self._write = write
        self.documents = Documents()

    def send(self, dropped: Collection[str]) -> None:
        """Pass everything on but the files called by the digests ``dropped``: by their names, in either layout."""
        for info in iter(self._header, None):
            digest = info.name[len(_BLOB) :] if info.isreg() and info.name.startswith(_BLOB) else ""
            if digest in dropped:
                self._skip(info.size + -info.size % _BLOCK)
                continue
            self._write(self._raw)
            text, kept = bytearray(), digest and info.size <= self.documents.room
            for piece in self._take(info.size):
                self._write(piece)
                if kept:
                    text += piece
            self.documents.add(digest, bytes(text))
            for piece in self._take(-info.size % _BLOCK):
                self._write(piece)
        self._write(self._raw)
        for chunk in itertools.chain([self._rest], self._chunks):
            self._write(chunk)


class Archive(_Tar):
    """An archive in ``chunks``, none of them empty, that passes to ``write``.

    Attributes:
        documents: those that were in it.
        absent: how many layers were not.
    """

    def __init__(self, chunks: Iterator[bytes], write: Callable[[Any], None]) -> None:
        super().__init__(chunks)
        self._write = write
        self._paths: dict[str, str] = {}  # by digest
        self.documents = Documents()
        self.absent = 0

    def relay(self, expected: dict[str, Any], prefix: int = 0, blobs: Blobs | None = None) -> None:
        """Pass on the image with these ``layers`` and ``config_sum``, and unless it is None this ``config``.

        Absent may be what this node's own engine has: the first ``prefix`` of the layers, and files of layers by their
        digests, ``blobs``.
        """
        for info in iter(self._header, None):
            if info.isreg() and _NAMES.match(info.name):
                self._pass(info.name, info.size)
            else:
                self._skip(info.size)
            self._skip(-info.size % _BLOCK)
        for _ in self._chunks:
            continue
        self._finish(expected, prefix, blobs or {})

    def _pass(self, name: str, size: int) -> None:
        self._write(_header(name, size))
        hashed, text = hashlib.sha256(), bytearray()
        for piece in self._take(size):
            hashed.update(piece)
            self._write(piece)
            if size <= self.documents.room:
                text += piece
        self._write(bytes(-size % _BLOCK))
        digest = hashed.hexdigest()
        if name in self._paths.values() or not (name.endswith("/layer.tar") or digest in name):
            _fail("contains %s twice, or with another hash" % name)
        if len(self._paths) == _ENTRIES:
            _fail("contains more than %d files" % _ENTRIES)
        self._paths[digest] = name
        self.documents.add(digest, bytes(text))

    def _finish(self, expected: dict[str, Any], prefix: int, blobs: Blobs) -> None:
        config = self.documents.config(expected)
        manifest = self.documents.manifest(config)
        layers = [digest[7:] for digest in expected["layers"]]
        described = self.documents.layers(manifest, config) if manifest else []
        found = self._chosen(layers, described, prefix, blobs)
        if not config or found is None:
            self._refuse(config, partial=self._left_out(expected, layers, described))
        paths = [self._paths.get(digest, _BLOB + digest) for digest in found]
        self.absent = sum(digest not in self._paths for digest in found)
        self._add("manifest.json", [{"Config": self._paths[config], "RepoTags": None, "Layers": paths}])
        if manifest:
            self._add("index.json", self.documents.index(manifest))
            self._add("oci-layout", {"imageLayoutVersion": "1.0.0"})
        self._write(bytes(2 * _BLOCK))

    def _chosen(self, layers: list[str], described: list[str], prefix: int, blobs: Blobs) -> list[str] | None:
        """Digests of the files of all ``layers``, of which none is absent but those that may be; None without them.

        Files that the manifest has ``described`` are compressed: Docker compares their content with the configuration.
        containerd's store, where alone ``blobs`` are known, reads by the manifest those that are absent.
        """
        for found, may_lack in ((described, blobs), (layers, {})) if blobs else ((layers, {}), (described, {})):
            if len(found) == len(layers) and all(
                digest in self._paths or place < prefix or may_lack.get(digest) == "sha256:" + layers[place]
                for place, digest in enumerate(found)
            ):
                return found
        return None

    def _left_out(self, expected: dict[str, Any], layers: list[str], described: list[str]) -> bool:
        """Whether a layer is absent that the sender was asked to leave out."""
        names = described if len(described) == len(layers) else layers
        return any(
            each is not None and not {layers[place], names[place]} & self._paths.keys()
            for place, each in enumerate(expected.get("have", ())[: len(layers)])
        )

    def _refuse(self, config: str, *, partial: bool) -> NoReturn:
        if partial:
            raise Failed("partial", "the image's archive lacks files that are not here either")
        absent = len(self.documents.named(config) - self._paths.keys())
        if absent:
            # containerd's store downloads no layer whose content another image there has, compressed otherwise; such
            # an image can be neither saved nor copied (containerd#8973, moby#49473)
            raise Failed("blobs", "the image's archive lacks %d of the files that it names" % absent)
        _fail("lacks a layer" if config else "is that of another image: its configuration or its layers differ")

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
