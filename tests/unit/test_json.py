"""What commands print with --json is what docs/json.schema.json documents, and no more.

Commands that need a cluster are compared by the lab's tests, each time one is run with ``--json``; what they print of facts
alone is compared here too.
"""

from __future__ import annotations

import json

import pytest
from docgen import json_schemas

from sparkcluster.cli.main import guarded
from sparkcluster.errors import FoundErrors, LaunchError, OtherPlan, Problem, SpecError
from sparkcluster.findings import Finding
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect import ask as asking
from sparkcluster.inspect import doctor as doctoring
from sparkcluster.inspect import preflight as checking
from sparkcluster.inspect.history import history
from sparkcluster.inspect.models import models
from sparkcluster.inspect.status import status
from sparkcluster.plan.cost import Difference
from sparkcluster.report import Report


@pytest.fixture
def printed(capsys):
    """``printed(*words)``: the document that a command prints, compared with its schema."""

    def run(*words, code=0):
        assert guarded([*words, "--json"]) == code
        document = json.loads(capsys.readouterr().out)
        json_schemas.validate("error" if "error" in document else words[0], document)
        return document

    return run


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
PLAYBOOK = "name: tiny\nmodel: {id: a/tiny}\nimage: vllm/vllm-openai:v0.20.0\n"
INVENTORY = "cluster: atlas\nnodes: [{host: 192.168.86.11}]\nplaybook: tiny.yaml\n"


def test_what_is_said_of_files(printed, tmp_path):
    (tmp_path / "tiny.yaml").write_text(PLAYBOOK)
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "run.sh").write_text("docker run --gpus all vllm/vllm-openai:v0.20.0 --model a/tiny\n")
    printed("checks", "--explain", "NET-001")
    printed("playbooks")
    printed("completion", "bash")
    printed("lint", str(tmp_path / "tiny.yaml"), str(tmp_path / "inventory.yaml"))
    printed("import", str(tmp_path / "run.sh"))
    printed("connect", str(tmp_path / "inventory.yaml"))
    printed("key", str(tmp_path / "inventory.yaml"), "--file", str(tmp_path / "key"))
    printed("fit", str(tmp_path / "tiny.yaml"), "--config", str(tmp_path / "config.json"))


@pytest.fixture
def serving(world):
    """A cluster that serves release 3, and hosts that answer for it."""
    one = world()
    plan = one.plan(3)
    one.run(plan).record(plan, 3)
    rank = {"name": "r", "state": "running", "running": True, "labels": {}, "log": ["a"]}
    answers = {
        "observe": {"ranks": [rank], "gpus": [], "traffic": [], "observe_s": 0.1},
        "ask": {"done": {"content": "x", "reasoning": "", "finish_reason": "stop", "usage": {"completion_tokens": 1},
                         "ttft_s": 0.1, "total_s": 0.2, "status": 200, "tool_calls": []}},
        "models": {"models": [{"repository": "o/m", "path": "/h/m", "bytes": 5, "commits": ["c"], "used_by": ["atlas"]}]},
        "image": {"python": "python3", "python_version": "3.12.11", "platform": "linux_aarch64", "vllm_version": "0.18.0"},
    }  # fmt: skip
    hosts = {}
    for name, facts in one.facts.items():
        hosts[name] = FakeHost(name).program("probe", json.loads(facts.model_dump_json()))
        hosts[name].program("records", {"records": [facts.release.record]})
        for program, answer in answers.items():
            hosts[name].program(program, answer)
    return Fleet(hosts), one


def test_what_is_said_of_a_cluster(serving, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKCLUSTER_CACHE", str(tmp_path))
    fleet, one = serving
    found = {
        "status": status(fleet, one.spec),
        "releases": {"cluster": "atlas", **history(fleet, one.spec)},
        "models": {"cluster": "atlas", **models(fleet, one.spec).as_json(), "removed": {"o/m": {"alpha": 5}}},
        "preflight": checking.preflight(fleet, one.spec, checking.Options(), Report()).as_json() | {"asks": []},
        "doctor": doctoring.doctor(fleet, one.spec, 30.0, Report()).as_json(),
        "plan": {
            **one.plan().as_json(),
            "provisional": False,
            "findings": [],
            "differences": [Difference("image", "default", ("alpha: image a → b",), "switch").as_json()],
            "after_ready": [],
        },
        "ask": asking.document(asking.ask(fleet, one.spec, "Hello", lambda *_: None, group=None, max_tokens=8)),
    }
    for name, document in found.items():
        json_schemas.validate(name, json.loads(json.dumps(document)))
    assert found["status"]["state"] == "serving"


def test_errors(printed, tmp_path):
    assert printed("status", str(tmp_path / "missing.yaml"), code=2)["error"]["kind"]
    for error in (
        SpecError([Problem("a.yaml", 1, 2, "cluster", "missing")]),
        FoundErrors([Finding("NET-014", "error", "MTU differs")]),
        LaunchError("the model did not answer", log=["one", "two"]),
        OtherPlan("another plan serves", ["image: a -> b"], hint="down, then up"),
    ):
        json_schemas.validate("error", error.as_json())
