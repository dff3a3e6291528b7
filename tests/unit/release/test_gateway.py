"""The gateway on nodes with scripted answers: its configuration, its start, and errors."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from docgen import json_schemas

from sparkcluster.cli.gateway import show
from sparkcluster.errors import HostRefused, HostTimeout, LaunchError, StopError, UsageError
from sparkcluster.hosts.fake import FakeHost
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.inspect.cluster import see
from sparkcluster.inspect.gateway import document, of_inventory
from sparkcluster.release import enabled, gateway
from sparkcluster.release.stopping import remove_gateway
from sparkcluster.report import Report
from sparkcluster.spec.load import load_all
from sparkcluster.telemetry.check import Checker
from tests.unit.conftest import World

WRITTEN = """cluster: home
nodes: [{host: 192.168.86.11, name: alpha}, {host: 192.168.86.12, name: beta}]
gateway: {port: 8000}
api: {host: management, key: {env: THE_KEY}}
models:
- {playbook: qwen3-embedding-4b, nodes: [alpha], name: embed}
- {playbook: gpt-oss-20b, nodes: [beta], name: small, on_demand: {idle_s: 600}}
"""
IMAGE = {"reference": "vllm", "id": "sha256:" + "ab" * 32, "size_bytes": 9}
INSIDE = {
    "python": "/usr/bin/python3",
    "python_version": "3.12.3",
    "platform": "manylinux_2_39_aarch64",
    "version": "1",
}
PLACE = {"node": "beta", "address": "192.168.177.12", "port": 29751, "token": "of the door"}
READY = {"embed": {"state": "ready", "last_used_s": 3.0}, "small": {"state": "stopped"}}


class Nodes:
    """alpha and beta: ``facts`` per cluster, ``sent`` steps, and the gateway's answer ``says``."""

    def __init__(self, specs, spark):
        self.specs, self.sent, self.asked, self.ranks = specs, {"alpha": [], "beta": []}, [], {}
        self.says = {"models": READY, "trouble": None}
        self.lacks, self.runs, self.away = [], True, []
        self.others = [{}, {}]  # images of the models
        self.facts = {
            name: spark(
                {"enp1s0f0np0": f"192.168.177.{number}/24", "enP2p1s0f0np0": f"192.168.178.{number}/24"},
                management=f"192.168.86.{number}/24",
                image={**IMAGE, "inside": INSIDE},
            )
            for name, number in (("alpha", 11), ("beta", 12))
        }
        self.records = {}
        for spec in specs:
            labels = [node.label for node in spec.inventory.nodes]
            one = World(spec, {name: self.facts[name] for name in labels}).staged()
            plan = one.plan(1)
            fact = {"number": 1, "plan_hash": plan.hash, "record": one.document(plan, 1)}
            self.records[spec.inventory.cluster] = dict.fromkeys(labels, fact)
        self.fleet = Fleet({name: self.host(name) for name in self.facts})

    def host(self, name):
        def probe(request):
            if name in self.away:
                raise HostTimeout(f"{name} did not answer", node=name)
            image = {**IMAGE, "inside": {**INSIDE, "lacks": self.lacks}}
            more = {"image": image}
            if request["cluster"] == "home-gateway":
                guard = {"runs": self.runs} if [each for each in self.sent[name] if each["do"] == "enable"] else None
                more |= {"ranks": self.ranks.get(name, []), "enabled": guard}
            of_release = {**dict.fromkeys(("layers", "weights")), "companions": {}}
            also = [
                {**of_release, "image": {**image, **other}, "release": self.records[each["cluster"]].get(name)}
                for each, other in zip(request["also"], self.others, strict=False)
            ]
            return self.facts[name].model_dump(mode="json") | json.loads(json.dumps(more)) | {"also": also}

        def agent(request):
            self.sent[name] += request["steps"]
            return {"results": [{"unit": None, "command": ["python3", "guard.py"]} for _ in request["steps"]]}

        def control(request):
            self.asked.append(request["path"])
            return self.says or {"error": "it does not answer: nothing listens"}

        host = FakeHost(name).program("probe", probe).program("agent", agent).program("gateway_control", control)
        return host.program("lease", [{"epoch": 4}, {"granted": 5}]).program("door_place", PLACE)

    def ensure(self, names=("embed", "small")):
        return gateway.ensure(self.fleet, self.specs, names, Report())

    def did(self, name):
        return [each["do"] for each in self.sent[name]]


@pytest.fixture
def nodes(tmp_path, spark, monkeypatch):
    monkeypatch.setenv("THE_KEY", "secret")
    for module in (gateway, enabled):
        monkeypatch.setattr(module, "RETRY_S", 0)
    monkeypatch.setattr(gateway, "READY_S", 0)
    monkeypatch.setattr(enabled, "RUNS_S", 0)
    monkeypatch.setattr(gateway, "standalone", lambda module, **_: f"the program {module}")
    (tmp_path / "home.yaml").write_text(WRITTEN)
    return Nodes(load_all(tmp_path / "home.yaml"), spark)


def test_the_gateway_is_started_from_its_record_with_a_socket_for_models_on_demand(nodes):
    assert nodes.ensure() == "http://192.168.86.11:8000/v1"
    assert nodes.did("beta") == []
    made, run, program, told, start, door = nodes.sent["alpha"]
    assert (made["do"], run["path"].endswith("/home-gateway/run"), program["content"]) == (
        "mkdir",
        True,
        "the program program",
    )
    assert (told["mode"], program["mode"]) == (0o600, 0o644)
    config = json.loads(told["content"])
    assert [model["backends"] for model in config["models"]] == [
        ["http://127.0.0.1:7999"],
        ["http://192.168.177.12:8001"],
    ]
    assert config["models"][1]["sizes"]["beta"] > 10e9
    assert start["do"] == "start-container"
    assert "secret" not in json.dumps(start)
    assert door["config"]["models"] == {"small": PLACE}
    assert door["config"]["socket"].endswith("/home-gateway/run/door.sock")


