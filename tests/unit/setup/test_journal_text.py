"""Journal entries in words, and the way on from what an undo left."""

from __future__ import annotations

import pytest

from sparkcluster.setup.journal_text import described, way_on
from tests.unit.setup.test_script import JOURNAL, entry

AGAIN = "sparkcluster setup INVENTORY --undo"
SAVED = "/var/lib/sparkcluster/setup/saved"


def test_every_entry_is_said_in_words():
    said = [described(each) for each in JOURNAL]
    assert said[:3] == [
        "directory /home/nvidia/.ssh created",
        "SSH key added to /home/nvidia/.ssh/authorized_keys",
        "nvidia added to the group docker",
    ]
    assert "vm.swappiness=1 (was 60)" in said
    assert "enp1s0f1np1: MTU 9000 (was 1500)" in said
    assert "enp1s0f1np1: 192.168.177.11/24 removed" in said
    assert not [text for text, each in zip(said, JOURNAL, strict=True) if text == f"{each.kind} {each.target}"]


@pytest.mark.parametrize("kind", ["group", "future"])
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
        ("vm.swappiness: changed since setup wrote it", ["sysctl vm.swappiness ", "sudo sysctl -w vm.swappiness=60"]),
        ("libibumad3: fancy-tools needs it", ["sudo apt-get purge fancy-tools "]),
    ],
)
def test_what_an_undo_left_can_be_looked_at_and_discarded(left, commands):
    said = way_on("spark-a", JOURNAL, left)
    assert len(said) == len(commands) + 1
    assert all(command in line for command, line in zip(commands, said[:-1], strict=True))
    assert said[-1] == AGAIN


@pytest.mark.parametrize("left", ["/etc/passwd: changed", "perftest: $(x) needs it"])
def test_a_node_cannot_have_other_commands_suggested(left):
    assert way_on("spark-a", JOURNAL, left) == ()
