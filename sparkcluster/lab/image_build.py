"""Builds the lab's images: a root file system from the distribution's packages with an engine, as one layer."""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkcluster.errors import LabError
from sparkcluster.lab import rootfs, template
from sparkcluster.lab.engine import install, stub
from sparkcluster.lab.machine import SPARK_PATH

REPOSITORY = "sparkcluster-lab"
_SCRIPT = (
    "#!/usr/bin/python3\nimport sys\n\nfrom {module} import main\n\nif __name__ == '__main__':\n    sys.exit(main())\n"
)

# Behaves like NVIDIA's entrypoint: it prints a banner and executes the command. The variable shows that it ran, like
# the forward compatibility that the real one sets up.
_NGC = "opt/nvidia/nvidia_entrypoint.sh"
_ENTRYPOINT = """#!/bin/sh
echo "== vLLM (virtual NGC image) =="
export NVIDIA_ENTRYPOINT_RAN=1
exec "$@"
"""

# CUDA's assembler: accepts a GB10 and writes an empty object.
_PTXAS = """#!/bin/sh
for word; do
  case "$last" in -o | --output-file) : >"$word" ;; esac
  case "$word" in --version) echo "ptxas: NVIDIA (R) Ptx optimizing assembler, release 13.0, V13.0.88 (virtual)" ;; esac
  last=$word
done
"""

# The place of Triton's own assembler. The package can be found and its version read, but it cannot be imported: torch
# and vLLM then work without Triton, as on a machine without a GPU. Version 3.6 is the first that looks for
# ptxas-blackwell (triton#10331).
_TRITON = {
    "triton/__init__.py": '__version__ = "3.6.0"\n\nraise ImportError("this Triton is an empty shell")\n',
    "triton/backends/__init__.py": "",
    "triton/backends/nvidia/__init__.py": "",
    "triton-3.6.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton\nVersion: 3.6.0\n",
}

# As in NVIDIA's own images of vLLM: the second variable is in every nvidia/cuda base, the label only in NVIDIA's.
_CONFIG = (
    f"ENV PATH=/usr/local/cuda/bin:{SPARK_PATH}",
    "ENV NVIDIA_PRODUCT_NAME=CUDA",
    "WORKDIR /workspace",
    f'ENTRYPOINT ["/{_NGC}"]',
    'CMD ["/bin/bash"]',
    f"LABEL com.nvidia.vllm.version={install.VLLM}",
)


@dataclass(frozen=True)
class StoredImage:
    """An image of the store, with paths relative to the data directory."""

    reference: str
    image_id: str
    layers: list[str]
    metadata: list[str]


