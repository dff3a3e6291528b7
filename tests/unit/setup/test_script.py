"""The scripts of setup as texts: whole ones in ``tests/golden/setup``, and what goes into them from nodes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkcluster import __version__, setup
from sparkcluster.errors import SetupError
from sparkcluster.facts.survey import JournalEntry
from sparkcluster.setup import actions as do
from sparkcluster.setup.changes import Change, changes
from sparkcluster.setup.journal import describe
from sparkcluster.setup.script import Event, Run, confirm_script, parse_line, script
from sparkcluster.setup.steps import STEPS
from sparkcluster.setup.undo import undo
from tests.unit import golden
from tests.unit.setup.test_changes import HOME, LIMITS, SYSCTL, USER, WANTED, bare, ready

GOLDEN = golden.ROOT / "setup"
A, B = "a" * 64, "b" * 64
ROOT = Run("spark-a", "me@laptop", USER, machine=bare().machine)
LOGIN = replace(ROOT, root=False)
ALL = changes("spark-a", bare(), replace(WANTED, options=frozenset({"headless", "hold"})))


def entry(number: int, step: str, kind: str, target: str, before: str, after: str, **changed: Any) -> JournalEntry:
    document = {"number": number, "at": 1763690000.0, "operator": "me@laptop", "step": step, "kind": kind}
    document |= {"target": target, "before": before, "after": after, "root": step != "ssh-key"}
    return JournalEntry.model_validate(document | changed)


JOURNAL = [
    entry(1, "ssh-key", "directory", f"{HOME}/.ssh", "absent", "made"),
    entry(2, "ssh-key", "line", f"{HOME}/.ssh/authorized_keys", "absent", A),
    entry(1, "docker-group", "group", f"docker:{USER}", "absent", "member"),
    entry(2, "nvidia-runtime", "file", "/etc/docker/daemon.json", A, B),
    entry(3, "sysctl", "file", SYSCTL, "absent", A),
    entry(4, "sysctl", "sysctl", "vm.swappiness", "vm.swappiness=60", "vm.swappiness=1"),
    entry(5, "sysctl", "sysctl", "vm.dirty_bytes", "vm.dirty_ratio=20", "vm.dirty_bytes=268435456"),
    entry(6, "limits", "file", LIMITS, "absent", A),
    entry(7, "hf-cache", "owner", f"{HOME}/.cache/huggingface", A, USER),
    entry(8, "hosts", "block", "/etc/hosts", A, B),
    entry(9, "perftest", "package", "perftest", "absent", "installed"),
    entry(10, "perftest", "package", "libibumad3", "absent", "installed"),
    entry(11, "clock", "ntp", "clock", "no", "yes"),
    entry(12, "headless", "target", "default.target", "absent", "multi-user.target"),
    entry(13, "hold", "hold", "nvidia-driver-580-open", "free", "held"),
    entry(14, "netplan", "link", "enp1s0f1np1", "mtu=1500 mode=0", "mtu=9000"),
    entry(15, "netplan", "address", "enp1s0f1np1 192.168.177.11/24", "absent", "present"),
    entry(16, "netplan", "netplan", "/etc/netplan/40-cx7.yaml", "absent", A),
    entry(17, "netplan", "address", "enp1s0f1np1 192.168.177.11/24", "present", "absent"),
    entry(18, "netplan", "netplan", "/etc/netplan/40-cx7.yaml", A, B),
    entry(19, "limits", "file", LIMITS, A, B),
]


def shortened(text: str) -> str:
    """A script with the names of the files in ``sh/`` in place of what is in them."""
    for path in (Path(setup.__file__).parent / "sh").iterdir():
        text = text.replace(path.read_text(), f"({path.name})\n")
    return text.replace(__version__, "VERSION")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("login", script(LOGIN, ALL)),
        ("root", script(ROOT, ALL)),
        ("network", script(replace(ROOT, confirm="controller", confirm_s=90), changes("spark-a", bare(), WANTED, ["netplan"]))),
        ("undo-login", undo(LOGIN, JOURNAL)),
        ("undo-root", undo(ROOT, JOURNAL)),
        ("confirm", confirm_script("1763690000-4711")),
    ],
)  # fmt: skip
def test_the_script_is_the_one_that_was_read_by_eye(name, text):
    golden.check_text(GOLDEN / f"{name}.sh", shortened(text))
    for sh in ("dash", "bash"):
        assert subprocess.run([sh, "-n"], input=text, capture_output=True, text=True, check=False).stderr == ""


def test_nothing_to_do_is_no_script():
    assert script(ROOT, []) == ""
    assert script(ROOT, changes("spark-a", ready(), WANTED)) == ""
    assert script(LOGIN, [each for each in ALL if each.step != "ssh-key"]) == ""
    blocked = changes("spark-a", bare(ranks=["x"]), WANTED, ["netplan"])
    assert blocked
    assert script(ROOT, blocked) == ""
    assert undo(ROOT, []) == ""
    assert undo(ROOT, JOURNAL, ["ssh-key"]) == ""


def test_the_network_comes_last():
    text = script(ROOT, reversed(ALL))
    attempts = [line.split("step_")[1] for line in text.splitlines() if line.startswith("  attempt ")]
    assert attempts == [step.name.replace("-", "_") for step in STEPS if step.root]


def test_a_hidden_character_is_refused():
    with pytest.raises(SetupError, match="hidden character"):
        script(ROOT, [Change("spark-a", "limits", "", "", (do.Own("/data/a\nreboot", USER),))])


def test_what_the_operator_calls_things_is_quoted():
    text = script(replace(ROOT, node="x\nreboot", operator="me\n'; reboot #\t@x"), ALL)
    assert "\nreboot" not in text
    assert "OPERATOR='me�'\"'\"'; reboot #�@x'" in text


def test_the_login_is_a_name():
    for run in (replace(LOGIN, user="x y"), replace(ROOT, user="$(id)")):
        with pytest.raises(SetupError, match="not the name of a user"):
            script(run, ALL)


@pytest.mark.parametrize("token", ["", "1;reboot", "../x-1", "1763690000-1\n"])
def test_a_token_is_checked_before_root_gets_it(token):
    with pytest.raises(SetupError):
        confirm_script(token)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("netplan: done\n", Event("netplan", "done", "")),
        ("netplan: confirm: 17-1\n", Event("netplan", "confirm", "17-1")),
        ("sysctl: left /etc/x: changed\r\n", Event("sysctl", "left", "/etc/x: changed")),
        ("ssh-key: undone: done", Event("ssh-key", "text", "undone: done")),
        ("sudo: done", Event(None, "text", "sudo: done")),
    ],
)
def test_a_line_of_output_is_an_event(line, event):
    assert parse_line(line) == event


def test_a_line_of_output_cannot_control_the_terminal():
    assert parse_line("\x1b[2Jclock: \x07done").text.isprintable()


# ----------------------------------------------------------------------------------------------------------- undo


@pytest.mark.parametrize(
    "forged",
    [
        entry(7, "limits", "file", "/etc/shadow", A, B),
        entry(7, "ssh-key", "line", "/root/.ssh/authorized_keys", A, B, root=True),
        entry(7, "ssh-key", "line", "/home/../root/.ssh/authorized_keys", A, B),
        entry(7, "docker-group", "group", "sudo:nvidia", "absent", "member"),
        entry(7, "sysctl", "sysctl", "kernel.sysrq", "kernel.sysrq=1", "kernel.sysrq=0"),
        entry(7, "hf-cache", "owner", "/data/a\nreboot", A, USER),
        entry(7, "hosts", "block", "/etc/resolv.conf", A, B),
        entry(7, "perftest", "package", "openssh-server'", "absent", "installed"),
        entry(7, "headless", "target", "default.target", "../../etc/x.target", "multi-user.target"),
        entry(7, "hold", "hold", "$(reboot)", "free", "held"),
        entry(7, "netplan", "address", "enp1s0f1np1 10.0.0.1/24; reboot", "absent", "present"),
        entry(7, "netplan", "link", "enp1s0f1np1", "mtu=1500;reboot mode=0", "mtu=9000"),
        entry(7, "nvidia-runtime", "restart", "ssh", "due", "done"),
        entry(7, "limits", "exec", "reboot", "absent", A),
    ],
)
def test_an_entry_that_setup_cannot_have_written_is_refused_by_its_name(forged):
    run = ROOT if forged.root else LOGIN
    with pytest.raises(SetupError, match="entry 7 of the journal is not one of setup") as refused:
        undo(run, [*JOURNAL, forged])
    assert refused.value.node == "spark-a"
    assert "\n" not in refused.value.message
    # Other steps can be undone all the same.
    other = "clock" if forged.step != "clock" else "limits"
    assert run is LOGIN or undo(run, [*JOURNAL, forged], [other])


def test_the_journal_is_described_with_what_is_still_there():
    survey = ready(journal=[each.model_dump() for each in JOURNAL if each.number not in {17, 18, 19}])
    states = {(row.step, row.what.split(" ")[0]): row.state for row in describe(survey)}
    assert states["docker-group", "group"] == "as written"
    assert states["sysctl", "file"] == "changed since"
    assert states["ssh-key", "line"] == "unknown"
    before = {row.step: row.state for row in describe(bare(journal=[each.model_dump() for each in JOURNAL]))}
    assert (before["clock"], before["netplan"]) == ("as before", "changed since")


def test_a_row_is_without_what_controls_a_terminal():
    forged = entry(3, "clock", "ntp", "x\x1b[2J", "no", "yes", operator="me\n\x07")
    row = describe(bare(journal=[forged.model_dump()]))[0]
    assert row.what.isprintable()
    assert row.operator.isprintable()
