"""Builds the lab's images: a base from the distribution's packages, an engine on it, and its variants.

The big base layer is streamed into ``docker import``. The few layers on top, in which the variants differ, are
written as an archive for ``docker load``, which may omit layers that the engine has.
"""

from __future__ import annotations

import ast
import concurrent.futures
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkcluster.errors import LabError
from sparkcluster.lab import rootfs, template
from sparkcluster.lab.engine import install, stub
from sparkcluster.lab.machine import SPARK_PATH

REPOSITORY = "sparkcluster-lab"
_SCRIPT = (
    "#!/usr/bin/python3\nimport sys\n\nfrom {module} import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
)

_NGC = "opt/nvidia/nvidia_entrypoint.sh"
"""NVIDIA's entrypoint, which every image on an nvidia/cuda base has as a file."""
_LABEL = "com.nvidia.vllm.version"
"""What marks NVIDIA's own images of vLLM."""

# NVIDIA's entrypoint as seen from outside: it prints a banner and becomes the command. The variable shows that
# it ran, like the forward compatibility that the real one sets up.
_ENTRYPOINT = """#!/bin/sh
echo "== vLLM (virtual NGC image) =="
export NVIDIA_ENTRYPOINT_RAN=1
exec "$@"
"""

# CUDA's assembler: it accepts a GB10 and writes an empty object.
_PTXAS = """#!/bin/sh
for word; do
  case "$last" in -o | --output-file) : >"$word" ;; esac
  case "$word" in --version) echo "ptxas: NVIDIA (R) Ptx optimizing assembler, release 13.0, V13.0.88 (virtual)" ;; esac
  last=$word
done
"""

# Where Triton keeps its own assembler. The package can be found and its version read, but not imported: torch
# and vLLM then work without Triton, as on a machine without a GPU. Version 3.6 is the first that looks for
# ptxas-blackwell (triton#10331).
_TRITON = {
    "triton/__init__.py": '__version__ = "3.6.0"\n\nraise ImportError("this Triton is an empty shell")\n',
    "triton/backends/__init__.py": "",
    "triton/backends/nvidia/__init__.py": "",
    "triton-3.6.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton\nVersion: 3.6.0\n",
}


@dataclass(frozen=True)
class StoredImage:
    """An image of the store, with paths relative to the data directory."""

    reference: str
    image_id: str
    layers: list[str]
    metadata: list[str]


