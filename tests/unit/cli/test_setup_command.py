"""``setup`` as a command: who is contacted and asked, the scripts that it leaves, and what people read."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from docgen import json_schemas

from sparkcluster.cli import setup as command
from sparkcluster.cli.main import guarded
from sparkcluster.cli.prompts import Terminal
from sparkcluster.errors import AuthFailed, HostRefused, SparkclusterError
from sparkcluster.hosts import connect, ssh
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.printable import COLOURS
from sparkcluster.setup import run as setup
from sparkcluster.setup.run import Outcome
from tests.unit.on_terminal import OnTerminal
from tests.unit.setup import wired
from tests.unit.setup.test_changes import SYSCTL, SYSCTL_TEXT, bare, ready, state
from tests.unit.setup.test_script import JOURNAL

INVENTORY = """
cluster: desk
playbook: gpt-oss-120b
nodes: [{name: a, host: 192.168.1.11}, {name: b, host: 192.168.1.12}]
"""
ALONE = "cluster: desk\nplaybook: gpt-oss-20b\nnodes: [{name: spark-a, host: 192.168.1.11}]\n"


class Nodes:
    """Nodes by name, and what becomes of scripts that run there."""

    def __init__(self, monkeypatch):
        self.answers: dict[str, object] = {}
        self.hosts: dict[str, FakeHost] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.afterwards: dict[str, object] = {}
        self.prompts = None
        monkeypatch.setattr(connect, "connect", self.connect)
        monkeypatch.setattr(setup, "run", self.run)

    def connect(self, nodes, prompts=None):
        self.prompts = prompts
        self.hosts = {name: FakeHost(name).program("survey", self.survey(name)) for name in nodes}
        return Fleet(self.hosts)

    def survey(self, name):
        def answer(_request):
            if isinstance(self.answers[name], SparkclusterError):
                raise self.answers[name]
            return self.answers[name]

        return answer

    def run(self, fleet, surveys, texts, report, **_):
        self.texts = texts
        self.answers |= self.afterwards
        return {name: self.outcomes[name] for name, text in texts.items() if text}

    @property
    def contacted(self):
        return [name for name, host in self.hosts.items() if host.calls]


@pytest.fixture
def nodes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(INVENTORY)
    made = Nodes(monkeypatch)
    made.answers |= wired.documents(wired.ONE)
    return made


@pytest.fixture
def alone(nodes):
    """One Spark out of the box, without cable."""
    Path("mine.yaml").write_text(ALONE)
    nodes.answers["spark-a"] = bare(interfaces=bare().model_dump(mode="json")["interfaces"][:2]).model_dump(mode="json")
    return nodes


def document(capsys):
    found = json.loads(capsys.readouterr().out)
    json_schemas.validate("setup", found)
    return found


# Which nodes are contacted, and asked about


def test_one_node_is_contacted_for_steps_that_concern_it_alone(nodes, capsys):
    assert guarded(["setup", "mine.yaml", "--node", "b", "--only", "sysctl", "--dry-run", "--json"]) == 0
    assert nodes.contacted == ["b"]
    assert [each["step"] for each in document(capsys)["nodes"]["b"]["changes"]] == ["sysctl"]


def test_for_one_node_nobody_is_asked_about_another(nodes):
    guarded(["setup", "mine.yaml", "--node", "b", "--dry-run"])
    asked = []
    nodes.prompts._prompts = type("Asked", (), {"password": lambda _, name, *__, **___: asked.append(name)})()
    for name in "ab":
        nodes.prompts.password(name, None, again=False)
    assert asked == ["b"]
    guarded(["setup", "mine.yaml", "--dry-run"])
    assert not hasattr(nodes.prompts, "_prompts")  # the terminal itself


LOCKED = AuthFailed("a: login as x on 192.168.1.11 failed: no key was accepted", node="a", hint="ssh-copy-id x")
LOCKED.takes_password = True
FIRST = "sparkcluster setup mine.yaml --only ssh-key --node a, then this again"


@pytest.mark.parametrize(
    ("error", "reason", "hint"),
    [
        (LOCKED, "login as x on 192.168.1.11 failed", FIRST),
        (HostRefused("a: connection refused", node="a", hint="ping it"), "connection refused", "ping it"),
    ],
)
def test_another_node_without_an_answer_stops_only_what_follows_from_it(nodes, capsys, error, reason, hint):
    nodes.answers["a"] = error
    nodes.outcomes["b"] = Outcome(done=["sysctl"])
    assert guarded(["setup", "mine.yaml", "--node", "b", "--yes"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "b: done: sysctl" in out
    assert "netplan" not in nodes.texts["b"].root
    for step in ("netplan", "hosts"):
        assert f"error: b: {step}: it follows from all nodes, and a did not answer: {reason}" in out
    assert f"hint: {hint}" in out
    assert out.endswith("what was done stays, and setup goes on from there")


def test_without_node_one_that_does_not_answer_stops_it(nodes, capsys):
    nodes.answers["a"] = LOCKED
    assert guarded(["setup", "mine.yaml", "--yes"]) == 1
    assert "no key was accepted" in capsys.readouterr().err


# The verdict is that of what was found afterwards

SYSCTLS = {"vm.swappiness": "1", "vm.dirty_bytes": "268435456", "vm.dirty_ratio": "0"}
GONE = HostRefused("b: no route to host", node="b", hint="ping it")
ONLY_SYSCTL = ["setup", "mine.yaml", "--only", "sysctl"]


def with_sysctl(found):
    return {**found, "sysctls": SYSCTLS, "files": {**found.get("files", {}), SYSCTL: state(SYSCTL_TEXT)}}


def with_twin_down(found):
    down = {"enP2p1s0f1np1": {"operstate": "down", "carrier": False}}
    return {**found, "interfaces": [each | down.get(each["name"], {}) for each in found["interfaces"]]}


@pytest.fixture
def sysctl(nodes):
    """``sysctl`` is done on both, and found done afterwards."""
    nodes.outcomes = {name: Outcome(done=["sysctl"]) for name in "ab"}
    nodes.afterwards = {name: with_sysctl(found) for name, found in nodes.answers.items()}
    return nodes


def test_what_was_wrong_before_and_is_right_afterwards_is_no_error(sysctl, capsys):
    sysctl.answers["a"] = with_twin_down(sysctl.answers["a"])
    assert guarded([*ONLY_SYSCTL, "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "error" not in out
    assert out.endswith("done: sysctl\n")
    assert "next: sparkcluster preflight" in err


def test_what_is_wrong_only_afterwards_is_an_error(sysctl, capsys):
    sysctl.afterwards["a"] = with_twin_down(sysctl.afterwards["a"])
    assert guarded([*ONLY_SYSCTL, "--yes"]) == 1
    out, err = capsys.readouterr()
    assert "error: enP2p1s0f1np1 of a is down" in out
    assert out.endswith("what was done stays, and setup goes on from there\n")
    assert "next:" not in err


def test_a_change_that_is_due_only_afterwards_is_one_that_was_not_made(sysctl, capsys):
    before, sysctl.answers["b"] = sysctl.answers["b"], sysctl.afterwards["b"]
    sysctl.afterwards["b"] = before
    assert guarded([*ONLY_SYSCTL, "--yes"]) == 1
    out, err = capsys.readouterr()
    assert "error: b: sysctl: vm.swappiness=?, vm.dirty_bytes=? -> vm.swappiness=1" in out
    assert "next:" not in err


@pytest.mark.parametrize("node", ["b", "spark-a"])
def test_a_node_that_does_not_answer_afterwards_is_an_error(request, sysctl, capsys, node):
    if node == "spark-a":
        request.getfixturevalue("alone").outcomes[node] = Outcome(done=["sysctl"])
    sysctl.afterwards[node] = HostRefused(f"{node}: no route to host", node=node, hint="ping it")
    answers = dict(sysctl.answers)
    assert guarded([*ONLY_SYSCTL, "--yes"]) == 1
    out, err = capsys.readouterr()
    assert f"{node}: done: sysctl" in out
    assert out.endswith("not set up: see above; what was done stays, and setup goes on from there\n")
    assert "error" not in out  # such as one about the cable between them
    assert f"error: {node}: no route to host" in err
    assert "next:" not in err

    sysctl.answers = answers
    assert guarded([*ONLY_SYSCTL, "--yes", "--json"]) == 1
    found = document(capsys)
    assert found["nodes"][node] | {"script": ""} == {
        "changes": [], "script": "", "login_script": "", "done": ["sysctl"], "failed": {}, "left": [], "by_hand": None,
        "error": None,
    }  # fmt: skip
    assert found["errors"] == {node: f"{node}: no route to host"}


def test_steps_that_follow_from_all_nodes_are_not_judged_without_one(nodes, capsys):
    """Alone, ``a`` would get no address."""
    nodes.outcomes = {"a": Outcome(by_hand="sudo refuses"), "b": Outcome(done=["netplan", "hosts"])}
    nodes.afterwards["b"] = GONE
    assert guarded(["setup", "mine.yaml", "--yes", "--only", "netplan", "--only", "hosts"]) == 1
    out = capsys.readouterr().out
    assert re.findall("error: .*", out) == ["error: a: sudo refuses"]
    assert Path("setup-a.sh").exists()


def test_with_every_change_refused_nothing_is_left_to_do(nodes, capsys, monkeypatch):
    monkeypatch.setattr(command, "is_asked", lambda: True)
    monkeypatch.setattr(Terminal, "confirm", lambda _self, _question: False)
    assert guarded(ONLY_SYSCTL) == 1
    out, err = capsys.readouterr()
    assert out == "not set up: sysctl left as it was\n"
    assert err.splitlines() == ["look: at 2 nodes"]


# Undo


def journal(step, **changes):
    return [each.model_dump() | changes for each in JOURNAL if each.step == step]


def test_an_undo_without_one_of_the_nodes_is_not_all_of_it(nodes, capsys):
    nodes.answers["a"]["journal"] = journal("sysctl")
    nodes.answers["b"] = GONE
    nodes.outcomes["a"] = Outcome(done=["sysctl"])
    assert guarded(["setup", "mine.yaml", "--undo", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert out == "a: undone: sysctl\nnot all of it is undone: see above\n"
    assert "error: b: no route to host" in err


@pytest.mark.parametrize("words", [["--yes"], []])
def test_a_journal_that_cannot_be_undone_is_not_asked_about(alone, capsys, words):
    alone.answers["spark-a"]["journal"] = journal("sysctl", kind="new-kind")
    assert guarded(["setup", "mine.yaml", "--undo", *words]) == 1
    out, err = capsys.readouterr()
    assert out == "nothing was undone: see above\n"
    assert "is not one of setup" in err
    assert "change" not in err
    assert guarded(["setup", "mine.yaml", "--undo", "--json"]) == 1
    assert document(capsys)["changed"] is False


def test_only_what_can_be_undone_is_asked_about(nodes, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("sparkcluster.cli.setup_journal.is_asked", lambda: True)
    monkeypatch.setattr(Terminal, "confirm", lambda _self, question: bool(asked.append(question)))
    nodes.answers["a"]["journal"] = journal("sysctl", kind="new-kind")
    nodes.answers["b"]["journal"] = journal("sysctl")
    assert guarded(["setup", "mine.yaml", "--undo"]) == 2
    assert len(asked) == 1
    assert "b, by " in asked[0]
    assert "a, by " not in asked[0]


# Scripts for an administrator


@pytest.mark.parametrize("words", [[], ["--undo"]])
def test_a_script_that_cannot_be_written_hides_no_change(nodes, capsys, words):
    name = f"{'undo' if words else 'setup'}-b.sh"
    Path(name).mkdir()
    for each in "ab":
        nodes.answers[each]["journal"] = journal("sysctl")
    nodes.outcomes = {"a": Outcome(done=["sysctl"]), "b": Outcome(by_hand="sudo refuses")}
    assert guarded([*ONLY_SYSCTL, "--yes", *words]) == 1
    out, err = capsys.readouterr()
    assert f"a: {'undone' if words else 'done'}: sysctl\n" in out
    assert "error: b: sudo refuses\n" in out
    assert f"sudo sh {name}" not in out
    assert f"error: {name} exists, and is not a file of yours" in err
    assert guarded([*ONLY_SYSCTL, "--yes", "--json", *words]) == 1
    found = document(capsys)["nodes"]
    assert found["a"]["done"] == ["sysctl"]
    assert found["b"]["by_hand"] == "sudo refuses"
    assert name in found["b"]["error"]


def test_a_script_is_removed_once_what_it_does_is_done(alone, capsys):
    alone.outcomes["spark-a"] = Outcome(by_hand="sudo refuses")
    assert guarded(["setup", "mine.yaml", "--yes"]) == 1
    assert "sudo sh setup-spark-a.sh" in capsys.readouterr().out
    script = Path("setup-spark-a.sh")
    assert script.stat().st_mode & 0o777 == 0o600

    # Run by hand, but for one step.
    done = ready(interfaces=alone.answers["spark-a"]["interfaces"], journal=[e.model_dump() for e in JOURNAL[2:9]])
    alone.answers["spark-a"] = done.model_dump(mode="json") | {"ntp": False}
    assert guarded(["setup", "mine.yaml", "--dry-run", "--only", "sysctl"]) == 0
    assert guarded(["setup", "mine.yaml", "--only", "sysctl"]) == 0
    assert script.exists()
    alone.answers["spark-a"]["ntp"] = True
    assert guarded(["setup", "mine.yaml", "--dry-run"]) == 0
    assert script.exists()
    assert guarded(["setup", "mine.yaml"]) == 0
    assert not script.exists()
    assert "removed setup-spark-a.sh: all that it does is done" in capsys.readouterr().err

    # The undo has a file of its own.
    assert guarded(["setup", "mine.yaml", "--undo", "--yes"]) == 1
    assert "sudo sh undo-spark-a.sh" in capsys.readouterr().out
    assert not script.exists()
    alone.answers["spark-a"]["journal"] = []
    assert guarded(["setup", "mine.yaml", "--undo", "--yes"]) == 0
    assert not Path("undo-spark-a.sh").exists()


@pytest.mark.parametrize("text", ["#!/bin/sh\nmine\n", "#!/bin/sh\n# Made by sparkcluster 1 for node b, where", ""])
def test_a_file_that_setup_did_not_write_for_the_node_stays(alone, capsys, text):
    alone.answers["spark-a"] = ready(interfaces=alone.answers["spark-a"]["interfaces"]).model_dump(mode="json")
    Path("setup-spark-a.sh").write_text(text)
    assert guarded(["setup", "mine.yaml"]) == 0
    assert Path("setup-spark-a.sh").read_text() == text
    assert "removed" not in capsys.readouterr().err


# What people read


def test_what_was_changed_is_shown_by_whom_and_when_within_80_columns(alone, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    later = [JOURNAL[6].model_dump() | {"at": 1763690000.0 + 86400, "operator": "other@" + "x" * 90, "number": 99}]
    alone.answers["spark-a"]["journal"] = [each.model_dump() for each in JOURNAL] + later
    assert guarded(["setup", "mine.yaml", "--show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"spark-a, by me@laptop at 2025-11-2\d \d\d:\d\d", lines[0])
    assert "  docker-group: nvidia added to the group docker (as before setup)" in lines
    assert sum(not line.startswith(" ") for line in lines) == 2
    assert all(len(line) <= 80 or " " not in line.strip() for line in lines), lines
    assert guarded(["setup", "mine.yaml", "--show", "--json"]) == 0
    assert document(capsys)["nodes"]["spark-a"]["journal"][0]["what"].startswith("directory ")


def test_what_an_undo_left_has_a_way_on(alone, capsys):
    alone.answers["spark-a"]["journal"] = [each.model_dump() for each in JOURNAL if each.step == "sysctl"]
    left = "/etc/sysctl.d/90-sparkcluster.conf: changed since setup wrote it"
    alone.outcomes["spark-a"] = Outcome(done=[], left=[left, left])
    assert guarded(["setup", "mine.yaml", "--undo", "--yes"]) == 1
    out = capsys.readouterr().out
    assert out.count("error:") == 1
    hint, *then = [line.strip() for line in out.splitlines() if line.startswith("  ") and ": " in line][-3:]
    assert hint == "hint: on spark-a: sudo cat /etc/sysctl.d/90-sparkcluster.conf   shows it"
    assert then[-1] == "then: sparkcluster setup mine.yaml --undo"


NO_KEY = """
import sys
from sparkcluster.cli import setup as command
from sparkcluster.cli.main import guarded
from sparkcluster.cli.prompts import Terminal
from sparkcluster.cli.prompts import Terminal
from sparkcluster.hosts import connect, own_key, ssh
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.setup import run
from tests.unit.setup.test_changes import ready
host = FakeHost("spark-a").program("survey", ready(files={}).model_dump(mode="json"))
host.target = None
connect.connect = lambda nodes, prompts=None: Fleet({"spark-a": host})
ssh.SshHost = FakeHost
Terminal.logged_in = lambda self, target: True
own_key.public_key = lambda name, target: None
own_key.create = lambda: sys.exit("created")
run.run = lambda fleet, surveys, texts, report, **_: {}
sys.exit(guarded(["setup", "mine.yaml", *sys.argv[1:]]))
"""


def test_a_key_whose_public_one_is_unknown_is_not_said_to_be_absent(alone, capsys, monkeypatch, tmp_path):
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    key.with_suffix(".pub").unlink()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(ssh, "SshHost", FakeHost)
    monkeypatch.setattr(FakeHost, "target", SshTarget("192.168.1.11", "nvidia", identities=(key,)), raising=False)
    monkeypatch.setattr(Terminal, "logged_in", lambda _self, _target: True)
    monkeypatch.setattr(Terminal, "confirm", lambda _self, question: pytest.fail(question))
    assert guarded(["setup", "mine.yaml", "--only", "ssh-key"]) == 2
    assert f"hint: ssh-keygen -y -f {key} > {key}.pub, then this again" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("words", [["--only", "ssh-key"], ["--only", "ssh-key", "--dry-run"]])
def test_a_key_that_is_not_created_is_named_with_what_to_type(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(ALONE)
    with OnTerminal(NO_KEY, *words) as terminal:
        if "--dry-run" not in words:
            terminal.until("create ~/.ssh/id_ed25519 without a passphrase? [y/N] ")
            terminal.type("n\n")
        assert terminal.end() == 1
    shown = " ".join(COLOURS.sub("", terminal.shown).split())
    assert "left out: you have no SSH key" in shown
    assert "hint: ssh-keygen -t ed25519, then: sparkcluster setup mine.yaml --only ssh-key" in shown
    assert "not set up" in shown
    assert "created" not in shown
