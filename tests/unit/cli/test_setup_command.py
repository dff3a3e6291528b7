"""``setup`` as a command: contacted nodes, questions, printed scripts, and output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.cli.prompts import Terminal
from sparkcluster.errors import AuthFailed, HostRefused, SparkclusterError
from sparkcluster.hosts import connect
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.setup import run as setup
from sparkcluster.setup.run import Outcome
from tests.unit.setup import wired
from tests.unit.setup.test_changes import SYSCTL, SYSCTL_TEXT, bare, state
from tests.unit.setup.test_script import JOURNAL

INVENTORY = """
cluster: desk
playbook: gpt-oss-120b
nodes: [{name: a, host: 192.168.1.11}, {name: b, host: 192.168.1.12}]
"""
ALONE = "cluster: desk\nplaybook: gpt-oss-20b\nnodes: [{name: spark-a, host: 192.168.1.11}]\n"


class Nodes:
    """Nodes by name, and the results of scripts on them."""

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
        return {name: self.outcomes[name] for name, text in texts.items() if any(text)}

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
def single_spark(nodes):
    """One Spark in factory state, without cable."""
    Path("mine.yaml").write_text(ALONE)
    nodes.answers["spark-a"] = bare(interfaces=bare().model_dump(mode="json")["interfaces"][:2]).model_dump(mode="json")
    return nodes


def document(capsys):
    found = json.loads(capsys.readouterr().out)
    json_schemas.validate("setup", found)
    return found


# Contacted nodes, and questions about them


def test_only_one_node_is_contacted_for_steps_on_it(nodes, capsys):
    assert guarded(["setup", "mine.yaml", "--node", "b", "--only", "sysctl", "--dry-run", "--json"]) == 0
    assert nodes.contacted == ["b"]
    assert [each["step"] for each in document(capsys)["nodes"]["b"]["changes"]] == ["sysctl"]


LOCKED = AuthFailed("a: login as x on 192.168.1.11 failed: no key was accepted", node="a", hint="ssh-copy-id x")


def test_a_node_that_does_not_answer_suppresses_only_dependent_findings(nodes, capsys):
    nodes.answers["a"] = LOCKED
    nodes.outcomes["b"] = Outcome(done=["sysctl"])
    assert guarded(["setup", "mine.yaml", "--node", "b", "--yes"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "b: done: sysctl" in out
    assert "step_netplan" not in nodes.texts["b"].root
    assert "netplan: " in out
    assert out.count("error: b: needs all nodes, and a did not answer: login as x") == 2
    assert "hint: ssh-copy-id x" in out


# The findings after setup decide

SYSCTLS = {"/proc/sys/vm/swappiness": state("1\n"), "/proc/sys/vm/dirty_bytes": state("268435456\n")}
ONLY_SYSCTL = ["setup", "mine.yaml", "--only", "sysctl"]


def with_sysctl(found):
    return {**found, "files": {**found.get("files", {}), **SYSCTLS, SYSCTL: state(SYSCTL_TEXT)}}


def with_twin_down(found):
    down = {"enP2p1s0f1np1": {"operstate": "down", "carrier": False}}
    return {**found, "interfaces": [each | down.get(each["name"], {}) for each in found["interfaces"]]}


@pytest.fixture
def sysctl(nodes):
    """``sysctl`` is applied on both, and detected as applied afterwards."""
    nodes.outcomes = {name: Outcome(done=["sysctl"]) for name in "ab"}
    nodes.afterwards = {name: with_sysctl(found) for name, found in nodes.answers.items()}
    return nodes


def test_a_problem_that_setup_fixed_is_not_an_error(sysctl, capsys):
    sysctl.answers["a"] = with_twin_down(sysctl.answers["a"])
    assert guarded([*ONLY_SYSCTL, "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "error" not in out
    assert out.endswith("set up: sysctl\n")
    assert "next: sparkcluster preflight" in err


def test_a_problem_that_appears_during_setup_is_an_error(sysctl, capsys):
    sysctl.afterwards["a"] = with_twin_down(sysctl.afterwards["a"])
    assert guarded([*ONLY_SYSCTL, "--yes"]) == 1
    out, err = capsys.readouterr()
    assert "error: enP2p1s0f1np1 of a is down" in out
    assert "next:" not in err


def test_a_node_that_does_not_answer_after_setup_is_an_error(sysctl, capsys):
    sysctl.afterwards["b"] = HostRefused("b: no route to host", node="b", hint="ping it")
    assert guarded([*ONLY_SYSCTL, "--yes", "--json"]) == 1
    found = document(capsys)
    assert found["nodes"]["b"]["done"] == ["sysctl"]
    assert found["errors"] == {"b": "b: no route to host"}


# Undo


def journal(step, **changes):
    return [each.model_dump() | changes for each in JOURNAL if each.step == step]


def test_running_ranks_that_need_a_change_block_its_undo_on_their_node_only(nodes, capsys):
    for name in "ab":
        nodes.answers[name] |= {
            "journal": journal("docker-group"),
            "ranks": ["two-sparks-rank0"] if name == "a" else [],
        }
    nodes.outcomes["b"] = Outcome(done=["docker-group"])
    assert guarded(["setup", "mine.yaml", "--undo", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert "b: undone: docker-group" in out
    assert "running ranks on a need these changes" in err


# Questions


def answered(monkeypatch, *answers):
    """Questions that are asked, and these answers."""
    asked, left = [], iter(answers)

    def ask(_self, question):
        asked.append(question)
        return next(left)

    monkeypatch.setattr(Terminal, "ask", ask)
    return asked


@pytest.mark.parametrize(
    ("answers", "done"),
    [([""], ["limits", "perftest"]), (["each", "n", "y"], ["perftest"]), (["no"], [])],
    ids=["all", "each", "none"],
)
def test_all_changes_are_confirmed_by_one_question(nodes, capsys, monkeypatch, answers, done):
    asked = answered(monkeypatch, *answers)
    nodes.outcomes["b"] = Outcome(done=done)
    guarded(["setup", "mine.yaml", "--node", "b", "--only", "limits", "--only", "perftest"])
    assert asked[0] == "make these 2 changes? [Y/n/each] "
    assert asked[1:] == ["limits on b? [Y/n] ", "perftest on b? [Y/n] "][: len(answers) - 1]
    out = capsys.readouterr().out
    assert out.startswith("limits: locked memory without a limit\n")
    assert out.endswith("nothing was changed\n") is (not done)
    made = re.findall("^  attempt step_([a-z]+)", nodes.texts["b"].root, re.MULTILINE) if done else []
    assert made == done


def test_without_a_terminal_nothing_is_changed(nodes, capsys):
    assert guarded(["setup", "mine.yaml", "--json"]) == 2
    assert "--yes" in json.loads(capsys.readouterr().out)["error"]["hint"]
    nodes.answers["a"]["journal"] = journal("sysctl")
    assert guarded(["setup", "mine.yaml", "--undo", "--json"]) == 2
    assert "--yes" in json.loads(capsys.readouterr().out)["error"]["hint"]


# Scripts for an administrator


def test_a_script_that_sudo_refuses_is_left_to_an_administrator(single_spark, capsys):
    single_spark.outcomes["spark-a"] = Outcome(by_hand="sudo refuses")
    assert guarded(["setup", "mine.yaml", "--yes"]) == 1
    assert "sudo sh setup-spark-a.sh" in capsys.readouterr().out
    script = Path("setup-spark-a.sh")
    assert script.stat().st_mode & 0o777 == 0o600
    assert script.read_text() == single_spark.texts["spark-a"].root
    single_spark.answers["spark-a"]["journal"] = journal("sysctl")
    assert guarded(["setup", "mine.yaml", "--undo", "--yes"]) == 1
    assert "sudo sh undo-spark-a.sh" in capsys.readouterr().out


# Printed text


def test_changes_are_shown_with_operator_and_time(single_spark, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    single_spark.answers["spark-a"]["journal"] = [each.model_dump() for each in JOURNAL]
    assert guarded(["setup", "mine.yaml", "--show"]) == 0
    lines = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NODE", "STEP", "CHANGE", "WHEN"]
    row = next(line for line in lines if line[1] == "sysctl")
    assert row[2] == f"{SYSCTL} written (not in effect)"
    assert re.fullmatch(r"2025-11-2\d \d\d:\d\d by me@laptop", row[3])
    assert guarded(["setup", "mine.yaml", "--show", "--json"]) == 0
    assert document(capsys)["nodes"]["spark-a"]["journal"][0]["what"].startswith("directory ")
