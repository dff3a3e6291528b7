"""The pinned Ray and its dependencies for an image's Python and platform, fetched once and cached as one archive.

Not one directory of packages, since directories in ``PYTHONPATH`` precede the image's packages, and our protobuf or
click must not shadow the one that the image's engine was built with. So ::

    ray/  ray-2.60.0.dist-info/     alone at the top: this is what PYTHONPATH names
    needs/                          everything else that Ray requires
    needs.json                      {distribution: [names in needs/]}
    bin/ray                         the command, for whatever python3 comes first

The launcher adds to the path only the distributions that the image's Python lacks (most lack msgpack and
nothing else). All versions are pinned with their hashes in ``ray-VERSION.txt``, which ``scripts/pin`` writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkcluster.errors import StageError
from sparkcluster.facts.docker import EngineFacts
from sparkcluster.plan.image import BROUGHT_RAY, ray_name

FILE = "ray.tar.gz"
RECORD = "sha256"  # hash of the archive, and of the pins that it was made from
PINS = Path(__file__).with_name(f"ray-{BROUGHT_RAY}.txt")
LIMIT_S = 900  # 80 MB, at 100 kB/s

_SCRIPT = """#!/usr/bin/env python3
import sys
from ray.scripts.scripts import main
sys.exit(main())
"""
# Ray's wheels and those of its dependencies need no newer glibc than this.
_NEWEST_GLIBC = 28
_OLDEST_GLIBC = 17


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """An archive on the controller."""

    path: Path
    sha256: str


Run = Callable[[Sequence[str]], tuple[int, str]]
Report = Callable[[str], None]


def cache_directory() -> Path:
    """Cache of the controller: ``$SPARKCLUSTER_CACHE``, else ``~/.cache/sparkcluster``."""
    directory = os.environ.get("SPARKCLUSTER_CACHE")
    return Path(directory) if directory else Path.home() / ".cache" / "sparkcluster"


def get_archive(engine: EngineFacts, report: Report, run: Run | None = None) -> Archive:
    """The archive for ``engine`` (the image's Python and platform), fetched with uv or pip unless it is cached.

    One that differs from what was packed, or was made from other pins, is fetched again. ``run`` runs a command and
    returns exit code and output.

    Raises:
        StageError: it cannot be fetched.
    """
    place = _place(engine)
    try:
        return _kept(place) or _make(engine, place, report, run or _runner(report))
    except OSError as error:
        # unlike Path.exists, lexists raises no error if the parent directory cannot be read
        hint = f"rm -r {place}" if os.path.lexists(place) else None
        raise StageError(f"Ray cannot be cached in {place}: {error.strerror}", step="copy ray", hint=hint) from error


def record(digest: str) -> str:
    """What is written beside an archive with this SHA-256."""
    return f"{digest} {hashlib.sha256(PINS.read_bytes()).hexdigest()}\n"


def kept(engine: EngineFacts) -> Archive | None:
    """The archive for ``engine`` that is cached here, if it is what was packed."""
    with contextlib.suppress(OSError):
        return _kept(_place(engine))
    return None


def _place(engine: EngineFacts) -> Path:
    return cache_directory() / "ray" / ray_name(engine)


def _kept(place: Path) -> Archive | None:
    """The archive in ``place``, if it is what was packed from these pins."""
    with contextlib.suppress(FileNotFoundError):
        recorded = (place / RECORD).read_text()
        digest = _digest(place / FILE)
        if recorded == record(digest):
            return Archive(place / FILE, digest)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(engine: EngineFacts, place: Path, report: Report, run: Run) -> Archive:
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(place.parent)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".partial-") as name:
        fresh = Path(name)
        _fetch(engine, fresh / "packages", run)
        report("packing Ray")
        (fresh / "done").mkdir()
        digest = pack(separate_dependencies(fresh / "packages"), fresh / "done" / FILE)
        (fresh / "done" / RECORD).write_text(record(digest))
        if _kept(place) is None:  # else a faster run has put the same there
            shutil.rmtree(place, ignore_errors=True)
            (fresh / "done").rename(place)
    return Archive(place / FILE, digest)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed runs have left; a run that is under way is younger than its limit."""
    for leftover in folder.glob(".partial-*"):
        with contextlib.suppress(OSError):  # removed meanwhile by its run
            if time.time() - leftover.stat().st_mtime > 2 * LIMIT_S:
                shutil.rmtree(leftover)


def fetch_commands(engine: EngineFacts, target: Path) -> list[list[str]]:
    """Commands that each fetch Ray and its dependencies into ``target``, the better one first."""
    python = ".".join(re.findall(r"\d+", engine.python_version)[:2])
    machine = engine.platform.rpartition("linux_")[2]
    machine = re.sub(r"^\d+_\d+_", "", machine) or platform.machine()
    pinned = ["--require-hashes", "--no-deps", "--requirement", str(PINS)]
    made = []
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        argv = [uv, "pip", "install", "--no-progress", "--only-binary", ":all:", "--target", str(target)]
        argv += ["--python", sys.executable, "--python-version", python]
        made.append([*argv, "--python-platform", f"{machine}-manylinux_2_{_glibc(engine)}", *pinned])
    pip = [sys.executable, "-m", "pip", "install", "--only-binary=:all:", "--no-compile", "--no-input"]
    pip += ["--retries", "1", "--no-warn-script-location", "--target", str(target)]
    pip += ["--implementation", "cp", "--python-version", python, "--abi", f"cp{python.replace('.', '')}"]
    for minor in range(_glibc(engine), _OLDEST_GLIBC - 1, -1):
        pip += ["--platform", f"manylinux_2_{minor}_{machine}"]
    made.append([*pip, "--platform", f"manylinux2014_{machine}", *pinned])
    return made


def _glibc(engine: EngineFacts) -> int:
    """Minor version of the image's glibc, as far as it matters; the oldest if unknown."""
    found = re.search(r"manylinux_2_(\d+)_", engine.platform)
    return _NEWEST_GLIBC if found and int(found.group(1)) >= _NEWEST_GLIBC else _OLDEST_GLIBC


def _fetch(engine: EngineFacts, target: Path, run: Run) -> None:
    cause = ""
    for argv in fetch_commands(engine, target):
        code, output = run(argv)
        if code == 0:
            return
        shutil.rmtree(target, ignore_errors=True)
        cause = _cause(output) or f"{Path(argv[0]).name} exited with {code}"
    python = ".".join(re.findall(r"\d+", engine.python_version)[:2])
    raise StageError(
        f"Ray {BROUGHT_RAY} for Python {python} on {engine.platform} cannot be fetched: {cause}",
        step="copy ray",
        hint="run this on a machine that reaches a package index, or set executor: native in the playbook",
    )


def _cause(output: str) -> str:
    """The line with the cause, without the prefixes of pip and uv."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if re.match(r"(?i)(.*: )?(error:|no module named)", line)]
    return re.sub(r"(?i)^error: *", "", (marked or lines[-1:] or [""])[0])[:200]


def _runner(report: Report) -> Run:
    """A function that runs a command and reports every second."""

    def run(argv: Sequence[str]) -> tuple[int, str]:
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
            )
        except OSError as error:
            return 127, f"{argv[0]}: {error.strerror}"
        with process:
            try:
                while (seconds := time.monotonic() - began) < LIMIT_S:
                    report(f"fetching Ray {BROUGHT_RAY} ({seconds:.0f} s)")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        output = process.communicate(timeout=1)[0]
                        return process.returncode, output
            finally:
                process.kill()  # no effect once it has ended
            output = ""
            with contextlib.suppress(subprocess.TimeoutExpired):  # a child of it keeps the pipe open
                output = process.communicate(timeout=1)[0]
        return process.returncode, f"{output}\nERROR: did not finish within {LIMIT_S} s"

    return run


def separate_dependencies(packages: Path) -> Path:
    """Separate Ray from its dependencies in the directory of installed ``packages``, and return that directory.

    Raises:
        StageError: there is no Ray in it.
    """
    shutil.rmtree(packages / "bin", ignore_errors=True)
    needs: dict[str, list[str]] = {}
    ray: list[str] = []
    for info in sorted(packages.glob("*.dist-info")):
        name = info.name.partition("-")[0].replace("_", "-").lower()
        if name == "ray":
            ray = _tops(info)
        else:
            needs[name] = _tops(info)
    if "ray" not in ray:
        raise StageError(f"the download of Ray {BROUGHT_RAY} contains no package ray", step="copy ray")
    apart = packages / "needs"
    apart.mkdir()
    for top in sorted(packages.iterdir()):
        if top.name not in ray and top != apart:
            top.rename(apart / top.name)
    (packages / "needs.json").write_text(json.dumps(needs, sort_keys=True) + "\n")
    (packages / "bin").mkdir()
    (packages / "bin" / "ray").write_text(_SCRIPT)
    (packages / "bin" / "ray").chmod(0o755)
    return packages


def _tops(info: Path) -> list[str]:
    """Top-level names of a distribution, by its RECORD."""
    lines = (info / "RECORD").read_text(encoding="utf-8").splitlines()
    tops = {line.partition(",")[0].strip('"').partition("/")[0] for line in lines if line}
    return sorted(top for top in tops - {"..", "bin", "__pycache__"} if (info.parent / top).exists())


def pack(folder: Path, archive: Path) -> str:
    """Write ``folder`` as a compressed tar; the same content gives the same bytes. Returns its SHA-256."""
    # level 3: 4 % more to send than at 9, in a third of the time
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 3, file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as out,
    ):
        for path in _walk(folder):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                out.addfile(entry)
                continue
            with path.open("rb") as content:
                found = os.fstat(content.fileno())
                entry.size, entry.mode = found.st_size, 0o755 if found.st_mode & 0o100 else 0o644
                out.addfile(entry, content)
    return _digest(archive)


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below ``folder`` in a fixed order, without what differs between two installs."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name in {"__pycache__", "INSTALLER", "REQUESTED", "direct_url.json", ".lock"}:
            continue
        yield path
        if path.is_dir():
            yield from _walk(path)
