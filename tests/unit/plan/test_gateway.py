"""The gateway's complete container and document."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from sparkcluster.inspect.gateway import of_inventory
from sparkcluster.plan import gateway
from sparkcluster.plan.release_record import RecordedGroup
from sparkcluster.spec.load import load_all
from sparkcluster.spec.playbook import Verify

WRITTEN = """cluster: home
nodes:
- {host: 192.168.86.11, name: alpha}
- {host: 192.168.86.12, name: beta}
gateway: {port: 8080, keys: {alice: {env: ALICE_KEY, models: [embed]}, bob: {env: BOB_KEY}}}
api: {host: management, key: {env: SPARK_API_KEY}}
models:
- {playbook: gpt-oss-120b, on_demand: {idle_s: 600}, set: {args.max-model-len: 4096}}
- {playbook: qwen3-embedding-4b, nodes: [alpha], name: embed, aliases: [text-embedding]}
"""


@pytest.fixture
def specs(tmp_path):
    def write(more="", port=8080):
        (tmp_path / "home.yaml").write_text(WRITTEN.replace("8080", str(port)) + more)
        return load_all(tmp_path / "home.yaml")

    return write


@pytest.fixture
def facts(spark):
    return on_node(spark)


def on_node(spark, **more):
    return spark({"enp1s0f0np0": "192.168.177.11/24"}, management="192.168.86.11/24", **more)


def image(name="abc"):
    inside = {"python": "/opt/venv/bin/python", "python_version": "3.12.3", "platform": "linux", "version": "1"}
    return {"reference": "vllm", "id": f"sha256:{name * 20}abcd", "inside": inside}


def document(specs, facts, **more):
    plan = {"endpoints": {"all": "http://127.0.0.1:8001/v1"}}
    embed = RecordedGroup("all", 1, "vllm", plan, Verify(), measured={"start_s": 95.0})
    known = {
        "sizes": {"gpt-oss-120b": {"alpha": 5, "beta": None}},
        "room": 9,
        "key": "shared",
        "keys": {"shared": None, "hers": ["embed"], "his": None},
    }
    recorded = {"gpt-oss-120b": {}, "embed": {"all": embed}}
    return gateway.config(of_inventory(specs), specs, facts, recorded, **{**known, **more})


def test_the_document_has_hashes_of_keys_and_the_known_data_of_each_model(specs, facts):
    def sha256(value):
        return hashlib.sha256(value.encode()).hexdigest()

    assert document(specs(), facts) == {
        "listen": "192.168.86.11",
        "port": 8080,
        "keys": {sha256("shared"): None, sha256("hers"): ["embed"], sha256("his"): None},
        "engine_key": "shared",
        "room": 9,
        "models": [
            {
                "name": "gpt-oss-120b",
                "served": ["gpt-oss-120b"],
                "kind": "chat",
                "context": 4096,
                "sizes": {"alpha": 5, "beta": None},
                "idle_s": 600.0,
                "start_s": None,
                "backends": [],
            },
            {
                "name": "embed",
                "served": ["qwen3-embedding-4b", "text-embedding"],
                "kind": "embeddings",
                "context": 32768,
                "sizes": {"alpha": None},
                "idle_s": None,
                "start_s": 95.0,
                "backends": ["http://127.0.0.1:8001"],
            },
        ],
    }
    without = document(specs(), facts, key=None, keys={})
    assert (without["keys"], without["engine_key"]) == ({}, None)


def test_the_gateways_container_mounts_only_its_directory_and_sockets(specs, spark):
    facts = on_node(spark, image=image())
    node = gateway.rank(of_inventory(specs()), facts, "pass")
    (container,) = node.containers
    state = f"{facts.state_dir}/clusters/home-gateway"
    own = f"{state}/ranks/sparkcluster-home-gateway"
    labels = {f"io.sparkcluster.{name}" for name in ("cluster", "group", "node", "rank", "release", "plan")}
    assert container.labels.keys() == labels | {
        f"io.sparkcluster.{name}" for name in ("state_dir", "rank_dir", "runtime")
    }
    assert [*container.argv] == [
        *("docker", "run", "--detach", "--name", "sparkcluster-home-gateway", "--user", f"{facts.uid}:{facts.uid}"),
        *("--network", "host", "--restart", "unless-stopped", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--pids-limit", "256", "--memory", "1g"),
        *("--ulimit", "nofile=1048576", "--init", "--pull", "never", "--env", "HOME=/tmp"),
        *("--env", "NVIDIA_VISIBLE_DEVICES=void"),
        *("--log-driver", "json-file", "--log-opt", "max-size=64m", "--log-opt", "max-file=3"),
        *(word for name, value in sorted(container.labels.items()) for word in ("--label", f"{name}={value}")),
        *("--mount", f"type=bind,source={own},target=/sparkcluster/gateway,readonly"),
        *("--mount", f"type=bind,source={state}/run,target=/sparkcluster/run"),
        *("--entrypoint", "/opt/venv/bin/python", image()["id"], "-I"),
        *("/sparkcluster/gateway/gateway.py", "/sparkcluster/gateway/config.json", "/sparkcluster/run"),
    ]
    assert container.directories == (own, f"{state}/run")


def test_only_changes_that_need_a_restart_change_the_hash(specs, spark):
    def plan(found, name="abc", program="pass"):
        node = gateway.rank(of_inventory(found), on_node(spark, image=image(name)), program)
        return node.containers[0].labels["io.sparkcluster.plan"]

    found = specs()
    assert plan(found) == plan(specs("- {playbook: qwen3-reranker-4b, nodes: [beta], name: rerank}\n"))
    assert plan(found) == plan([dataclasses.replace(each, idle_s=None) for each in found])
    assert len({plan(found), plan(found, "def"), plan(found, program="pass\n"), plan(specs(port=9))}) == 4


def test_without_containers_the_gateway_runs_from_its_directory(specs, spark):
    facts = on_node(spark, image=None)
    container = gateway.rank(of_inventory(specs("runtime: {kind: process}\n")), facts, "pass").containers[0]
    files = [f"{container.rank_dir}/{name}" for name in ("gateway.py", "config.json")]
    assert [*container.argv] == ["python3", "-I", *files, f"{facts.state_dir}/clusters/home-gateway/run"]
