"""More builds of a lab's image: made from it in a second, with the same ID on every Spark."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from sparkcluster.lab import images
from sparkcluster.lab.core import Lab, in_parallel
from sparkcluster.lab.sparks import Spark

BROKEN = b"""#!/bin/sh
echo 'ImportError: libcudart.so.12: cannot open shared object file: No such file or directory' >&2
exit 1
"""
"""The `vllm` of an image that was built for another CUDA version."""


def to_try(lab: Lab) -> dict[str, str]:
    """Give every Spark a working image and one that does not start; return what an upgrade to each shows, by reference.

    Empty if a Spark has no image, or keeps it in containerd's store.
    """
    if lab.state.engine == "none" or any(each.image != "present" or each.containerd for each in lab.state.spec.sparks):
        return {}
    broken = load(lab, "broken", files={"usr/local/bin/vllm": BROKEN})
    return {load(lab, "newer"): "another image", broken: "an image that does not start: rolled back"}


def load(
    lab: Lab,
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    sparks: int | None = None,
) -> str:
    """Give every Spark of a lab, or the first ones, a build of its image with variables and executable files.

    ``changes`` are changes to the image's configuration, such as its ``User``. Each build has a separate layer, so
    builds with different names are different images.

    Returns:
        Its reference.
    """
    store = images.prepare(lab.state.engine)
    reference = f"{store.reference.rpartition(':')[0]}:{name}"
    digest = store.image_id.removeprefix("sha256:")
    config = json.loads((store.data_root / f"image/overlay2/imagedb/content/sha256/{digest}").read_text())
    layer = _tar({"etc/lab-build": f"{name}\n".encode(), **(files or {})})
    below = len(config["rootfs"]["diff_ids"])
    config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(layer).hexdigest())
    config["history"].append({"created": config["created"], "created_by": f"build {name}"})
    config["config"]["Env"] += [f"{key}={value}" for key, value in (env or {}).items()]
    config["config"] |= changes or {}
    content = json.dumps(config, sort_keys=True).encode()
    file = f"{hashlib.sha256(content).hexdigest()}.json"
    # Docker does not look in the archive for layers that it has.
    layers = [f"{at}.tar" for at in range(below + 1)]
    manifest = json.dumps([{"Config": file, "RepoTags": [reference], "Layers": layers}]).encode()
    archive = _tar({file: content, layers[-1]: layer, "manifest.json": manifest})
    text = base64.b64encode(archive).decode()

    def load_on(spark: Spark) -> None:
        spark.run(["sh", "-c", "base64 -d | docker load -q"], text_in=text)

    in_parallel(load_on, lab.sparks[:sparks])
    return reference


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
