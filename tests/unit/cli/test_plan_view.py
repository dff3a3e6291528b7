"""A plan for people: briefly what distinguishes the nodes, and whole what can be pasted."""

from __future__ import annotations

import re

import pytest

from sparkcluster.cli.plan_view import brief, ports, whole
from sparkcluster.plan.docker_run import mounts


@pytest.fixture
def document(world):
    return world().plan(3).as_json()


def test_briefly_only_what_differs_between_nodes_is_shown_of_their_variables(document):
    document["nodes"]["beta"]["env"]["ONLY_BETA"] = "1"
    document["nodes"]["alpha"]["secrets"] = ["VLLM_API_KEY"]
    shown = list(brief(document))
    same = document["nodes"]["alpha"]["env"].items() & document["nodes"]["beta"]["env"].items()
    assert shown[0] == f"cluster atlas  plan {document['hash'][:12]}  model Qwen/Qwen3-8B"
    assert shown[1] == "image  vllm/vllm-openai:v0.18.0"
    assert "  env    ONLY_BETA=1" in shown
    assert "  env    VLLM_API_KEY=(secret)" in shown
    assert shown[-1] == f"{len(same)} variables are the same on every node"
    text = "\n".join(shown)
    assert "NCCL_IB_HCA=" not in text or "NCCL_IB_HCA" not in dict(same)
    assert not any(f"{name}=" in text for name, _ in same)
    assert re.search(r"^  ports  6379 \(Ray\), .*8000 \(engine\)", text, re.MULTILINE)
    assert "  mount  " in text
    assert len(shown) < len(list(whole(document)))


def test_whole_has_every_variable_and_command_of_every_node(document):
    shown = list(whole(document))
    for node in document["nodes"].values():
        assert {f"  {name}={value}" for name, value in node["env"].items()} <= set(shown)
    assert sum(line.startswith("  $ docker run ") for line in shown) == 2


def test_a_mount_with_a_comma_in_its_path_is_read_as_docker_reads_it():
    argv = ["docker", "run", "--mount", 'type=bind,"source=/a,b",target=/c,readonly', "--mount", "type=tmpfs,target=/t"]
    assert list(mounts(argv)) == [("/a,b", "/c", ", read-only")]


@pytest.mark.parametrize("value", ["type=bind", "type=bind,source=/a", "a\rb", "", "x" * 200_000, 'type=bind,"'])
def test_what_a_record_says_that_is_no_bind_mount_is_none(value):
    assert list(mounts(["docker", "run", "--mount", value, "image"])) == []


def test_ports_are_those_of_the_commands():
    launcher = {
        "ray": {"start": ["ray", "start", "--port=6379", "--node-manager-port=6380"]},
        "engine": ["vllm", "serve", "m", "--port", "8000", "--port"],
    }
    assert list(ports(launcher)) == [
        ("Ray", "6379"), ("Ray node manager", "6380"), ("engine", "8000"), ("engine", ""),
    ]  # fmt: skip
    assert list(ports({"ray": None, "engine": None})) == []
