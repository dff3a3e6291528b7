"""Output with --json matches docs/json.schema.json, without additional keys.

The lab's tests compare commands that need a cluster, each time one is run with ``--json``.
"""

from __future__ import annotations

import json

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.errors import FoundErrors, LaunchError, OtherPlan, Problem, SpecError
from sparkcluster.findings import Finding


@pytest.fixture
def printed(capsys):
    """``printed(*words)``: the document that a command prints, compared with its schema."""

    def run(*words, code=0):
        assert guarded([*words, "--json"]) == code
        document = json.loads(capsys.readouterr().out)
        json_schemas.validate("error" if "error" in document else words[0], document)
        return document

    return run


PLAYBOOK = "name: tiny\nmodel: {id: a/tiny}\nimage: vllm/vllm-openai:v0.20.0\n"
INVENTORY = "cluster: atlas\nnodes: [{host: 192.168.86.11}]\nplaybook: tiny.yaml\n"


def test_documents_of_commands_about_files_match_the_schema(printed, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "tiny.yaml").write_text(PLAYBOOK)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "run.sh").write_text("docker run --gpus all vllm/vllm-openai:v0.20.0 --model a/tiny\n")
    printed("checks", "NET-001")
    printed("playbooks")
    printed("completion", "bash")
    printed("lint", str(tmp_path / "tiny.yaml"), str(tmp_path / "inventory.yaml"))
    printed("import", str(tmp_path / "run.sh"))
    printed("connect", str(tmp_path / "inventory.yaml"))
    printed("key", str(tmp_path / "inventory.yaml"), "--file", str(tmp_path / "key"))
    printed("fit", "gpt-oss-20b")


def test_error_documents(printed, tmp_path):
    assert printed("status", str(tmp_path / "missing.yaml"), code=2)["error"]["kind"]
    for error in (
        SpecError([Problem("a.yaml", 1, 2, "cluster", "missing")]),
        FoundErrors([Finding("NET-006", "error", "MTU differs")]),
        LaunchError("the model did not answer", log=["one", "two"]),
        OtherPlan("another plan serves", ["image: a -> b"], hint="down, then up"),
    ):
        json_schemas.validate("error", error.as_json())
