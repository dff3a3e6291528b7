"""The configuration for a client: the endpoint as seen from the user's machine, and the running model."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
import yaml
from docgen import json_schemas

from sparkcluster.cli import common
from sparkcluster.cli import main as frame
from sparkcluster.endpoint.clients import CLIENTS
from sparkcluster.errors import HostTimeout
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.hosts.resolve import SshTarget
from sparkcluster.inspect import connect
from sparkcluster.spec import consent
from sparkcluster.spec.playbook import Playbook
from tests.unit import golden

FULL = {
    "name": "coder",
    "model": {"id": "Qwen/Qwen3.6-35B-A3B-FP8"},
    "image": "vllm/vllm-openai:v0.28.0",
    "served_name": "qwen3.6-35b-a3b",
    "args": {
        "max-model-len": 131072, "reasoning-parser": "qwen3", "enable-auto-tool-choice": True,
        "tool-call-parser": "qwen3_xml",
    },
    "request": {
        "temperature": 0.7, "top_k": 20, "max_tokens": 20_000, "chat_template_kwargs": {"enable_thinking": False},
        "note": "presence_penalty up to 2 against repetitions",
    },
}  # fmt: skip
BARE = {
    "name": "bare",
    "model": {"id": "Qwen/Qwen3.6-27B"},
    "image": "vllm/vllm-openai:v0.11.0",
    "args": {"max-model-len": 32768},
}
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def no_ssh_config(monkeypatch):
    """Nodes are reached as in the inventory: the ssh_config of the user who runs the tests is ignored."""

    def ssh_target(node):
        if node.connection == "local":
            return None
        jump = SshTarget(node.ssh.jump, "j") if node.ssh.jump else None
        return SshTarget({"alias": "spark-1.lan"}.get(node.host, node.host), node.ssh.user or "me", jump=jump)

    monkeypatch.setattr(connect, "ssh_target", ssh_target)
    monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet({}))
    monkeypatch.setattr(consent, "unaccepted", lambda *_: [])


@pytest.fixture
def inventory(tmp_path, monkeypatch):
    """``inventory(playbook, api, node)``: an inventory in the current directory."""
    monkeypatch.chdir(tmp_path)

    def make(playbook=FULL, api=None, **node):
        (tmp_path / f"{playbook['name']}.yaml").write_text(yaml.safe_dump(playbook))
        nodes = [{"host": "192.168.1.11", "name": "spark-1", **node}]
        written = {"cluster": "desk", "nodes": nodes, "playbook": f"{playbook['name']}.yaml", "api": api or {}}
        (tmp_path / "desk.yaml").write_text(yaml.safe_dump(written))
        return "desk.yaml"

    return make


def run(capsys, *words, code=0):
    assert frame.guarded(["connect", *words]) == code
    return capsys.readouterr()


@pytest.mark.parametrize("name", CLIENTS)
def test_the_block_and_notes_of_each_client(name, inventory, capsys):
    """``full`` has all features for agents and its key in a file; ``bare`` has none and listens on loopback."""
    cases = {
        "full": (FULL, {"host": "management", "key": {"file": "~/.config/spark.key"}}),
        "bare": (BARE, {"key": {"env": "SPARK_API_KEY"}}),
    }
    for case, (playbook, api) in cases.items():
        out, err = run(capsys, inventory(playbook, api), "--client", name)
        text = f"--- stdout\n{out}--- stderr\n{err}"
        golden.check_text(golden.ROOT / "connect" / f"{name}-{case}.txt", text)


@pytest.mark.parametrize(
    ("api", "node", "url", "tunnel"),
    [
        ({"host": "management"}, {}, "http://192.168.1.11:8000/v1", None),
        ({"host": "management"}, {"host": "alias"}, "http://spark-1.lan:8000/v1", None),
        ({"host": "interconnect"}, {}, None, None),
        ({"host": "10.1.2.3", "port": 9000}, {}, "http://10.1.2.3:9000/v1", None),
        ({"host": "0.0.0.0"}, {}, "http://192.168.1.11:8000/v1", None),
        ({}, {}, "http://127.0.0.1:8000/v1", "ssh -N -L 8000:127.0.0.1:8000 192.168.1.11"),
        (
            {"port": 9000, "host": "::1"},
            {"ssh": {"user": "nvidia", "port": 2222}},
            "http://127.0.0.1:9000/v1",
            "ssh -N -L '9000:[::1]:9000' -p 2222 nvidia@192.168.1.11",
        ),
        (
            {"host": "management"},
            {"ssh": {"jump": "gate"}},
            "http://127.0.0.1:8000/v1",
            "ssh -N -L 8000:192.168.1.11:8000 -J gate 192.168.1.11",
        ),
    ],
)
def test_the_address_is_the_one_that_the_users_machine_reaches(inventory, capsys, api, node, url, tunnel):
    found = json.loads(run(capsys, inventory(api=api, **node), "--json").out)
    assert (found["endpoint"], found["tunnel"]) == (url, tunnel)


@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if not client.watches])
def test_the_key_is_printed_only_on_request(inventory, capsys, tmp_path, name):
    (tmp_path / "k").write_text(SECRET)
    path = inventory(api={"key": {"file": str(tmp_path / "k")}})
    assert SECRET not in "".join(run(capsys, path, "--client", name))
    out, err = run(capsys, path, "--client", name, "--show-key")
    assert SECRET not in err
    # VS Code and Hermes read it from other files, but also accept it
    assert SECRET in out


def test_without_a_client_the_key_itself_is_printed_only_on_request(inventory, capsys, tmp_path):
    (tmp_path / "k").write_text(SECRET)
    path = inventory(api={"key": {"file": str(tmp_path / "k")}})
    assert f"key {tmp_path / 'k'}\n" in run(capsys, path).out
    assert f"key {SECRET}\n" in run(capsys, path, "--show-key").out
    values = [json.loads(run(capsys, path, "--json", *words).out)["key"]["value"] for words in ((), ("--show-key",))]
    assert values == [None, SECRET]


def test_a_group_is_chosen_by_name(inventory, capsys, tmp_path):
    path = tmp_path / inventory(api={"host": "management"})
    written = yaml.safe_load(path.read_text())
    written["nodes"].append({"host": "192.168.1.12", "name": "spark-2"})
    written["groups"] = [{"name": "left", "nodes": ["spark-1"]}, {"name": "right", "nodes": ["spark-2"]}]
    path.write_text(yaml.safe_dump(written))
    for words, host in (([], 11), (["--group", "right"], 12)):
        assert f"//192.168.1.{host}:" in run(capsys, "desk.yaml", *words).out.splitlines()[0].split("  model ")[0]
    both = "OPENAI_API_BASE_URLS='http://192.168.1.11:8000/v1;http://192.168.1.12:8000/v1'"
    assert both in run(capsys, "desk.yaml", "--client", "open-webui").out
    assert "192.168.1.11" not in run(capsys, "desk.yaml", "--client", "open-webui", "--group", "right").out
    assert "its groups: left, right" in run(capsys, "desk.yaml", "--group", "middle", code=2).err


def test_a_model_name_is_quoted_in_pasted_commands(inventory, capsys):
    name = "a b'$(reboot)`x`;y"
    path = inventory({**FULL, "model": {"path": f"/m/{name}"}, "served_name": None})
    words = {
        client: shlex.split(run(capsys, path, "--client", client).out) for client in ("aider", "claude-code", "curl")
    }
    assert words["aider"][-1] == f"openai/{name}"
    assert f"ANTHROPIC_DEFAULT_OPUS_MODEL={name}" in words["claude-code"]
    assert json.loads(words["curl"][-1])["model"] == name
    read = {
        client: yaml.safe_load(run(capsys, path, "--client", client).out) for client in ("continue", "hermes", "vscode")
    }
    assert read["continue"]["models"][0]["model"] == name
    assert read["hermes"]["model"]["default"] == name
    assert read["vscode"][0]["models"][0]["id"] == name


def test_the_running_release_counts_and_not_the_inventory(world, inventory, capsys, monkeypatch):
    """After ``upgrade --playbook`` the two differ; command-line options apply to that playbook."""
    one = world()
    one.staged()
    one.spec = dataclasses.replace(one.spec, playbook=Playbook.model_validate(FULL))
    plan = one.plan(7)
    one.run(plan).record(plan, 7)
    answers = {name: facts.model_dump(mode="json") for name, facts in one.facts.items()}
    nodes = Fleet({name: FakeHost(name).program("probe", lambda _, said=said: said) for name, said in answers.items()})
    monkeypatch.setattr(common, "fleet_of", lambda *_: nodes)
    path = Path(inventory(BARE))
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"cluster": one.spec.inventory.cluster}))
    out, err = run(capsys, str(path), "--client", "curl")
    assert '"model": "qwen3.6-35b-a3b"' in out
    assert "note: release 7 serves qwen3.6-35b-a3b of playbook coder; the inventory has" in " ".join(err.split())
    found = json.loads(run(capsys, str(path), "--json").out)
    assert (found["model"], found["context"], found["tools"]) == ("qwen3.6-35b-a3b", 131072, True)
    assert found["release"] == 7


def test_without_an_answer_the_inventory_is_used_and_that_is_reported(inventory, capsys, monkeypatch):
    silent = FakeHost("spark-1").on(answer=HostTimeout("spark-1: no route to host", node="spark-1"))
    monkeypatch.setattr(common, "fleet_of", lambda *_: Fleet({"spark-1": silent}))
    out, err = run(capsys, inventory(), "--client", "curl")
    assert '"model": "qwen3.6-35b-a3b"' in out
    assert "note: desk did not answer; these are the settings of the inventory" in err


@pytest.fixture
def several(tmp_path, monkeypatch):
    """``several(*entries)``: an inventory of two Sparks with these models, in the current directory; by default one of
    each kind and two for chat, the small one first."""
    monkeypatch.chdir(tmp_path)

    def written(name, kind, served, **args):
        (tmp_path / f"{name}.yaml").write_text(
            yaml.safe_dump(
                {**BARE, "name": name, "served_name": served, "args": {"max-model-len": 65536, **kind, **args}}
            )
        )
        return f"{name}.yaml"

    def make(*entries, api=None):
        pooling = {"runner": "pooling"}
        entries = entries or (
            {"playbook": written("tiny", {}, "tiny"), "nodes": ["spark-1"], "name": "small"},
            {"playbook": "gpt-oss-120b"},
            {"playbook": written("vectors", pooling, "vectors"), "nodes": ["spark-2"], "name": "embed"},
            {"playbook": written("scores", {**pooling, "convert": "classify"}, "scores"), "nodes": ["spark-1"]},
        )
        nodes = [{"host": f"192.168.1.1{at}", "name": f"spark-{at}"} for at in (1, 2)]
        api = {"host": "management", "key": {"file": "~/.config/spark.key"}} if api is None else api
        inventory = {"cluster": "desk", "nodes": nodes, "models": list(entries), "api": api}
        (tmp_path / "desk.yaml").write_text(yaml.safe_dump(inventory))
        return "desk.yaml"

    return make


@pytest.mark.parametrize("name", ["claude-code", "continue", "hermes", "open-webui", "vscode"])
def test_a_client_gets_every_usable_model_with_its_role(name, several, capsys):
    """The largest chat model is the first, at any position; the small one gets the small roles."""
    out, err = run(capsys, several(), "--client", name)
    golden.check_text(golden.ROOT / "connect" / f"{name}-several.txt", f"--- stdout\n{out}--- stderr\n{err}")


def test_continue_gets_its_roles_and_no_reasoning_model_for_autocompletion(several, capsys):
    read = yaml.safe_load(run(capsys, several(), "--client", "continue").out)["models"]
    assert [(each["model"], each["provider"], each["roles"]) for each in read] == [
        ("gpt-oss-120b", "openai", ["chat", "edit", "apply"]),
        ("tiny", "openai", ["chat", "edit", "apply", "autocomplete"]),
        ("vectors", "openai", ["embed"]),
        ("scores", "vllm", ["rerank"]),
    ]
    entries = ({"playbook": "gpt-oss-120b"}, {"playbook": "gpt-oss-20b", "nodes": ["spark-1"]})
    read = yaml.safe_load(run(capsys, several(*entries), "--client", "continue").out)["models"]
    assert [each["roles"] for each in read] == [["chat", "edit", "apply"]] * 2


@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("embed", "8002/v1/embeddings", {"model": "vectors", "input": "Hello"}),
        ("scores", "8003/v1/rerank", {"model": "scores", "query": "Hello", "documents": ["Good morning", "Goodbye"]}),
    ],
)
def test_a_single_model_is_queried_at_the_path_of_its_kind(several, capsys, model, path, body):
    words = shlex.split(run(capsys, several(), "--client", "curl", "--model", model).out)
    assert words[3].endswith(path)
    assert json.loads(words[-1]) == body
    compile(run(capsys, "desk.yaml", "--client", "openai", "--model", model).out, "pasted", "exec")
    refused = run(capsys, "desk.yaml", "--client", "cline", "--model", model, code=2).err
    assert "Cline needs a chat model" in refused
    assert "--client openai or curl takes any kind" in refused


def test_json_has_the_first_models_keys_and_all_models(several, capsys):
    found = json.loads(run(capsys, several(), "--json").out)
    assert (found["model"], found["endpoint"]) == ("tiny", "http://192.168.1.11:8000/v1")
    assert [(each["name"], each["kind"], each["endpoint"]) for each in found["models"]] == [
        ("small", "chat", "http://192.168.1.11:8000/v1"),
        ("gpt-oss-120b", "chat", "http://192.168.1.11:8001/v1"),
        ("embed", "embeddings", "http://192.168.1.12:8002/v1"),
        ("scores", "rerank", "http://192.168.1.11:8003/v1"),
    ]
    json_schemas.validate("connect", found)


def test_each_model_behind_ssh_has_a_separate_tunnel(several, capsys):
    err = run(capsys, several(api={})).err
    assert "ssh -N -L 8000:127.0.0.1:8000 192.168.1.11" in err
    assert "ssh -N -L 8002:127.0.0.1:8002 192.168.1.12" in err


@pytest.mark.parametrize("flag", ["--group", "--playbook", "--set"])
def test_a_client_for_a_single_model_needs_its_name(several, capsys, flag):
    err = run(capsys, several(), flag, "a.b=c", code=2).err
    assert f"{flag} is for one model" in err
    assert "add --model NAME, one of small, gpt-oss-120b, embed, scores" in err


def test_the_page_on_models_shows_the_printed_output(capsys):
    root = golden.ROOT.parents[1]
    out = run(capsys, str(root / "inventory/models-two-spark.yaml"), "--client", "open-webui").out
    assert f"```\n{out}```\n" in (root / "docs/internals/clients.md").read_text()


def test_a_gateway_of_one_model_takes_flags_of_one_model(several, capsys):
    with_gateway = several({"playbook": "gpt-oss-120b"})
    Path(with_gateway).write_text(Path(with_gateway).read_text() + "gateway: {port: 9000}\n")
    found = json.loads(run(capsys, with_gateway, "--json", "--set", "args.max-model-len=8192").out)
    assert found["endpoint"] == "http://192.168.1.11:9000/v1"


def test_behind_a_gateway_all_models_share_its_address(several, capsys):
    with_gateway = several()
    Path(with_gateway).write_text(Path(with_gateway).read_text() + "gateway: {port: 9000}\n")
    found = json.loads(run(capsys, with_gateway, "--json").out)
    assert {each["endpoint"] for each in found["models"]} == {"http://192.168.1.11:9000/v1"}
    assert (
        "OPENAI_API_BASE_URLS=http://192.168.1.11:9000/v1 " in run(capsys, with_gateway, "--client", "open-webui").out
    )
    assert "the same address also serves tiny" in run(capsys, with_gateway, "--client", "claude-code").err
    Path(with_gateway).write_text(Path(several(api={})).read_text() + "gateway: {port: 9000}\n")
    err = run(capsys, with_gateway).err
    assert err.count("ssh -N -L") == 1
    assert "ssh -N -L 9000:127.0.0.1:9000 192.168.1.11" in err


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", False), ("management", True)])
def test_an_engine_reachable_without_the_gateway_is_reported(world, host, told):
    one = world(api={"host": host})
    one.staged()
    plan = one.plan(7)
    one.run(plan).record(plan, 7)
    answers = {name: facts.model_dump(mode="json") for name, facts in one.facts.items()}
    nodes = Fleet({name: FakeHost(name).program("probe", lambda _, said=said: said) for name, said in answers.items()})
    _, _, notes = connect.serving(nodes, dataclasses.replace(one.spec, gateway_node="alpha"))
    (url,) = plan.as_json()["endpoints"].values()
    assert any(url in note and "if alpha is down" in note for note in notes) is told