def made_of(engine: str) -> list[str]:
    """All inputs of the image of an engine, for its hash."""
    parts = [_code(__file__), _code(rootfs.__file__)]
    parts += [repr(rootfs.apt_source()), platform.machine()]
    if engine == "vllm":
        return [*parts, install.recipe(), _code(install.__file__)]
    files = [path for path in sorted(stub.HERE.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return parts + [f"{path.relative_to(stub.HERE)}\n{path.read_text()}" for path in files]


def _code(file: str) -> str:
    """The code of a module; changes of comments and docstrings do not change the image."""
    tree = ast.parse(Path(file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


def build(engine: str, folder: Path) -> StoredImage:
    """Build the image of ``engine`` into ``folder/docker``.

    Raises:
        LabError: a requirement is missing on this machine, or a download failed.
    """
    reference = f"{REPOSITORY}/{engine}:{install.VLLM}"
    make = _vllm if engine == "vllm" else _stub
    with make() as root, template.Docker(folder / "docker") as docker:
        with subprocess.Popen(rootfs.tar(root), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as packer:
            assert packer.stdout is not None
            image_id = docker.import_stream(packer.stdout, reference, _CONFIG)
        if packer.returncode != 0:
            raise LabError("tar could not pack the engine's image", step="build image")
    return _locate(folder / "docker", reference, image_id)


def write_archive(folder: Path, reference: str, path: Path) -> None:
    """Write the image in the format of ``docker save``."""
    fresh = path.with_suffix(".part")
    with template.Docker(folder / "docker") as docker:
        docker.run(["save", "--output", str(fresh), reference])
    fresh.replace(path)


@contextlib.contextmanager
def _stub() -> Iterator[Path]:
    base = rootfs.full(rootfs.STUB_PACKAGES)
    with rootfs.unpacked(base) as root:
        site = root / f"usr/local/lib/python{base.python}/dist-packages"
        shutil.copytree(stub.HERE, root / "opt/stub", ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
        for name, text in stub.sources().items():
            _write(root / "opt/stub/site" / name, text)
        _write(site / "stub.pth", "/opt/stub/site\n")
        for name in ("vllm", "ray", "trtllm-serve"):
            (root / "opt/stub/bin" / name).chmod(0o755)
            (root / "usr/local/bin" / name).symlink_to(f"/opt/stub/bin/{name}")
        _look_like_ngc(root, site)
        yield root


@contextlib.contextmanager
def _vllm() -> Iterator[Path]:
    base = rootfs.full(rootfs.ENGINE_PACKAGES)
    with rootfs.unpacked(base) as root:
        site = root / f"usr/local/lib/python{base.python}/dist-packages"
        try:
            install.install_into_directory(site, base.python, say=rootfs.say)
        except install.InstallFailed as error:
            raise LabError(str(error), step="build image", hint=error.hint) from error
        for unused in ("bin", "torch/include", "torch/share"):
            shutil.rmtree(site / unused, ignore_errors=True)
        rootfs.say("compiling its modules, a minute on two cores")
        _compile(root, [f"/{path.relative_to(root)}" for path in sorted(site.iterdir())])
        for name, module in (("vllm", "vllm.entrypoints.cli.main"), ("ray", "ray.scripts.scripts")):
            _write(root / "usr/local/bin" / name, _SCRIPT.format(module=module), mode=0o755)
        _look_like_ngc(root, site)
        rootfs.say("importing the image into a Docker engine")
        yield root


def _compile(root: Path, paths: Sequence[str]) -> None:
    """Compile to bytecode that does not depend on file times, so that containers need not compile at start."""
    workers = os.cpu_count() or 1
    argv = ["chroot", str(root), "python3", "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]

    def compile_share(share: Sequence[str]) -> None:
        # Fails for templates and files for another Python; they are never imported.
        subprocess.run([*argv, *share], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(compile_share, [paths[first::workers] for first in range(workers)]))


def _look_like_ngc(root: Path, site: Path) -> None:
    for name, text in _TRITON.items():
        _write(site / name, text)
    _write(root / "usr/local/cuda/bin/ptxas", _PTXAS, mode=0o755)
    _write(root / _NGC, _ENTRYPOINT, mode=0o755)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _locate(data_root: Path, reference: str, image_id: str) -> StoredImage:
    """Paths of an image in Docker's data directory (storage driver overlay2): metadata and layers."""
    digest = image_id.removeprefix("sha256:")
    image = "image/overlay2"
    metadata = [f"{image}/imagedb/content/sha256/{digest}"]
    config = json.loads((data_root / metadata[0]).read_text())
    if (data_root / f"{image}/imagedb/metadata/sha256/{digest}").is_dir():
        metadata.append(f"{image}/imagedb/metadata/sha256/{digest}")
    layers, chain = [], ""
    for diff in config["rootfs"]["diff_ids"]:
        chain = diff if not chain else "sha256:" + hashlib.sha256(f"{chain} {diff}".encode()).hexdigest()
        folder = f"{image}/layerdb/sha256/{chain.removeprefix('sha256:')}"
        metadata.append(folder)
        layers.append("overlay2/" + (data_root / folder / "cache-id").read_text())
    return StoredImage(reference, image_id, layers, metadata)
