"""Journal entries in words, and the way on from what an undo left."""

from __future__ import annotations

import pytest

from sparkcluster.setup.journal_text import described, way_on
from tests.unit.setup.test_script import JOURNAL, A, B, entry

AGAIN = "sparkcluster setup INVENTORY --undo"
SAVED = "/var/lib/sparkcluster/setup/saved"


def test_every_entry_is_said_in_words():
    said = [described(each) for each in JOURNAL]
    assert said[:8] == [
        "directory /home/nvidia/.ssh created",
        "SSH key added to /home/nvidia/.ssh/authorized_keys",
        "nvidia added to the group docker",
        "/etc/docker/daemon.json changed",
        "/etc/sysctl.d/90-sparkcluster.conf created",
        "vm.swappiness=1 (was 60)",
        "vm.dirty_bytes=268435456 (was vm.dirty_ratio=20)",
        "/etc/security/limits.d/90-sparkcluster.conf created",
    ]
    assert "enp1s0f1np1: MTU 9000 (was 1500)" in said
    assert "enp1s0f1np1: 192.168.177.11/24 removed" in said
    assert not [text for text, each in zip(said, JOURNAL, strict=True) if text == f"{each.kind} {each.target}"]


@pytest.mark.parametrize("kind", ["group", "sysctl", "address", "link", "file", "future"])
def test_what_no_setup_wrote_is_said_without_control_characters(kind):
    text = described(entry(1, "sysctl", kind, "\x1b[2Jx\n", "\x1b", ""))
    assert text.isprintable()


@pytest.mark.parametrize(
    ("left", "commands"),
    [
        (
            "/etc/sysctl.d/90-sparkcluster.conf: changed since setup wrote it",
            ["sudo cat /etc/sysctl.d/90-sparkcluster.conf ", "sudo rm /etc/sysctl.d/90-sparkcluster.conf"],
        ),
        (
            "/etc/docker/daemon.json: changed since setup wrote it",
            [f"sudo diff {SAVED}/2 /etc/docker/daemon.json ", f"sudo cp -p {SAVED}/2 /etc/docker/daemon.json"],
        ),
        # Two entries: what was there before the first is what was there before setup.
        (
            "/etc/netplan/40-cx7.yaml: changed since setup wrote it",
            ["sudo cat /etc/netplan/40-cx7.yaml ", "sudo rm /etc/netplan/40-cx7.yaml"],
        ),
        (
            "/home/nvidia/.ssh/authorized_keys: changed since setup wrote it",
            ["on spark-a: cat /home/nvidia/.ssh/authorized_keys ", "on spark-a: rm /home/nvidia/.ssh/authorized_keys"],
        ),
        ("vm.swappiness: changed since setup wrote it", ["sysctl vm.swappiness ", "sudo sysctl -w vm.swappiness=60"]),
        (
            "the MTU of enp1s0f1np1: changed since setup set it",
            ["ip link show enp1s0f1np1 ", "sudo ip link set enp1s0f1np1 mtu 1500"],
        ),
        (
            "default.target: changed since setup wrote it",
            ["systemctl get-default ", "sudo rm /etc/systemd/system/default.target"],
        ),
        ("libibumad3: fancy-tools needs it", ["sudo apt-get purge fancy-tools "]),
    ],
)
def test_what_an_undo_left_can_be_looked_at_and_discarded(left, commands):
    said = way_on("spark-a", JOURNAL, left)
    assert len(said) == len(commands) + 1
    assert all(command in line for command, line in zip(commands, said[:-1], strict=True))
    assert said[-1] == AGAIN


def test_a_path_of_the_operators_is_quoted():
    key = entry(3, "ssh-key", "line", "/home/a b/.ssh/authorized_keys", A, B)
    said = way_on("spark-a", [key], "/home/a b/.ssh/authorized_keys: changed since setup wrote it")
    assert "diff ~/.local/state/sparkcluster/setup/saved/3 '/home/a b/.ssh/authorized_keys'" in said[0]


@pytest.mark.parametrize("left", ["/etc/passwd: changed", "a;b: c needs it", "perftest: $(x) needs it", ""])
def test_a_node_cannot_have_other_commands_suggested(left):
    assert way_on("spark-a", JOURNAL, left) == ()
