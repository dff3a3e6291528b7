"""What tells two builds of an image apart where their IDs cannot."""

from __future__ import annotations

import pytest

from sparkcluster.engines.vllm import node
from sparkcluster.node import container_facts
from sparkcluster.node.container_facts import image, pullable
from sparkcluster.node.docker import config_sum, save, saved_platform
from sparkcluster.node.machine import Machine

CONFIG = {"Env": ["PATH=/bin", "NCCL_DEBUG=INFO"], "Entrypoint": ["vllm", "serve"], "Cmd": None, "WorkingDir": "/w"}


def test_the_same_configuration_has_one_sum_however_an_engine_writes_it():
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
def test_whatever_a_container_starts_with_changes_it(change):
    assert config_sum({**CONFIG, **change}) != config_sum(CONFIG)


@pytest.mark.parametrize(
    ("reference", "digests", "found"),
    [
        ("vllm/vllm-openai:v1", ["other/copy@sha256:aa", "vllm/vllm-openai@sha256:bb"], "vllm/vllm-openai@sha256:bb"),
        ("docker.io/vllm/vllm-openai", ["a/b@sha256:aa", "vllm/vllm-openai@sha256:bb"], "vllm/vllm-openai@sha256:bb"),
        ("hub:5000/vllm", ["a/b@sha256:aa", "hub:5000/vllm@sha256:bb"], "hub:5000/vllm@sha256:bb"),
        ("mine:1", ["vllm/vllm-openai@sha256:bb"], "vllm/vllm-openai@sha256:bb"),
        ("a/b@sha256:cc", [], "a/b@sha256:cc"),
        ("built-here", [], None),
    ],
)
def test_an_image_is_named_as_another_node_can_pull_it(reference, digests, found):
    assert pullable(reference, digests) == found


@pytest.mark.parametrize(
    ("reference", "queries"),
    [
        ("vllm:v1", ["/images/vllm:v1/json"]),
        ("vllm@sha256:aa", ["/images/vllm@sha256:aa/json", "/images/vllm:sha256-aa/json"]),
    ],
)
def test_an_absent_image_is_queried_once_by_each_name(reference, queries):
    class Engine(Machine):
        def docker(self, path):
            queried.append(path)
            return 404, {"message": "no such image"}

    queried: list[str] = []
    assert image(Engine(), reference, "/state") is None
    assert queried == queries


@pytest.mark.parametrize("rootfs", [{}, {"RootFS": {}}])
def test_an_image_of_which_the_engine_has_the_name_alone_is_absent(rootfs):
    """As Docker 28 lists one whose layers another image there has, compressed otherwise (containerd#8973)."""

    class Engine(Machine):
        def docker(self, path):
            return 200, {
                "Id": "sha256:" + "a" * 64,
                "RepoTags": ["vllm:v1"],
                "Architecture": "",
                "Size": 1400,
                **rootfs,
            }

    assert image(Engine(), "vllm:v1", "/state") is None


STORE = {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}


@pytest.mark.parametrize(
    ("info", "api", "machine", "platform"),
    [
        (STORE, "1.48", "aarch64", "linux/arm64"),
        (STORE, "1.51", "x86_64", "linux/amd64"),
        (STORE, "2.0", "aarch64", "linux/arm64"),
        (STORE, "1.45", "aarch64", None),
        (STORE, "", "aarch64", None),
        (STORE, "1.51", "riscv64", None),
        ({"DriverStatus": [["Backing Filesystem", "extfs"]]}, "1.51", "aarch64", None),
        ({}, "1.51", "aarch64", None),
    ],
)
def test_one_platform_is_saved_where_the_store_has_several_and_the_engine_takes_one(info, api, machine, platform):
    """From API 1.48 on; before, the archive's index is rewritten to the one manifest."""
    assert saved_platform(info, api, machine) == platform
    words = ["docker", "save", "--platform", platform, "ID"] if platform else ["docker", "save", "ID"]
    assert save("ID", platform) == words


WHOLE = {"RootFS": {"Layers": ["sha256:ab"]}}


def test_the_user_and_nvidias_label_of_an_image(monkeypatch):
    class Engine(Machine):
        def docker(self, path):
            labels = {"com.nvidia.vllm.version": "0.10.2+9dd9ca32", "maintainer": "x"}
            return 200, {"Id": "sha256:aa", "Config": {"User": "2000:0", "Labels": labels}, **WHOLE}

    found = image(Engine("/nowhere"), "vllm:v1", "/state")
    assert found is not None
    assert (found["user"], found["labels_vllm"]) == ("2000:0", None)
    monkeypatch.setattr(container_facts, "engine", node)
    found = image(Engine("/nowhere"), "vllm:v1", "/state")
    assert found is not None
    assert found["labels_vllm"] == "0.10.2+9dd9ca32"
