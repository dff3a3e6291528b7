"""``playbooks``: the list and the page of one, with an inventory or without."""

from __future__ import annotations

import json

import pytest

from sparkcluster.cli.main import guarded

# Its playbook is for one Spark, so that no other command takes it; nothing listens there.
INVENTORY = """
cluster: pair
playbook: gpt-oss-20b
ssh: {connect_timeout_s: 1}
nodes: [{host: 127.0.0.1, name: one, connection: ssh, ssh: {port: 1, user: root}}, {host: 127.0.0.2, name: two,
  connection: ssh, ssh: {port: 1, user: root}}]
"""


@pytest.fixture
def printed(capsys, tmp_path, monkeypatch):
    """``printed(*words)``: stdout and stderr of `playbooks`."""
    monkeypatch.chdir(tmp_path)

    def run(*words, code=0):
        assert guarded(["playbooks", *words]) == code
        return capsys.readouterr()

    return run


def test_one_shows_what_it_is_and_what_to_type(printed):
    shown = printed("openai/gpt-oss-120b")
    assert "weights   65.3 GB\n" in shown.out
    assert shown.err.endswith("next: sparkcluster up INVENTORY --playbook openai/gpt-oss-120b\n")


def test_the_list_has_one_line_for_each(printed):
    for words in ((), ("--all",)):
        shown = printed(*words)
        assert "gpt-oss-120b" in shown.out
        assert max(map(len, shown.out.splitlines())) <= 80
    assert "tiny-llama-cpu" in shown.out


def test_an_inventory_whose_playbook_is_for_other_sparks_is_asked_all_the_same(printed, tmp_path):
    """That is who is told to type it; and nodes that do not answer keep nobody from reading the list."""
    (tmp_path / "sparkcluster.yaml").write_text(INVENTORY)
    shown = printed("--sparks", "2")
    assert "llama-3.3-70b-instruct" in shown.out
    assert "STAGED" not in shown.out
    assert "inventory: sparkcluster.yaml (in this directory)" in shown.err
    assert shown.err.count("which weights are staged is unknown") == 2
    (tmp_path / "sparkcluster.yaml").write_text("cluster: [")
    assert json.loads(printed("--inventory", "sparkcluster.yaml", "--json", code=2).out)["error"]["kind"] == "SpecError"
