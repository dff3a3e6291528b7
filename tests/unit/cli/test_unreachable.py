"""If no node is reachable, every command reports each node, and none crashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkcluster.cli import common
from sparkcluster.cli.main import guarded
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet

INVENTORY = """
cluster: away
nodes:
  - {host: no-such-host.invalid, name: one}
  - {host: 127.0.0.1, name: two, connection: ssh, ssh: {port: 1}}
playbook: gpt-oss-120b
"""

COMMANDS = ("up", "plan", "preflight", "status", "down", "releases", "models", "stage", "logs", "ask")


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unreachable_node_exits_1_and_names_the_problem(command, inventory, capsys):
    assert guarded([command, inventory, *(["hello"] if command == "ask" else [])]) == 1
    said = "".join(capsys.readouterr())
    assert "internal" not in said
    assert "does not resolve" in said or "connection refused" in said
    assert "Traceback" not in said
    # A release may be running on unreachable nodes, so a start is not advised.
    assert f"sparkcluster up {inventory}" not in said


@pytest.mark.parametrize("command", [["up"], ["plan"], ["preflight"], ["upgrade", "--dry-run"]])
def test_a_secret_that_is_not_set_is_reported_before_ssh_works(command, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SPARK_API_KEY", raising=False)
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY + "api: {key: {env: SPARK_API_KEY}}\n")
    assert guarded([*command, str(path), "--json"]) == 1
    found = {(one["code"], one["node"]) for one in json.loads(capsys.readouterr().out)["findings"]}
    assert {("SPEC-010", None), ("SSH-001", "one"), ("SSH-002", "two")} <= found


@pytest.mark.parametrize("command", ["releases", "models", "enable", "disable", "rollback", "logs", "down", "ask"])
def test_every_node_that_does_not_answer_is_named_with_its_cause(command, inventory, capsys):
    assert guarded([command, inventory, *(["hello"] if command == "ask" else [])]) == 1
    said = capsys.readouterr().err
    assert "does not resolve" in said
    assert "connection refused" in said
    assert "✓ connect" not in said


def test_a_node_of_status_has_a_word_for_its_state(inventory, capsys):
    assert guarded(["status", inventory, "--json"]) == 1
    assert [node["state"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["unreachable"] * 2


@pytest.mark.parametrize("command", ["releases", "models"])
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_a_list_from_some_of_the_nodes_is_shown_and_exits_with_1(command, flag, inventory, world, monkeypatch, capsys):
    facts = world().facts["alpha"].model_dump(mode="json")
    one = FakeHost("one").program("probe", facts).program("releases", {"records": []}).program("models", {"models": []})
    monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet({"one": one, "two": FakeHost("two")}))
    assert guarded([command, inventory, *flag]) == 1
    assert f"{command} failed on two" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("command", "result"), [("plan", "no plan can be made"), ("stage", "nothing was changed")])
def test_the_error_says_what_that_means_for_the_command(command, result, inventory, capsys):
    assert guarded([command, inventory]) == 1
    assert f"error: 2 errors; {result}\n" in capsys.readouterr().err


def test_the_state_is_unknown_and_not_the_cluster(inventory, capsys):
    assert guarded(["doctor", inventory]) == 1
    assert "\nthe state of away is unknown: " in capsys.readouterr().out


def test_all_nodes_are_checked(inventory, capsys):
    assert guarded(["up", inventory, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    errors = [finding for finding in document["findings"] if finding["severity"] == "error"]
    assert {(one["code"], one["node"]) for one in errors} == {("SSH-001", "one"), ("SSH-002", "two")}
