"""Requirements of the lab are reported in one line, before anything is created."""

import sys

import pytest

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab import cgroups, machine


def test_missing_programs_are_reported_with_the_command_that_installs_them():
    with pytest.raises(UsageError) as caught:
        machine.require({"no-such-program": "its-package", "also-none": "its-package", "none": "another"})
    assert caught.value.hint == "sudo apt-get install -y --no-install-recommends another its-package"
    assert caught.value.exit_code == 2


def test_without_root_the_hint_is_the_same_command_with_sudo(monkeypatch):
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["sparkcluster", "lab", "up"])
    with pytest.raises(UsageError) as caught:
        machine.require({})
    assert caught.value.hint == "sudo sparkcluster lab up"


def test_the_error_of_a_failing_or_hanging_program_has_its_last_line():
    with pytest.raises(LabError, match="sh failed: why"):
        machine.run(["sh", "-c", "echo first; echo why >&2; exit 3"])
    with pytest.raises(LabError, match="took longer than"):
        machine.run(["sleep", "5"], timeout_s=0.05)
    assert machine.run(["false"], check=False).returncode == 1


V1 = """\
30 25 0:26 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw,relatime shared:11 - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime shared:12 - cgroup2 cgroup2 rw
"""
V2 = "30 25 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        (V1, {"cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct", "none,name=systemd": "/sys/fs/cgroup/systemd"}),
        (V2, {"": "/sys/fs/cgroup"}),
    ],
)
def test_both_versions_of_control_groups_are_found(monkeypatch, mounts, expected):
    monkeypatch.setattr(cgroups.Path, "read_text", lambda self: mounts)
    assert {options: str(point) for options, point in cgroups.hierarchies().items()} == expected


def test_a_sparks_tools_need_only_python_3_8():
    """They run with any python3, with nothing installed."""
    import ast
    from pathlib import Path

    from sparkcluster.lab import shims
    from sparkcluster.lab.faults import flip_byte

    for file in (*Path(shims.__file__).parent.glob("*.py"), Path(flip_byte.__file__)):
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or node.module in sys.stdlib_module_names, f"{file.name}: {node.module}"
            elif isinstance(node, ast.Import):
                assert {name.name.partition(".")[0] for name in node.names} <= sys.stdlib_module_names
