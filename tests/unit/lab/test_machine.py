"""What the lab asks of a machine is said in one line, before anything is made."""

import sys

import pytest

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab import cgroups, machine
from sparkcluster.lab.state import State, write_atomically


def test_missing_programs_are_named_with_the_command_that_installs_them():
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


def test_elsewhere_than_on_linux_it_says_so(monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        machine.require({})


def test_the_error_of_a_program_that_fails_or_hangs_has_its_last_line():
    with pytest.raises(LabError, match="sh failed: why"):
        machine.run(["sh", "-c", "echo first; echo why >&2; exit 3"])
    with pytest.raises(LabError, match="took longer than"):
        machine.run(["sleep", "5"], timeout_s=0.05)
    assert machine.run(["false"], check=False).returncode == 1


def test_waiting_ends_when_it_is_true_or_the_limit_is_reached():
    slept: list[float] = []
    answers = iter([False, False, True])
    assert machine.wait_until(lambda: next(answers), limit_s=1, sleep=slept.append) is True
    assert slept == [0.02, 0.02]
    assert machine.wait_until(lambda: False, limit_s=0.1, sleep=slept.append) is False
    assert sum(slept) == pytest.approx(0.14)


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
def test_control_groups_of_both_kinds_are_found(monkeypatch, mounts, expected):
    monkeypatch.setattr(cgroups.Path, "read_text", lambda self: mounts)
    assert {options: str(point) for options, point in cgroups.hierarchies().items()} == expected


def test_a_file_is_replaced_whole_with_its_mode(tmp_path):
    file = tmp_path / "key"
    file.write_text("old")
    write_atomically(file, "new", mode=0o600)
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_state_is_read_as_it_was_written(tmp_path):
    from sparkcluster.lab.spec import plain

    state = State("id", "lab", tmp_path, 3, "stub", plain(2), faults={"spark-0001": [{"kind": "mtu"}]})
    state.write()
    assert State.read(tmp_path) == state
    assert State.read(tmp_path / "nowhere") is None


def test_a_lab_dies_with_its_number_known_even_if_nothing_else_was_made(tmp_path):
    """The names of all resources follow from the number alone."""
    from sparkcluster.lab.spec import plain

    state = State("id", "lab", tmp_path, 3, "stub", plain(2))
    assert (state.host_device, state.switch, state.nodes[1].unit) == ("sclab3", "sclab3-sw", "sclab3-1")
    assert (state.gateway, state.nodes[1].host) == ("10.77.3.1", "10.77.3.12")


def test_the_tools_of_a_spark_are_python_3_8_and_need_nothing_else():
    """They run under whatever python3 a machine has, with nothing installed."""
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