def test_a_running_gateway_is_reloaded_and_not_restarted(nodes):
    nodes.ensure()
    start = next(each for each in nodes.sent["alpha"] if each["do"] == "start-container")
    words = start["argv"]
    labels = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--label")
    nodes.ranks["alpha"] = [{"name": start["name"], "state": "running", "labels": labels}]
    nodes.sent["alpha"].clear()
    nodes.ensure()
    assert nodes.did("alpha") == ["mkdir", "mkdir", "put", "put", "enable"]
    # On another node it would continue with the old keys, at the old address.
    nodes.ranks = {"beta": nodes.ranks["alpha"]}
    nodes.ensure()
    assert nodes.did("beta") == ["disable", "stop", "delete"]
    remove_gateway(nodes.fleet, see(nodes.fleet, of_inventory(nodes.specs)), Report())
    assert nodes.did("beta")[3:] == ["disable", "stop", "delete"]


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        ({"says": None}, "the gateway on alpha: it does not answer: nothing listens", "docker logs --tail 20 sparkcluster-home-gateway"),
        ({"says": {"models": {"embed": {"state": "failed", "why": "http://127.0.0.1:7999: refused"}}}},
         "does not reach embed: http://127.0.0.1:7999: refused", "sparkcluster status INVENTORY"),
        ({"says": {"models": READY, "trouble": "192.168.86.11:8000: in use"}}, "the gateway on alpha: 192.168.86.11:8000: in use", "docker logs"),
        ({"runs": False}, "the guard of home-gateway on alpha does not run", "on alpha: python3 guard.py"),
    ],
)  # fmt: skip
def test_a_gateway_that_cannot_serve_is_an_error_with_the_command_to_type(nodes, fault, message, hint):
    vars(nodes).update(fault)
    with pytest.raises(LaunchError) as caught:
        nodes.ensure()
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_the_model_that_the_command_changes_may_be_down(nodes):
    nodes.says = {"models": {"embed": {"state": "failed", "why": "refused"}}}
    nodes.ensure(["small"])
    nodes.says = {"models": READY}
    nodes.away = ["beta"]
    nodes.ensure(["embed"])
    (told,) = (each for each in nodes.sent["alpha"][-3:] if each.get("path", "").endswith("config.json"))
    assert [len(model["backends"]) for model in json.loads(told["content"])["models"]] == [1, 0]


def test_replicas_on_nodes_that_answer_keep_serving(nodes, tmp_path, spark):
    groups = "groups: [{name: east, nodes: [alpha]}, {name: west, nodes: [beta]}]"
    (tmp_path / "home.yaml").write_text(WRITTEN.replace("nodes: [alpha]", groups).partition("- {playbook: gpt")[0])
    nodes = Nodes(load_all(tmp_path / "home.yaml"), spark)
    nodes.away = ["beta"]
    nodes.ensure(["embed"])
    (told,) = (each for each in nodes.sent["alpha"] if each.get("path", "").endswith("config.json"))
    (url,) = json.loads(told["content"])["models"][0]["backends"]
    assert url.startswith("http://127.0.0.1:")


def test_down_reports_an_unreachable_gateway_node(nodes):
    nodes.away = ["alpha"]
    with pytest.raises(StopError, match="down failed on alpha"):
        remove_gateway(nodes.fleet, see(nodes.fleet, of_inventory(nodes.specs)), Report())


def test_an_image_that_cannot_run_the_gateway_is_refused_with_the_smallest_that_can(nodes):
    nodes.lacks = ["aiohttp"]
    has = {"inside": {**INSIDE, "lacks": []}}
    nodes.others = [{**has, "reference": "large", "size_bytes": 9}, {**has, "reference": "slim", "size_bytes": 5}]
    with pytest.raises(UsageError, match="lacks aiohttp") as caught:
        nodes.ensure()
    assert "set gateway.image to slim" in caught.value.hint
    assert nodes.did("alpha") == []


def test_status_shows_the_gateways_data_about_each_model(nodes, capsys):
    found = document(nodes.fleet, nodes.specs)
    assert (found["endpoint"], found["why"]) == ("http://192.168.86.11:8000/v1", None)
    embed, small = found["models"]
    assert (embed["state"], embed["last_used_s"], embed["on_demand"]) == ("ready", 3.0, False)
    assert (small["state"], small["planned_bytes"] > 10e9) == ("stopped", True)
    schema = json_schemas.DOCUMENTS["status"]["properties"]["gateway"]
    jsonschema.validate(found, json_schemas.closed(schema))
    show(found, "")
    assert re.search(r"small +stopped +0 +- +45.2 GB", capsys.readouterr().out)
    checker = Checker(nodes.fleet, nodes.specs)
    assert document(nodes.fleet, nodes.specs, checker.see({})[0]) == found
    asked = list(nodes.asked)
    gone = document(
        nodes.fleet, nodes.specs, checker.see({"alpha": HostRefused("alpha: connection refused", node="alpha")})[0]
    )
    assert (gone["why"], gone["endpoint"], nodes.asked) == ("alpha: connection refused", None, asked)
    nodes.says = None
    lost = document(nodes.fleet, nodes.specs)
    assert "does not answer" in lost["why"]
    assert [each["state"] for each in lost["models"]] == ["unknown", "unknown"]
