"""The scripts of setup as texts: complete ones in ``tests/golden/setup``, and values from nodes in them."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkcluster import __version__, setup
from sparkcluster.facts.survey import JournalEntry
from sparkcluster.setup.journal import describe, restoring
from sparkcluster.setup.script import CONFIRM, Event, Run, parse_line, script, undo
from sparkcluster.setup.step import command
from sparkcluster.setup.steps import BY_NAME, STEPS, changes, selected
from tests.unit import golden
from tests.unit.setup.test_changes import HOME, LIMITS, SYSCTL, SYSCTL_TEXT, USER, WANTED, bare, digest, ready

GOLDEN = golden.ROOT / "setup"
A, B = "a" * 64, "b" * 64
SAVED = "/var/lib/sparkcluster/setup/saved"
ROOT = Run("spark-a", "me@laptop", USER, machine=bare().machine)
LOGIN = replace(ROOT, root=False)
ALL = changes("spark-a", bare(), WANTED, selected((), ["headless", "hold"]))


def entry(number: int, step: str, kind: str, target: str, before: str, after: str, **changed: Any) -> JournalEntry:
    document = {"number": number, "at": 1763690000.0, "operator": "me@laptop", "step": step, "kind": kind}
    document |= {"target": target, "before": before, "after": after, "root": step != "ssh-key"}
    return JournalEntry.model_validate(document | changed)


JOURNAL = [
    entry(1, "ssh-key", "directory", f"{HOME}/.ssh", "absent", "made"),
    entry(2, "ssh-key", "file", f"{HOME}/.ssh/authorized_keys", "absent", A),
    entry(1, "docker-group", "group", f"docker:{USER}", "absent", "member"),
    entry(2, "nvidia-runtime", "file", "/etc/docker/daemon.json", A, B),
    entry(3, "sysctl", "file", SYSCTL, "absent", A),
    entry(4, "sysctl", "sysctl", "vm.swappiness", "vm.swappiness=60", "vm.swappiness=1"),
    entry(5, "sysctl", "sysctl", "vm.dirty_bytes", "vm.dirty_ratio=20", "vm.dirty_bytes=268435456"),
    entry(6, "limits", "file", LIMITS, "absent", A),
    entry(7, "hf-cache", "owner", f"{HOME}/.cache/huggingface", "root", USER),
    entry(9, "perftest", "package", "perftest libibumad3", "absent", "installed"),
    entry(11, "clock", "ntp", "clock", "no", "yes"),
    entry(12, "headless", "target", "default.target", "absent", "multi-user.target"),
    entry(13, "hold", "hold", "nvidia-driver-580-open", "unhold", "hold"),
    entry(14, "netplan", "link", "enp1s0f1np1", "1500 0", "9000 1 192.168.177.11/24"),
    entry(16, "netplan", "file", "/etc/netplan/40-cx7.yaml", "absent", A),
    entry(6, "limits", "file", LIMITS, A, B),
]


def shortened(text: str) -> str:
    """A script with the names of the files in ``sh/`` instead of their content."""
    for path in (Path(setup.__file__).parent / "steps").glob("*.sh"):
        text = text.replace(path.read_text(), f"({path.name})\n")
    return text.replace(__version__, "VERSION")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("login", script(LOGIN, ALL)),
        ("root", script(ROOT, ALL)),
        ("network", script(ROOT, changes("spark-a", bare(), WANTED, selected(["netplan"])))),
        ("undo-login", undo(LOGIN, BY_NAME)),
        ("undo-root", undo(ROOT, BY_NAME)),
        ("confirm", CONFIRM),
    ],
)  # fmt: skip
def test_the_script_matches_its_golden_file(name, text):
    golden.check_text(GOLDEN / f"{name}.sh", shortened(text))
    for sh in ("dash", "bash"):
        assert subprocess.run([sh, "-n"], input=text, capture_output=True, text=True, check=False).stderr == ""


def test_without_changes_there_is_no_script():
    assert script(ROOT, []) == ""
    assert script(ROOT, changes("spark-a", ready(), replace(WANTED, netplan=None), selected())) == ""
    assert script(LOGIN, [each for each in ALL if each.step != "ssh-key"]) == ""
    blocked = changes("spark-a", bare(ranks=["x"]), WANTED, selected(["netplan"]))
    assert blocked
    assert script(ROOT, blocked) == ""
    assert undo(ROOT, []) == ""
    assert undo(ROOT, ["ssh-key"]) == ""


def test_the_network_step_comes_last():
    text = script(ROOT, reversed(ALL))
    attempts = [line.split("step_")[1] for line in text.splitlines() if line.startswith("  attempt ")]
    assert attempts == [step.name.replace("-", "_") for step in STEPS if step.root]


def test_values_from_a_node_are_quoted():
    (line,) = command("own_tree", "/data/a\nreboot; $(reboot)", "me'")
    assert shlex.split(line) == ["act", "own_tree", "/data/a\nreboot; $(reboot)", "me'", "||", "return", "1"]


def test_names_chosen_by_the_operator_are_quoted():
    assert "OPERATOR='me'\"'\"'; reboot #@x'" in script(replace(ROOT, operator="me'; reboot #@x"), ALL)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("netplan: done\n", Event("netplan", "done", "")),
        ("netplan: confirm: anew\n", Event("netplan", "confirm", "anew")),
        ("sysctl: left /etc/x: changed\r\n", Event("sysctl", "left", "/etc/x: changed")),
        ("ssh-key: undone: done", Event("ssh-key", "text", "undone: done")),
        ("sudo: done", Event(None, "text", "sudo: done")),
    ],
)
def test_output_lines_become_events(line, event):
    assert parse_line(line) == event


# ----------------------------------------------------------------------------------------------------------- undo


@pytest.mark.parametrize(
    ("left", "commands"),
    [
        (f"{SYSCTL}: changed since setup wrote it", [f"sudo cat {SYSCTL} ", f"sudo rm {SYSCTL}"]),
        (
            "/etc/docker/daemon.json: changed since setup wrote it",
            [f"sudo diff {SAVED}/2 /etc/docker/daemon.json ", f"sudo cp -p {SAVED}/2 /etc/docker/daemon.json"],
        ),
        ("vm.swappiness: changed since setup wrote it", ["before setup it was vm.swappiness=60"]),
        ("/etc/passwd: changed", []),
    ],
)
def test_files_that_an_undo_left_can_be_inspected_and_restored(left, commands):
    """A node cannot cause other commands to be suggested."""
    said = restoring("spark-a", JOURNAL, left)
    assert len(said) == len(commands)
    assert all(f"on spark-a: {command}" in line for command, line in zip(commands, said, strict=True))


def test_every_journal_entry_is_described_in_words():
    said = [row["text"] for row in describe(ready(journal=[each.model_dump() for each in JOURNAL]))]
    assert "nvidia added to the group docker" in said
    assert "vm.swappiness=1 (was 60)" in said
    assert "enp1s0f1np1: MTU 9000 192.168.177.11/24 (was 1500)" in said
    assert not [text for text in said if text in {f"{each.kind} {each.target}" for each in JOURNAL}]


def test_the_journal_shows_which_files_are_unchanged():
    def states(survey):
        return {(row["step"], row["what"].split(" ")[0]): row["state"] for row in describe(survey)}

    journal = [each.model_dump() for each in JOURNAL]
    assert states(ready(journal=journal))["sysctl", "file"] == "changed since"
    assert states(ready(journal=journal))["ssh-key", "file"] == "unknown"
    assert states(bare(journal=journal))["sysctl", "file"] == "as before"
    written = [each.model_dump() | {"after": digest(SYSCTL_TEXT)} for each in JOURNAL if each.step == "sysctl"]
    assert states(ready(journal=written))["sysctl", "file"] == "as written"
