"""Builds of a lab's image: made from it in a second, each with the same id on every Spark."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Mapping, Sequence

from sparkcluster.lab import Lab, images
from sparkcluster.lab.core import in_parallel
from sparkcluster.lab.engine.stub import SITE

PROGRAMS = {
    name: (f"usr/local/bin/{name}", *(f"opt/stub/site/{path.name}" for path in SITE.glob(f"{name}*")))
    for name in ("vllm", "ray")
}
"""What an image without a program lacks."""


def load(
    lab: Lab,
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
    sparks: int | None = None,
    layer_bytes: int = 0,
) -> str:
    """Give every Spark of a lab, or the first ones, a build of its image: with variables, without programs.

    Each build has a layer of its own, so that builds of different names are different images: its name, and
    ``layer_bytes`` that do not compress.

    Returns:
        Its reference.
    """
    store = images.prepare(lab.state.engine)
    reference = f"{store.reference.rpartition(':')[0]}:{name}"
    digest = store.image_id.removeprefix("sha256:")
    config = json.loads((store.data_root / f"image/overlay2/imagedb/content/sha256/{digest}").read_text())
    hidden = [path for program in without for path in PROGRAMS[program]]
    more = {"etc/lab-bytes": random.Random(name).randbytes(layer_bytes)} if layer_bytes else {}
    layer = _tar({"etc/lab-build": f"{name}\n".encode(), **more, **{_whiteout(path): b"" for path in hidden}})
    below = len(config["rootfs"]["diff_ids"])
    config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(layer).hexdigest())
    config["history"].append({"created": config["created"], "created_by": f"build {name}"})
    config["config"]["Env"] += [f"{key}={value}" for key, value in (env or {}).items()]
    content = json.dumps(config, sort_keys=True).encode()
    file = f"{hashlib.sha256(content).hexdigest()}.json"
    # Layers that Docker has are not looked for in the archive.
    layers = [f"{at}.tar" for at in range(below + 1)]
    manifest = json.dumps([{"Config": file, "RepoTags": [reference], "Layers": layers}]).encode()
    archive = _tar({file: content, layers[-1]: layer, "manifest.json": manifest})
    text = base64.b64encode(archive).decode()
    in_parallel(lambda spark: spark.run(["sh", "-c", "base64 -d | docker load -q"], text_in=text), lab.sparks[:sparks])
    return reference


def _whiteout(path: str) -> str:
    """The entry of a layer that hides ``path`` of those below."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/.wh.{name}"


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
