"""``setup`` as a command: who is contacted and asked, the scripts that it leaves, and what people read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.errors import AuthFailed, HostRefused, SparkclusterError
from sparkcluster.hosts import connect
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.printable import COLOURS
from sparkcluster.setup import run as setup
from sparkcluster.setup.run import Outcome
from tests.unit.on_terminal import OnTerminal
from tests.unit.setup import wired
from tests.unit.setup.test_changes import bare, ready
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


# Scripts for an administrator


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
from sparkcluster.cli.main import guarded
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
