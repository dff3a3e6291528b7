"""Image archives as ``docker save`` writes them, complete or falsified."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from typing import Any

from sparkcluster.node.docker import config_sum

Entry = tuple[str | tarfile.TarInfo, bytes]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclasses.dataclass
class ImageMade:
    """An image of these layers, and the configuration of its containers."""

    layers: list[bytes]
    config: dict[str, Any] = dataclasses.field(default_factory=lambda: {"Entrypoint": ["vllm"], "Env": ["PATH=/bin"]})

    @property
    def diffs(self) -> list[str]:
        return ["sha256:" + sha256(layer) for layer in self.layers]

    @property
    def text(self) -> bytes:
        rootfs = {"type": "layers", "diff_ids": self.diffs or None}
        return json.dumps({"architecture": "arm64", "os": "linux", "config": self.config, "rootfs": rootfs}).encode()

    @property
    def id(self) -> str:
        return "sha256:" + sha256(self.text)

    def facts(self) -> dict[str, Any]:
        return {"id": self.id, "layers": self.diffs, "config_sum": config_sum(self.config), "size_bytes": 2_500_000}

    def request(self, reference: str = "vllm:v1", *, containerd: bool = False, **changes: Any) -> dict[str, Any]:
        """The controller's request to the programs that save and load it; ``containerd`` is the store of the node."""
        engine = {"version": "28.2.2", "containerd_store": containerd}
        return {"image": self.facts(), "reference": reference, "have": {}, "engine": engine, **changes}

    def manifest(self, layers: Iterable[bytes]) -> bytes:
        kind = "application/vnd.oci.image.manifest.v1+json"
        described = [{"digest": "sha256:" + sha256(layer), "size": len(layer)} for layer in layers]
        config = {"digest": self.id, "size": len(self.text)}
        return json.dumps({"mediaType": kind, "schemaVersion": 2, "config": config, "layers": described}).encode()

    def oci(self, tags: list[str] | None = None, *, compressed: bool = False) -> list[Entry]:
        """Docker 25 and newer; ``compressed`` as with containerd's image store."""
        layers = [gzip.compress(layer, mtime=0) for layer in self.layers] if compressed else self.layers
        manifest = self.manifest(layers)
        blobs = {f"blobs/sha256/{sha256(data)}": data for data in (*layers, self.text, manifest)}
        listed = [{"Config": f"blobs/sha256/{self.id[7:]}", "RepoTags": tags,
                   "Layers": [f"blobs/sha256/{sha256(layer)}" for layer in layers]}]  # fmt: skip
        index = {"schemaVersion": 2, "manifests": [{"digest": "sha256:" + sha256(manifest), "size": len(manifest)}]}
        return [
            ("blobs/", b""), ("blobs/sha256/", b""), *sorted(blobs.items()), ("index.json", json.dumps(index).encode()),
            ("manifest.json", json.dumps(listed).encode()), ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
        ]  # fmt: skip

    def legacy(self, tags: list[str] | None = None) -> list[Entry]:
        """Docker before 25; a duplicate layer is a link."""
        entries: list[Entry] = []
        paths: dict[bytes, str] = {}
        names = []
        for number, layer in enumerate(self.layers):
            folder = sha256(b"%d" % number)
            names.append(f"{folder}/layer.tar")
            entries += [(f"{folder}/", b""), (f"{folder}/VERSION", b"1.0"), (f"{folder}/json", b"{}")]
            if layer in paths:
                link = tarfile.TarInfo(names[-1])
                link.type, link.linkname = tarfile.SYMTYPE, f"../{paths[layer]}"
                entries.append((link, b""))
            else:
                paths[layer] = names[-1]
                entries.append((names[-1], layer))
        listed = [{"Config": f"{self.id[7:]}.json", "RepoTags": tags, "Layers": names}]
        return [(f"{self.id[7:]}.json", self.text), *entries, ("manifest.json", json.dumps(listed).encode())]


def tar(entries: Iterable[Entry], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of these entries, in this order; names that end with a slash are directories."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            if info.name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(data) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