def made_of(family: str) -> list[str]:
    """Everything that the images of a family depend on."""
    parts = [_code(__file__), _code(rootfs.__file__)]
    parts += [repr(rootfs.apt_source()), platform.machine(), *rootfs.LIGHT_PACKAGES, *rootfs.ENGINE_PACKAGES]
    if family == "vllm":
        return [*parts, install.recipe(), _code(install.__file__)]
    files = [path for path in sorted(stub.HERE.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return parts + [f"{path.relative_to(stub.HERE)}\n{path.read_text()}" for path in files]


def _code(file: str) -> str:
    """The code of a module; comments and docstrings do not make another image."""
    tree = ast.parse(Path(file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


def build(family: str, folder: Path) -> dict[str, StoredImage]:
    """Build all images of ``family`` into ``folder/docker``; the images by the engine's name.

    Raises:
        LabError: something is missing on this machine, or a download failed.
    """
    layers = folder / "layers"
    shutil.rmtree(layers, ignore_errors=True)
    layers.mkdir(parents=True)
    make = _vllm if family == "vllm" else _stub
    _pack(layers / "ngc.tar", {_NGC: (_ENTRYPOINT.encode(), 0o755)}, {})
    hidden = f"usr/lib/{platform.machine()}-linux-gnu/.wh.libibverbs.so.1"
    _pack(layers / "without-verbs.tar", {hidden: (b"", 0o644)}, {})
    ngc: dict[str, Any] = {"Entrypoint": [f"/{_NGC}"], "Labels": {_LABEL: install.VLLM}}
    upstream: dict[str, Any] = {"Entrypoint": ["vllm", "serve"], "Cmd": None}
    with template.Docker(folder / "docker") as docker:
        base = make(docker, layers)
        configs = {}
        for name, tops, settings in (
            (family, ("engine", "ray", "ngc"), ngc),
            (f"{family}-without-ray", ("engine",), {}),
            (f"{family}-without-verbs", ("engine", "ray", "ngc", "without-verbs"), ngc),
            (f"{family}-upstream", ("engine", "ray"), upstream),
            (f"{family}-cuda-base", ("engine", "ray", "ngc"), upstream),
            (f"{family}-user-2000", ("engine", "ray"), {**upstream, "User": "2000"}),
        ):
            diffs = [base, *(_digest(layers / f"{top}.tar") for top in tops)]
            configs[name] = (_config(diffs, settings), ["base", *tops])
        docker.load(lambda out: _write(out, configs, layers, without="base"))
        docker.run(["image", "rm", "base:import"])
    stored = {}
    for name, (config, _) in configs.items():
        stored[name] = _locate(folder / "docker", f"{REPOSITORY}/{family}:{install.VLLM}", config)
    (folder / "configs.json").write_text(
        json.dumps({name: [config.decode(), list(tops)] for name, (config, tops) in configs.items()})
    )
    return stored


def write_archive(folder: Path, engine: str, path: Path) -> None:
    """Write an image whole, as ``docker save`` does."""
    fresh = path.with_suffix(".part")
    family = engine.split("-", maxsplit=1)[0]
    reference = f"{REPOSITORY}/{family}:{install.VLLM}"
    if family == "vllm":
        # Its big layer exists only in the Docker engine that it was streamed to.
        with template.Docker(folder / "docker") as docker:
            docker.run(["tag", f"{engine}:built", reference])
            docker.run(["save", "--output", str(fresh), reference])
        fresh.replace(path)
        return
    config, tops = json.loads((folder / "configs.json").read_text())[engine]
    layers = folder / "layers"
    (layers / "base.tar").unlink(missing_ok=True)
    (layers / "base.tar").symlink_to(rootfs.light().archive)
    with fresh.open("wb") as out:
        _write(out, {engine: (config.encode(), tops)}, layers, tag=reference)
    fresh.replace(path)


def _stub(docker: template.Docker, layers: Path) -> str:
    base = rootfs.light()
    site = f"usr/local/lib/python{base.python}/dist-packages"
    with base.archive.open("rb") as source:
        diff = docker.import_stream(source)
    common = _common(site) | {f"{site}/stub.pth": (b"/opt/stub/site\n", 0o644)}
    ray: dict[str, tuple[bytes, int]] = {}
    for path in sorted(stub.HERE.rglob("*")):
        inside = path.relative_to(stub.HERE)
        if path.is_file() and len(inside.parts) > 1 and "__pycache__" not in path.parts:
            chosen = ray if inside.parts[1].split("-")[0] == "ray" else common
            chosen[f"opt/stub/{inside}"] = (path.read_bytes(), 0o755 if inside.parts[0] == "bin" else 0o644)
    common |= {f"opt/stub/site/{name}": (text.encode(), 0o644) for name, text in stub.sources().items()}
    _pack(layers / "engine.tar", common, {"usr/local/bin/vllm": "/opt/stub/bin/vllm"})
    _pack(layers / "ray.tar", ray, {"usr/local/bin/ray": "/opt/stub/bin/ray"})
    return diff


def _vllm(docker: template.Docker, layers: Path) -> str:
    base = rootfs.full()
    site = f"usr/local/lib/python{base.python}/dist-packages"
    with rootfs.unpacked(base) as root:
        place = root / site
        _quietly(lambda: install.install_into_directory(place, base.python, say=rootfs.say))
        for unused in ("bin", "torch/include", "torch/share"):
            shutil.rmtree(place / unused, ignore_errors=True)
        rootfs.say("compiling its modules, a minute on two cores")
        _compile(root, [f"/{site}/{path.name}" for path in sorted(place.iterdir())])
        with rootfs.unpacked(base) as beside:  # another place, same file system: Ray alone
            addition = beside / site
            _quietly(lambda: install.install_ray_into_directory(addition, base.python, place))
            shutil.rmtree(addition / "bin", ignore_errors=True)
            _compile(beside, [f"/{site}/{path.name}" for path in sorted(addition.iterdir())])
            script = _SCRIPT.format(module="ray.scripts.scripts").encode()
            _pack(layers / "ray.tar", {"usr/local/bin/ray": (script, 0o755)}, {}, (addition, site))
        rootfs.say("importing the image into a Docker engine")
        with subprocess.Popen(rootfs.tar(root), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as packer:
            assert packer.stdout is not None
            diff = docker.import_stream(packer.stdout)
        if packer.returncode != 0:
            raise LabError("tar could not pack the engine's image", step="build image")
    script = _SCRIPT.format(module="vllm.entrypoints.cli.main").encode()
    _pack(layers / "engine.tar", _common(site) | {"usr/local/bin/vllm": (script, 0o755)}, {})
    return diff


def _quietly(install_it: Callable[[], None]) -> None:
    try:
        install_it()
    except install.InstallFailed as error:
        raise LabError(str(error), step="build image", hint=error.hint) from error


def _compile(root: Path, paths: Sequence[str]) -> None:
    """Compile to bytecode that does not depend on file times, so that no container compiles at its start."""
    workers = os.cpu_count() or 1
    argv = ["chroot", str(root), "python3", "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]

    def compile_share(share: Sequence[str]) -> None:
        # It fails on files that are templates or for another Python; they are never imported.
        subprocess.run([*argv, *share], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(compile_share, [paths[first::workers] for first in range(workers)]))


def _common(site: str) -> dict[str, tuple[bytes, int]]:
    files = {f"{site}/{name}": (text.encode(), 0o644) for name, text in _TRITON.items()}
    files["usr/local/cuda/bin/ptxas"] = (_PTXAS.encode(), 0o755)
    return files


def _pack(
    path: Path,
    files: Mapping[str, tuple[bytes, int]],
    links: Mapping[str, str],
    tree: tuple[Path, str] | None = None,
) -> None:
    """Write a layer as a tar file: the same bytes for the same content."""
    seen: set[str] = set()

    def fixed(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:

        def parents(name: str) -> None:
            for parent in reversed(Path(name).parents[:-1]):
                if str(parent) not in seen:
                    seen.add(str(parent))
                    entry = tarfile.TarInfo(str(parent))
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(fixed(entry))

        for name in sorted({*files, *links}):
            parents(name)
            entry = tarfile.TarInfo(name)
            if name in links:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, links[name], 0o777
                archive.addfile(fixed(entry))
            else:
                content, entry.mode = files[name]
                entry.size = len(content)
                archive.addfile(fixed(entry), io.BytesIO(content))
        if tree is not None:
            parents(f"{tree[1]}/x")
            for file in sorted(tree[0].rglob("*")):
                archive.add(file, f"{tree[1]}/{file.relative_to(tree[0])}", recursive=False, filter=fixed)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _config(diffs: Sequence[str], changed: Mapping[str, Any]) -> bytes:
    # The second variable is that of every nvidia/cuda base.
    env = [f"PATH=/usr/local/cuda/bin:{SPARK_PATH}", "NVIDIA_PRODUCT_NAME=CUDA"]
    settings: dict[str, Any] = {"Env": env, "WorkingDir": "/workspace", "Entrypoint": None, "Cmd": ["/bin/bash"]}
    settings |= changed
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    day = "1970-01-01T00:00:00Z"
    history = [{"created": day, "created_by": "sparkcluster lab"} for _ in diffs]
    document: dict[str, Any] = {"architecture": architecture, "os": "linux", "created": day, "config": settings}
    document |= {"rootfs": {"type": "layers", "diff_ids": list(diffs)}, "history": history}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _write(
    out: Any,
    configs: Mapping[str, tuple[bytes, Sequence[str]]],
    layers: Path,
    *,
    without: str = "",
    tag: str | None = None,
) -> None:
    """Write an archive for ``docker load`` with several images, each layer once."""
    manifest = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:

        def add(name: str, content: bytes) -> None:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))

        written = {without}
        for name, (config, tops) in configs.items():
            for top in tops:
                if top not in written:
                    written.add(top)
                    entry = archive.gettarinfo(str((layers / f"{top}.tar").resolve()), f"{top}/layer.tar")
                    with (layers / f"{top}.tar").open("rb") as source:
                        archive.addfile(entry, source)
            file = f"{hashlib.sha256(config).hexdigest()}.json"
            add(file, config)
            reference = tag or f"{name}:built"
            manifest.append({"Config": file, "RepoTags": [reference], "Layers": [f"{top}/layer.tar" for top in tops]})
        add("manifest.json", json.dumps(manifest).encode())


def _locate(data_root: Path, reference: str, config: bytes) -> StoredImage:
    """Where Docker (storage driver overlay2) stores an image: its own files, and the folder of each layer."""
    digest = hashlib.sha256(config).hexdigest()
    image = "image/overlay2"
    metadata = [f"{image}/imagedb/content/sha256/{digest}"]
    if (data_root / f"{image}/imagedb/metadata/sha256/{digest}").is_dir():
        metadata.append(f"{image}/imagedb/metadata/sha256/{digest}")
    layers, chain = [], ""
    for diff in json.loads(config)["rootfs"]["diff_ids"]:
        chain = diff if not chain else "sha256:" + hashlib.sha256(f"{chain} {diff}".encode()).hexdigest()
        folder = f"{image}/layerdb/sha256/{chain.removeprefix('sha256:')}"
        metadata.append(folder)
        layers.append("overlay2/" + (data_root / folder / "cache-id").read_text())
    return StoredImage(reference, f"sha256:{digest}", layers, metadata)
