"""A command with several models: one run per model, and the overall result."""

from __future__ import annotations

import argparse
import json

import pytest

from sparkcluster import hints
from sparkcluster.cli import common, down, gateway, releases, restart, saved, status
from sparkcluster.cli.common import emitted, load_spec
from sparkcluster.cli.main import guarded
from sparkcluster.errors import Interrupted, LaunchError, NotServing, SpecError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.spec.load import load_all

TEXT = """cluster: home
nodes:
- {host: 10.0.0.1, name: spark-1}
- {host: 10.0.0.2, name: spark-2}
models:
- playbook: gpt-oss-120b
- {playbook: gpt-oss-20b, nodes: [spark-2], name: embed}
- {playbook: qwen3.6-35b-a3b-nvfp4, nodes: [spark-1]}
"""
NAMES = ["gpt-oss-120b", "embed", "qwen3.6-35b-a3b-nvfp4"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An inventory with three models; the models that a command ran for; and its function per model."""
    file = tmp_path / "home.yaml"
    file.write_text(TEXT)
    ran: list[str] = []
    outcome: dict[str, BaseException | int] = {}

    def run(args: argparse.Namespace) -> int:
        spec = load_spec(args)
        ran.append(spec.model)
        end = outcome.get(spec.model, 0)
        if isinstance(end, BaseException):
            raise end
        emitted(
            args,
            {
                "cluster": spec.inventory.cluster,
                "state": "serving",
                "next": hints.command_line("sparkcluster up INVENTORY"),
            },
        )
        return end

    for command in (status, down, releases):
        monkeypatch.setattr(command, "run", run)
    return file, ran, outcome


def test_models_are_handled_in_order_and_by_down_in_reverse(home):
    file, ran, _ = home
    assert guarded(["status", str(file)]) == 0
    assert guarded(["down", str(file)]) == 0
    assert ran == [*NAMES, *reversed(NAMES)]


def test_a_failure_of_one_model_leaves_the_others_and_its_hint_names_the_model(home, capsys):
    file, ran, outcome = home
    outcome["embed"] = NotServing("embed is down", hint="sparkcluster up INVENTORY")
    assert guarded(["status", str(file)]) == 1
    assert ran == NAMES
    assert f"sparkcluster up {file} --model embed" in capsys.readouterr().err


def test_an_interrupt_ends_all_models(home):
    file, ran, outcome = home
    outcome["gpt-oss-120b"] = Interrupted("interrupted")
    assert guarded(["status", str(file)]) == 130
    assert ran == NAMES[:1]


def test_json_is_one_document_with_the_keys_of_the_first_model(home, capsys):
    file, _, outcome = home
    outcome["embed"] = LaunchError("it died")
    assert guarded(["status", str(file), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster"], found["state"]) == ("home", "serving")
    assert [each["name"] for each in found["models"]] == NAMES
    assert found["models"][1]["error"]["message"] == "it died"
    assert found["models"][2]["cluster"] == "home-qwen3.6-35b-a3b-nvfp4"
    assert found["models"][2]["next"].endswith(f"--model {NAMES[2]}")


def test_the_model_option_selects_one(home, capsys):
    file, ran, _ = home
    assert guarded(["status", str(file), "--model", "embed", "--json"]) == 0
    assert ran == ["embed"]
    assert "models" not in json.loads(capsys.readouterr().out)
    assert guarded(["status", str(file), "--model", "embd"]) == 2
    assert "embed" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["rollback"], ["up", "--set", "args.x=1"], ["logs", "-f"]])
def test_a_command_for_one_model_asks_which(home, capsys, words):
    file, ran, _ = home
    assert guarded([words[0], str(file), *words[1:]]) == 2
    assert "--model NAME" in capsys.readouterr().err
    assert ran == []


def test_save_writes_into_the_models_entry_and_its_cluster_keeps_its_name(home):
    file, _, _ = home
    before = [each.inventory.cluster for each in load_all(file)]
    assert saved.select(file, {"playbook": "llama-3.3-70b-instruct"}, model=NAMES[0]) == "llama-3.3-70b-instruct"
    assert [each.inventory.cluster for each in load_all(file)] == before
    file.write_text(
        TEXT.replace(
            "- {playbook: qwen3.6-35b-a3b-nvfp4, nodes: [spark-1]}",
            "- playbook: qwen3.6-35b-a3b-nvfp4\n  nodes: [spark-1]",
        )
    )
    with pytest.raises(SpecError, match="embed is also served as"):
        saved.select(file, {"playbook": "gpt-oss-20b"}, model=NAMES[2], dry_run=True)
    chosen = {"playbook": "qwen3-embedding-4b", "image": "own:1", "args.max-model-len": 8192}
    assert saved.select(file, chosen, model=NAMES[2]) == NAMES[2]
    assert [each.inventory.cluster for each in load_all(file)] == before
    assert load_all(file)[2].selected == chosen


@pytest.fixture
def with_gateway(home, monkeypatch):
    """``home`` with a gateway; ``ran`` also has what commands do with it."""
    file, ran, outcome = home
    file.write_text(TEXT + "gateway: {port: 8000}\n")

    def did(name, args, specs, models):
        ran.append(f"gateway {name} {len(models)}")
        if outcome.get("gateway"):
            raise outcome["gateway"]
        emitted(args, {"node": specs[0].gateway_node, "endpoint": "http://a:8000/v1"})
        return 0

    monkeypatch.setattr(gateway, "run", did)
    monkeypatch.setattr(restart, "run", down.run)
    return file, ran, outcome


def test_the_gateway_is_stopped_before_its_models_and_started_after_them(with_gateway):
    file, ran, outcome = with_gateway
    outcome["embed"] = LaunchError("it died")
    assert guarded(["down", str(file)]) == 1
    assert guarded(["restart", str(file), "--json"]) == 1
    assert ran == ["gateway down 0", *reversed(NAMES), *NAMES, "gateway restart 2"]


def test_json_has_the_gateway_in_addition_to_the_models(with_gateway, capsys):
    file, _, outcome = with_gateway
    assert guarded(["status", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gateway"]["endpoint"] == "http://a:8000/v1"
    assert [each["name"] for each in found["models"]] == NAMES
    assert guarded(["restart", str(file), "--model", "embed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["gateway"]["node"]) == ("serving", "spark-1")
    outcome["gateway"] = LaunchError("port 8000 of spark-1 is in use")
    assert guarded(["status", str(file), "--json"]) == 1
    assert "port 8000" in json.loads(capsys.readouterr().out)["gateway"]["error"]["message"]


def test_without_a_gateway_a_model_may_be_named_gateway(home, capsys):
    file, ran, _ = home
    file.write_text(TEXT.replace("name: embed", "name: gateway"))
    assert guarded(["status", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["models"]] == ran
    assert "gateway" in ran


def test_a_model_on_demand_is_loaded_and_unloaded_by_the_gateway(with_gateway, monkeypatch, capsys):
    file, _, _ = with_gateway
    file.write_text(file.read_text().replace("name: embed}", "name: embed, on_demand: {}}"))
    asked = []

    def control(request):
        asked.append((request["method"], request["path"]))
        return {"text": "embed is loading"}

    hosts = {name: FakeHost(name).program("gateway_control", control) for name in ("spark-1", "spark-2")}
    monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet(hosts))
    assert guarded(["load", str(file), "embed"]) == 0
    assert guarded(["unload", str(file), "embed", "--json"]) == 0
    assert asked == [("POST", "/load/embed"), ("POST", "/unload/embed")]
    assert "embed is loading" in capsys.readouterr().out
    assert guarded(["load", str(file), NAMES[0]]) == 2
    assert f"{NAMES[0]} is always on, not on demand" in capsys.readouterr().err
    assert guarded(["load", str(file)]) == 2
    assert "NAME is missing" in capsys.readouterr().err


def test_load_without_models_reports_an_always_on_model_and_suggests_no_foreign_flag(home, capsys):
    file, _, _ = home
    file.write_text(TEXT.partition("models:")[0] + "playbook: gpt-oss-120b\n")
    assert guarded(["load", str(file), "gpt-oss-120b"]) == 2
    said = capsys.readouterr().err
    assert "gpt-oss-120b is always on, not on demand" in said
    assert "--model" not in said
    assert guarded(["unload", str(file), "typo"]) == 2
    said = capsys.readouterr().err
    assert "no model named typo" in said
    assert "sparkcluster down" not in said
