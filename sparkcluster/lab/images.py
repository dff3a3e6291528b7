"""Images for virtual Sparks: built once, then shared by every Spark's Docker without a copy.

An image is built in a temporary Docker engine whose data directory stays in the cache. A virtual Spark gets a copy of
the small part of that directory, and the layers as read-only mounts, so that eight Sparks with a 3 GB image use 3 GB in
total, and starting them takes no extra time.

Engines: ``vllm`` is the real one (vLLM's CPU build with Ray), ``stub`` its replacement. Both are built like NGC's
images, with NVIDIA's entrypoint and label.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab import image_build, state
from sparkcluster.lab.engine.install import cache_directory
from sparkcluster.lab.machine import MS_BIND, MS_RDONLY, MS_REMOUNT, mount

ENGINES = ("vllm", "stub")


@dataclass(frozen=True)
class ImageStore(image_build.StoredImage):
    """A cached image: its layers are large, so they are mounted; its metadata is small, so it is copied.

    Attributes:
        data_root: Docker's data directory in the cache.
    """

    data_root: Path


def require(engine: str) -> None:
    """Check that ``engine`` exists.

    Raises:
        LabError: unknown engine.
    """
    if engine not in ENGINES:
        raise LabError(f"unknown engine {engine!r}", hint=f"engines: {', '.join(ENGINES)}")


def prepare(engine: str) -> ImageStore:
    """The image of ``engine``; built on first use, which takes minutes for the real engine.

    Raises:
        LabError: unknown engine, or its image cannot be built here.
    """
    folder = _folder(engine)
    if not (folder / "store.json").is_file():
        with state.locked(folder / "lock"):
            if not (folder / "store.json").is_file():
                _build(engine, folder)
    stored = json.loads((folder / "store.json").read_text())
    return ImageStore(**stored, data_root=folder / "docker")


def archive(engine: str) -> Path:
    """The image of ``engine`` in the format of ``docker save``: 0.1 GB for the stub, 3 GB for the real engine.

    Raises:
        LabError: the image cannot be built here.
    """
    store = prepare(engine)
    path = store.data_root.parent / f"{engine}.tar"
    if not path.is_file():
        with state.locked(store.data_root.parent / "lock"):
            image_build.write_archive(store.data_root.parent, store.reference, path)
    return path


def mount_into(store: ImageStore, data_root: Path) -> None:
    """Install the image for the Docker engine that will be started on ``data_root``, in this mount namespace.

    Must be called on every boot, before Docker starts: mounts do not survive a reboot. An image that was removed there
    since the first boot stays removed.
    """
    marker = data_root / f".sparkcluster-{store.image_id.removeprefix('sha256:')[:12]}"
    first = not marker.exists()
    layers = data_root / "overlay2"
    (layers / "l").mkdir(parents=True, exist_ok=True)
    if first:
        for path in store.metadata:
            _copy(store.data_root / path, data_root / path)
        for layer in store.layers:
            _copy_layer(store.data_root / layer, layers)
        _tag(store, data_root)
        marker.touch()
    # Docker bind-mounts these two onto themselves unless they are mount points, which would hide the mounts below them.
    for place in (data_root, layers):
        if not os.path.ismount(place):
            mount(str(place), place, flags=MS_BIND)
    for layer in store.layers:
        target = data_root / layer / "diff"
        if target.is_dir():
            mount(str(store.data_root / layer / "diff"), target, flags=MS_BIND)
            mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def _copy_layer(source: Path, layers: Path) -> None:
    """Copy the small metadata files of a layer, with an empty directory as mount point for its content."""
    target = layers / source.name
    for name in ("diff", "work"):
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in ("link", "lower", "committed"):
        if (source / name).exists():
            shutil.copy2(source / name, target / name)
    link = layers / "l" / (source / "link").read_text()
    link.unlink(missing_ok=True)
    link.symlink_to(f"../{source.name}/diff")


def _tag(store: ImageStore, data_root: Path) -> None:
    path = data_root / "image/overlay2/repositories.json"
    index = json.loads(path.read_text()) if path.is_file() else {"Repositories": {}}
    name = store.reference.rsplit(":", 1)[0]
    index["Repositories"].setdefault(name, {})[store.reference] = store.image_id
    path.write_text(json.dumps(index))
    path.chmod(0o600)


def _folder(engine: str) -> Path:
    require(engine)
    digest = hashlib.sha256("\0".join(image_build.made_of(engine)).encode()).hexdigest()[:12]
    return cache_directory() / "lab" / "images" / f"{engine}-{digest}"


def _build(engine: str, folder: Path) -> None:
    shutil.rmtree(folder / "docker", ignore_errors=True)
    stored = image_build.build(engine, folder)
    state.write_atomically(folder / "store.json", json.dumps(asdict(stored), indent=1))
    _remove_older(folder)


def _remove_older(folder: Path) -> None:
    """Remove older builds of the same engine, unless a lab uses them."""
    mounted: set[str] = set()
    for file in Path("/proc").glob("[0-9]*/mountinfo"):
        with suppress(OSError):
            mounted.update(file.read_text().splitlines())
    seen = "\n".join(mounted)
    for old in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        # Without a store.json it is being built.
        if old != folder and (old / "store.json").exists() and str(old) not in seen:
            shutil.rmtree(old, ignore_errors=True)
