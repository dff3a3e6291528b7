"""``sparkcluster preflight`` as its user meets it: report, JSON, JUnit, exit codes; the nodes are scripted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sparkcluster.cli import common, findings_view, junit, setup
from sparkcluster.cli.main import guarded
from sparkcluster.errors import HostTimeout
from sparkcluster.facts.base import Unread
from sparkcluster.findings import Finding
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet

INVENTORY = """
cluster: atlas
nodes:
  - {name: alpha, host: 192.168.86.11}
  - {name: beta, host: 192.168.86.12}
playbook: gpt-oss-120b
"""
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")


@pytest.fixture
def asked(tmp_path, monkeypatch, spark):
    """``asked(*words, failing=…, beta={facts})``: exit code of a preflight; ``asked.hosts`` are who it asked."""
    path = tmp_path / "atlas.yaml"
    path.write_text(INVENTORY)
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words, failing=(), beta=None):
        run.hosts = {}
        for number, name in ((11, "alpha"), (12, "beta")):
            host = run.hosts[name] = FakeHost(name)
            facts = spark(
                {RAILS[0]: f"192.168.177.{number}/24", RAILS[1]: f"192.168.178.{number}/24"},
                management=f"192.168.86.{number}/24",
                **(beta or {} if name == "beta" else {}),
            )
            if name in failing:
                error = HostTimeout(f"{name}: sshd said nothing for 10 s", node=name, hint=f"ssh -v {name} true")
                host.run = lambda *_, error=error, **__: (_ for _ in ()).throw(error)
                host.stream = host.run
            else:
                host.program("probe", json.loads(facts.model_dump_json()))
        monkeypatch.setattr(common, "connect_fleet", lambda _: Fleet(run.hosts))
        return guarded(["preflight", str(path), *map(str, words)])

    run.inventory = path
    return run


def test_ready_is_exit_0_and_the_last_line_says_so(asked, capsys):
    assert asked() == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("ready: 2 nodes, ")
    assert out.startswith("2 nodes, a direct cable\n")
    assert "probe: 2 nodes" in err
    assert "\x1b" not in out


def test_an_error_is_exit_1_under_its_node_with_what_to_type(asked, capsys):
    assert asked(beta={"infiniband_devices": False}) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    at = lines.index("beta")
    assert lines[at + 1].startswith("  error: NET-010 ")
    assert "    hint: sudo modprobe -a ib_uverbs rdma_ucm" in lines
    assert "✗ NET-010" in out
    assert lines[-1].startswith("not ready: 1 error on beta")
    assert [line for line in lines if "hint:" not in line and len(line) > 80] == []


def test_why_is_told_where_it_is_asked_for(asked, capsys):
    asked(beta={"infiniband_devices": False})
    assert "    why: " not in capsys.readouterr().out
    asked("-v", beta={"infiniband_devices": False})
    assert "    why: " in capsys.readouterr().out


def test_fix_runs_the_steps_of_the_findings_alone(asked, monkeypatch):
    """With the flags of preflight, which has no --only, --node or --undo."""
    runs = []
    monkeypatch.setattr(setup, "on_nodes", lambda inventory, options: runs.append((inventory.cluster, options)) or 0)
    refused = Unread(unread="permission denied: /var/run/docker.sock")
    assert asked("--fix", "--yes", "-v", beta={"docker": refused}) == 0
    assert runs == [("atlas", setup.Options(asked.inventory, only=("docker-group",), yes=True, verbose=True))]


def test_json_is_one_document_with_findings_and_facts(asked, capsys):
    assert asked("--json", beta={"infiniband_devices": False}) == 1
    out, _ = capsys.readouterr()
    document = json.loads(out)
    assert document["ok"] is False
    assert set(document["nodes"]) == {"alpha", "beta"}
    assert any(one["code"] == "NET-010" and one["node"] == "beta" for one in document["findings"])


def test_json_lines_are_events_and_then_the_document(asked, capsys):
    assert asked("--json-lines") == 0
    *events, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["name"] for one in events if one["event"] == "step"][:2] == ["probe", "check"]
    assert last["ok"] is True


def test_ignore_demotes_and_the_exit_code_follows(asked, capsys):
    assert asked("--ignore", "NET-010", beta={"infiniband_devices": False}) == 0
    out = capsys.readouterr().out
    assert "warning: NET-010" in out
    assert "! NET-010" in out


def test_an_unknown_code_is_exit_2_with_the_nearest(asked, capsys):
    assert asked("--ignore", "NTE-010") == 2
    err = capsys.readouterr().err
    assert "did you mean NET-010?" in err
    assert not any(host.calls for host in asked.hosts.values())


def test_a_node_that_does_not_answer_has_one_finding_and_the_drawing_says_so(asked, capsys):
    assert asked(failing=["beta"]) == 1
    out = capsys.readouterr().out
    assert out.count("SSH-003") == 2  # in the drawing and as a finding
    assert "did not answer" in out
    assert out.splitlines()[-1].startswith("not ready: 1 error on beta")


@pytest.mark.parametrize("place", ["missing/report.xml", ".", "pipe"])
def test_a_report_that_cannot_be_written_is_told_before_anybody_is_asked(place, asked, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert asked("--junit", tmp_path / place) == 2
    err = capsys.readouterr().err
    assert "error: " in err
    assert "hint: " in err
    assert not any(host.calls for host in asked.hosts.values())


def cases(path: Path):
    root = ET.parse(path).getroot()
    return root, {(case.get("classname"), case.get("name").split(" ")[0]): case for case in root.iter("testcase")}


def test_junit_has_a_case_per_check_and_node(asked, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text("an older one")
    assert asked("--junit", report, beta={"infiniband_devices": False}) == 1
    root, found = cases(report)
    failure = found["preflight.beta", "NET-010"].find("failure")
    assert failure.get("type") == "NET-010"
    assert "hint: sudo modprobe" in failure.text
    assert found["preflight.alpha", "NET-010"].find("failure") is None
    assert root.get("failures") == "1"
    assert int(root.get("tests")) == len(list(root.iter("testcase")))
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".report")] == []


def test_junit_skips_the_checks_of_a_node_that_did_not_answer(asked, tmp_path):
    report = tmp_path / "report.xml"
    assert asked("--junit", report, failing=["beta"]) == 1
    _, found = cases(report)
    assert found["preflight.beta", "NET-010"].find("skipped") is not None
    assert found["preflight.beta", "SSH-003"].find("failure") is not None


def test_junit_is_xml_whatever_a_node_says(asked, tmp_path):
    report = tmp_path / "report.xml"
    said = "\x1b[31m<&>\x00 no driver\x07"
    asked("--junit", report, beta={"gpus": {"unread": said}})
    _, found = cases(report)
    text = found["preflight.beta", "HOST-003"].find("failure").text
    assert "<&>" in text
    assert "\x1b" not in text


def test_what_xml_has_no_place_for_is_replaced():
    assert junit._legal("a\x00\ud800\x1b\tb\U0001f600") == "a\ufffd\ufffd\ufffd\tb\U0001f600"


@pytest.mark.parametrize(
    ("findings", "line"),
    [
        ([], "ready: 2 nodes, 31 checks, 0.9 s"),
        ([("warning", "a"), ("info", "a")], "ready: 2 nodes, 31 checks, 1 warning, 1 note (shown with -v), 0.9 s"),
        ([("error", "b"), ("error", "b"), ("warning", "a")], "not ready: 2 errors on b, 1 warning"),
        ([("error", "b"), ("error", None)], "not ready: 1 error on b, 1 about the cluster"),
        ([("error", name) for name in "abcdee"], "not ready: 1 error on a, 1 on b, 1 on c, 3 on 2 other nodes"),
    ],
)
def test_verdict(findings, line):
    made = [Finding("NET-001", severity, "wrong", node) for severity, node in findings]
    assert findings_view.verdict(made, 2, 31, 0.94) == line


def test_an_encoding_without_lines_gets_ascii(asked, capsys, monkeypatch):
    monkeypatch.setattr(findings_view, "draws", lambda: False)
    assert asked() == 0
    assert capsys.readouterr().out.isascii()


def test_an_interrupt_is_one_line_and_130(asked, capsys, monkeypatch):
    from sparkcluster.inspect import preflight as engine

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "examine", interrupted)
    assert asked() == 130
    assert [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("probe", "check"))] == [
        "error: interrupted"
    ]
