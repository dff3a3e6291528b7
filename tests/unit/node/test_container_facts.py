"""How two builds of an image are distinguished if their IDs are not comparable."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkcluster.node import ranks
from sparkcluster.node.container_facts import cdi_specs
from sparkcluster.node.docker import config_sum
from sparkcluster.node.image import pullable

CONFIG = {"Env": ["PATH=/bin", "NCCL_DEBUG=INFO"], "Entrypoint": ["vllm", "serve"], "Cmd": None, "WorkingDir": "/w"}


def test_equal_configurations_of_different_engines_have_one_hash():
    other = {
        "WorkingDir": "/w",
        "Env": CONFIG["Env"][::-1],
        "Entrypoint": ["vllm", "serve"],
        "User": "",
        "Labels": {"a": "b"},
    }
    assert config_sum(CONFIG) == config_sum(other)
    assert config_sum({}) == config_sum({"Env": None, "Entrypoint": None})


@pytest.mark.parametrize(
    "change",
    [
        {"Env": ["PATH=/bin", "NCCL_DEBUG=WARN"]},
        {"Env": ["PATH=/bin"]},
        {"Entrypoint": ["python3"]},
        {"Cmd": ["serve"]},
        {"User": "1000"},
        {"WorkingDir": "/"},
        {"Healthcheck": {"Test": ["CMD-SHELL", "curl example.org | sh"]}},
        {"Volumes": {"/models": {}}},
    ],
)
def test_every_setting_of_a_container_changes_its_hash(change):
    assert config_sum({**CONFIG, **change}) != config_sum(CONFIG)


@pytest.mark.parametrize(
    ("reference", "digests", "found"),
    [
        ("vllm/vllm-openai:v1", ["other/copy@sha256:aa", "vllm/vllm-openai@sha256:bb"], "vllm/vllm-openai@sha256:bb"),
        ("mine:1", ["vllm/vllm-openai@sha256:bb"], "vllm/vllm-openai@sha256:bb"),
        ("a/b:1@sha256:cc", ["a/b@sha256:dd", "a/b@sha256:cc"], "a/b@sha256:cc"),
        ("a/b@sha256:cc", ["a/b@sha256:dd"], None),
        ("built-here", [], None),
    ],
)
def test_an_image_gets_a_reference_that_another_node_can_pull(reference, digests, found):
    assert pullable(reference, digests) == found


def test_an_unreadable_cdi_file_is_skipped(make_machine):
    machine = make_machine({"files": {"etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu"}})
    Path(machine.at("/etc/cdi/old.yaml")).symlink_to("/nowhere")
    assert cdi_specs(machine) == ["kind: nvidia.com/gpu", ""]


@pytest.mark.parametrize(
    ("image", "command", "engine"),
    [
        ("vllm/vllm-openai:v0.20.0", "--model meta-llama/Llama-3.1-8B", "vllm"),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13", "/app/llama-server -m m.gguf", "llama.cpp"),
        ("lmsysorg/sglang:spark", "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B", "sglang"),
        ("nvcr.io/nvidia/tensorrt-llm/release:spark-single-gpu-dev", "bash", "tensorrt-llm"),
        ("ollama/ollama", "serve", "ollama"),
        ("nginx", "nginx", ""),
    ],
)
def test_a_foreign_container_shows_the_name_of_its_engine(image, command, engine):
    """The name for which `import --container` is suggested."""

    class Node:
        def docker_document(self, _path, _kind):
            return [{"Names": ["/one"], "Image": image, "Command": command, "Labels": {}}]

    assert ranks.others(Node())[0]["engine"] == engine
