"""The pinned Ray and its dependencies for an image's Python and platform: downloaded once, cached as an archive.

Directories in ``PYTHONPATH`` precede the image's packages, and our protobuf or click must not shadow the one that the
image's engine was built with. So Ray and its dependencies are in separate directories::
    ray/  ray-2.60.0.dist-info/     at the top, the directory in PYTHONPATH
    needs/                          everything that Ray requires
    needs.json                      {distribution: [names in needs/]}
    bin/ray                         the command, for the first python3 in PATH

The launcher adds only distributions that the image's Python lacks (mostly just msgpack). All versions are pinned with
hashes in ``ray-VERSION.txt``, written by ``scripts/pin``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkcluster.errors import StageError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.plan.image import BROUGHT_RAY, ray_name

PINS = Path(__file__).with_name(f"ray-{BROUGHT_RAY}.txt")
LIMIT_S = 900  # 80 MB, at 100 kB/s

_SCRIPT = """#!/usr/bin/env python3
import sys
from ray.scripts.scripts import main
sys.exit(main())
"""
# For the wheels; an image with CUDA for GB10 has a newer glibc (Ubuntu 22.04 has 2.35, RHEL 8 has 2.28).
_GLIBC = range(28, 16, -1)


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """An archive on the controller."""

    path: Path
    sha256: str


OnLine = Callable[[str], None]


def cache_directory() -> Path:
    """Cache of the controller: ``$SPARKCLUSTER_CACHE``, else ``~/.cache/sparkcluster``."""
    directory = os.environ.get("SPARKCLUSTER_CACHE")
    return Path(directory) if directory else Path.home() / ".cache" / "sparkcluster"


def get_archive(engine: EngineFacts, report: OnLine) -> Archive:
    """The archive for ``engine`` (the image's Python and platform), downloaded with uv or pip unless it is cached.

    An archive that is damaged, or was made from other pins, is downloaded again.

    Raises:
        StageError: the download failed.
    """
    try:
        return kept(engine) or _make(engine, report)
    except OSError as error:
        raise StageError(f"Ray cannot be cached in {_folder()}: {error}", step="copy ray") from error


def kept(engine: EngineFacts) -> Archive | None:
    """The cached archive for ``engine``, if its content and pins match its name."""
    with contextlib.suppress(OSError):
        for path in _folder().glob(f"{ray_name(engine)}-*"):
            digest = _digest(path)
            if path.name == _name(engine, digest):
                return Archive(path, digest)
    return None


def _folder() -> Path:
    return cache_directory() / "ray"


def _name(engine: EngineFacts, digest: str) -> str:
    return f"{ray_name(engine)}-{_digest(PINS)[:16]}-{digest}.tar.gz"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(engine: EngineFacts, report: OnLine) -> Archive:
    for other in _folder().glob(f"{ray_name(engine)}-*"):
        other.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="sparkcluster-ray-") as folder:
        packages = Path(folder) / "packages"
        report(f"fetching Ray {BROUGHT_RAY}")
        if why := _run(fetch_command(engine, packages)):
            raise StageError(
                f"Ray {BROUGHT_RAY} for Python {_python(engine)} on {engine.platform} cannot be fetched: {why}",
                step="copy ray",
                hint="run this on a machine with access to a package index, or set executor: native in the playbook",
            )
        report("packing Ray")
        return pack(engine, packages)


def fetch_command(engine: EngineFacts, target: Path) -> list[str]:
    """Command that downloads Ray and its dependencies into ``target``: with uv if there is one, else pip."""
    uv = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
    argv = [uv] if uv else [sys.executable, "-m"]
    argv += ["pip", "install", "--only-binary=:all:", "--require-hashes", "--no-deps", "--requirement", str(PINS)]
    argv += ["--target", str(target), f"--python-version={_python(engine)}"]
    machine = re.sub(r"^(?:\d+_){0,2}", "", engine.platform.rpartition("linux_")[2])
    if uv:
        platform = f"--python-platform={machine}-manylinux_2_{_GLIBC[0]}"
        return [*argv, "--no-progress", "--python", sys.executable, platform]
    platforms = [*(f"manylinux_2_{minor}_{machine}" for minor in _GLIBC), f"manylinux2014_{machine}"]
    argv += ["--no-compile", "--retries=1", "--implementation=cp", f"--abi=cp{_python(engine).replace('.', '')}"]
    return [*argv, *(f"--platform={each}" for each in platforms)]


def _python(engine: EngineFacts) -> str:
    """Major and minor version of the image's Python."""
    return ".".join(engine.python_version.split(".")[:2])


def _run(argv: Sequence[str]) -> str:
    """Run uv or pip; return the error, empty on success."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not finish within {LIMIT_S} s"
    if done.returncode == 0:
        return ""
    error = re.sub(r"(?ims)\A.*?^error: *", "", done.stderr.decode(errors="replace"))
    return " ".join(error.split())[:200] or f"exit code {done.returncode}"


def pack(engine: EngineFacts, packages: Path) -> Archive:
    """Separate Ray from its dependencies in the directory of installed ``packages``, and archive both in the cache.

    Raises:
        OSError: it cannot be written.
    """
    shutil.rmtree(packages / "bin", ignore_errors=True)
    there = {top.name for top in packages.iterdir()}
    found = importlib.metadata.distributions(path=[str(packages)])
    needs = {each.name: sorted({path.parts[0] for path in each.files or ()} & there) for each in found}
    (packages / "needs").mkdir()
    for top in there - {*needs.pop("ray")}:
        (packages / top).rename(packages / "needs" / top)
    (packages / "needs.json").write_text(json.dumps(needs))
    (packages / "bin").mkdir()
    (packages / "bin" / "ray").write_text(_SCRIPT)
    (packages / "bin" / "ray").chmod(0o755)
    made = packages.with_suffix(".tar.gz")
    with tarfile.open(made, "w:gz", compresslevel=3) as out:  # 4 % larger than level 9, in a third of the time
        out.add(packages, ".", filter=_readable)
    digest = _digest(made)
    _folder().mkdir(parents=True, exist_ok=True)
    return Archive(Path(shutil.move(made, _folder() / _name(engine, digest))), digest)


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member that all users can read, whatever the umask was."""
    member.uid = member.gid = 0
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member
